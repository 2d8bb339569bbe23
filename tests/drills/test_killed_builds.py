"""Short forms of the drills that kill builds; the programs beside this file do as many as wanted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crash import VICTIMS, Drill, DrillError
from killed_with_remote import RemoteDrill
from lost_workers import INTERRUPT, LostWorkers
from support.dask_cluster import Cluster
from support.moments import wait_for
from support.project import SCALE, Project

SMALL = {"kernels": [], "jobs": 2, "seed": 7, "settings": ["ARCHS=x86-64-v3,sm_80"]}


class Small(Drill):
    """One small kernel in place of the library; and builds that nobody kills are forks of a process with TVM."""

    def __init__(self, folder: Path, *given: Any, **options: Any) -> None:
        super().__init__(folder, *given, **options)
        for path in folder.glob("kernels/*.py"):
            path.unlink()
        (folder / "kernels/scale.py").write_text(SCALE.replace('"float32", ', ""))
        self.kernels = ["scale"]

    def build(self) -> str:
        run = Project(self.folder).scons("-Q", f"-j{self.jobs}", *self.settings, ok=None)
        if run.status:
            raise DrillError(run.output)
        return run.output


class Short(Drill):
    """The moments are numbers of finished stages instead of times, so that they are the same on a slow machine."""

    stages = 0
    """Those of a clean build."""

    chosen = ""
    """The victim of the moment."""

    def prepare(self, number: int) -> str:
        self.stages = self.stages or len(self.entries())
        return super().prepare(number)

    def victim(self, number: int) -> str:
        self.chosen = VICTIMS[number % len(VICTIMS)]
        return self.chosen

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        # Workers and compilers run early in a build.
        finished = self.random.randrange(1, self.stages) if "scons" in self.chosen else self.random.randrange(2)
        wait_for(
            lambda: process.poll() is not None or len(self.entries()) >= finished, f"{finished} stages do not finish"
        )


class ShortDrill(Short, Small):
    """One on this machine alone."""


class ShortRemoteDrill(Short, RemoteDrill, Small):
    """With the same moments."""


class ShortClusterDrill(LostWorkers, Small):
    """The moment is the end of the first run on a worker. One cluster has all moments: it takes long to start."""

    runs = 0
    """How many there were before the build."""

    def _start_on_cluster(self) -> subprocess.Popen[str]:
        process = super()._start_on_cluster()
        self.runs = self._runs()
        return process

    def _runs(self) -> int:
        return sum(worker.log.read_text().count("status 0 in") for worker in self.cluster.workers)

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        wait_for(lambda: process.poll() is not None or self._runs() > self.runs, "no worker does anything")

    def _mend(self) -> None:
        wait_for(lambda: not self._compilers(), "a worker still runs a compiler")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")


TAKES_LONG = pytest.mark.skipif(
    "KERNELWRIGHT_DRILLS" not in os.environ, reason="takes long: KERNELWRIGHT_DRILLS=1 runs it"
)


@pytest.mark.parametrize("drill", [ShortDrill, pytest.param(ShortRemoteDrill, marks=TAKES_LONG)])
def test_builds_that_are_killed_end_as_clean_ones(tmp_path: Path, drill: type[Drill]) -> None:
    made = drill(tmp_path, **SMALL)
    Project(tmp_path).know_tools()
    tally = made.run(moments=len(VICTIMS))
    assert tally.moments.total() >= len(VICTIMS) and tally.kept > 0


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="clusters need the extra fleet")
def test_builds_that_lose_their_cluster_end_as_clean_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that is lost is in ``tests/cluster``."""
    monkeypatch.setattr(Cluster, "tools", Project(tmp_path).tools() / "toolchain.json")
    (tmp_path / "project").mkdir()
    victims = Counter(["worker SIGKILL", INTERRUPT])
    drill = ShortClusterDrill(tmp_path / "project", **SMALL)
    Project(drill.folder).know_tools()
    assert drill.strike(victims).moments == victims
