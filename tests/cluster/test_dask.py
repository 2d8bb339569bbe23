"""Builds on a cluster of Dask: a scheduler and two workers, in processes and folders of their own."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SITE_SCONS, Project
from moments import wait_for

pytest.importorskip("distributed", reason="clusters need the extra fleet")


class Process:
    """A process of a cluster, in a folder of its own; ``log`` has what it prints."""

    def __init__(self, folder: Path, *command: str) -> None:
        folder.mkdir()
        self.log = folder / "log"
        # The same compiler as the builds of the tests have.
        path = f"{Project.shared}/bin:{os.environ['PATH']}"
        variables = {**os.environ, "PYTHONPATH": str(SITE_SCONS), "PATH": path, "TMPDIR": str(folder)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_for(self, text: str) -> None:
        def has_said() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return text in self.log.read_text()

        wait_for(has_said, text)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Cluster:
    """A scheduler, and workers that have joined it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{port}"
        options = ["--host", "127.0.0.1", "--port", port, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        self.scheduler = Process(folder / "scheduler", "distributed.cli.dask_scheduler", *options)
        self.scheduler.wait_for("Scheduler at:")
        own = ["--threads", "2", "--no-nanny"]
        self.workers = [Process(folder / name, "kernelwright", "worker", self.address, *own) for name in ("a", "b")]
        for worker in self.workers:
            worker.wait_for("Registered to:")

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def outputs(project: Project) -> list[str]:
    return sorted(
        name for name in project.files("build") if "/.kernelwright/" not in f"/{name}" and "trace" not in name
    )


def test_a_build_on_a_cluster_has_the_bytes_of_one_here(project: Project, cluster: Cluster, tmp_path: Path):
    """The workers compile; the outputs, and what the cache knows them by, are those of a build here."""
    here = Project(Path(shutil.copytree(project.folder, tmp_path / "here")))
    here.built()
    project.scons("-j4", "--cluster", cluster.address)
    made = outputs(here)
    assert len(made) > 20 and made == outputs(project)
    same, *others = filecmp.cmpfiles(here.folder, project.folder, made, shallow=False)
    assert others == [[], []] and len(same) == len(made)
    for worker in cluster.workers:
        assert re.search(r"nvcc of \w+/\S+ (compute|sm)_\w+: status 0 in", worker.log.read_text())
    caches = [{Path(name).name for name in side.files("build/.kernelwright/cache")} for side in (here, project)]
    assert caches[0] == caches[1]
