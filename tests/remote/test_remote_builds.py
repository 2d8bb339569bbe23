"""Builds with a remote cache: a machine that starts empty takes what another one has made."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from kernelwright.define.remote_address import TOKEN
from support.forked import starter
from support.project import NO_TOOLS, SCONSTRUCT, SITE_SCONS, Project, new_project

from remote.servers import READER, WRITER, Nginx, faulty, nginx, status

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")

REFUSE = f"""\
{NO_TOOLS}
import sys

class NoTvm:
    def find_spec(self, name, path=None, target=None):
        if name == "tvm":
            raise RuntimeError("TVM is imported")

sys.meta_path.insert(0, NoTvm())
"""
"""The begin of a build file that starts no worker, does not probe nvcc, and does not import TVM."""

PROCESSES = """\
from kernelwright.scons import restored

restored.BATCH = restored.WORTH_A_PROCESS = 1
"""
"""The begin of a build file that has processes restore kernels, from the second definition file on."""

DISTURB = """\
import time
from pathlib import Path
from kernelwright.state import remote_client as client
from kernelwright.state import finished, journal

restore, finish = finished.restore, client._Threads.finish

def edit_and_restore(*arguments):
    Path("kernels/_helper.py").write_text("X = 2\\n")
    time.sleep(0.1)
    return restore(*arguments)

def fail(self):
    raise OSError(28, "No space left on device")

def interrupt(self, deadline):
    client._Threads.finish = finish
    raise KeyboardInterrupt

finished.restore, journal.Journal.close, client._Threads.finish = edit_and_restore, fail, interrupt
"""
"""The begin of a build file: a file is edited when kernels have been found; at the end the disk is full, and the user
interrupts the writing."""


def sharing(folder: Path, address: str) -> Project:
    project = new_project(folder)
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text() + f'remote_cache = "{address}"\n')
    project.write("kernels/_helper.py", "X = 1\n")
    project.replace("kernels/add_one.py", "from tvm import te", "import _helper\nfrom tvm import te")
    return project


def package(project: Project) -> dict[str, bytes]:
    return {name.partition("build/demo/")[2]: data for name, data in project.files("build/demo").items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A server that asks for a token, and that the build of one checkout has filled."""
    folder = tmp_path_factory.mktemp("remote")
    with nginx(folder / "nginx", closed=True) as made:
        made.first = sharing(folder / "first", made.address)  # type: ignore[attr-defined]
        variables = {"KERNELWRIGHT_REMOTE_MODE": "read-write", TOKEN: WRITER}
        run = made.first.scons("-j2", env=variables, fresh=True)  # type: ignore[attr-defined]
        assert "written" in run.output and WRITER not in run.output
        yield made


@pytest.mark.parametrize("begin", [REFUSE, REFUSE + PROCESSES], ids=["one process", "several"])
def test_a_machine_that_starts_empty_needs_neither_tvm_nor_nvcc(server: Nginx, tmp_path: Path, begin: str) -> None:
    project = sharing(tmp_path / "second", server.address)
    project.write("SConstruct", begin + SCONSTRUCT)
    before, earlier = server.objects(), len(server.requests())
    run = project.scons("-j2", env={TOKEN: READER}, fresh=True)
    assert set(run.labels) == {"CACHED", "PACKAGE"} and package(project) == package(server.first)  # type: ignore[attr-defined]
    assert ", 0 misses," in run.output and server.objects() == before
    text = b"".join(project.files(".").values())
    assert READER.encode() not in text and READER not in run.output, "no secret is kept or shown"
    asked = len(server.requests())
    places = [line.split('"')[1] for line in server.requests()[earlier:]]
    assert places and len({*places}) == len(places), "nothing is asked for twice"
    assert project.scons(env={TOKEN: READER}).counts[0] == 0
    assert len(server.requests()) == asked, "nothing is asked before something is missing"
    caches = json.loads((project.folder / "build/trace.json").read_text())["otherData"]["caches"]
    assert caches["remote"]["hits"] > 0 == caches["remote"]["misses"] and caches["remote"]["read"] > 1000
    assert caches["local"]["hits"] == 0


def test_a_change_while_kernels_are_taken_counts_and_the_end_is_orderly(server: Nginx, tmp_path: Path) -> None:
    project = sharing(tmp_path / "second", server.address)
    project.write("SConstruct", DISTURB + SCONSTRUCT)
    run = project.scons("-j2", env={TOKEN: READER})
    assert set(run.labels) == {"CACHED", "PACKAGE"}
    assert "Traceback" not in run.output and "kernelwright: remote cache: " in run.output
    assert "No space left on device" in run.output
    (settled,) = (project.folder / "build/.kernelwright/settled").iterdir()
    trusted = json.loads(settled.read_text())[2]["files"]
    assert trusted.keys() == {"kernels/scale.py"}, "the next run looks at the other one"


def local_common(project: Project) -> set[Path]:
    """The entries of a build cache that have what all kernels need."""
    paths = (project.folder / "build/.kernelwright/cache").glob("??/*")
    lines = {path: path.read_bytes().partition(b"\n")[0] for path in paths}
    return {path for path, line in lines.items() if b'"name":"libkernelwright-' in line or b'"name":"libc.so"' in line}


@pytest.mark.parametrize("lost", ["what kernels have in common", "all else"])
def test_what_the_build_cache_has_lost_is_taken_without_stages(server: Nginx, tmp_path: Path, lost: str) -> None:
    project = sharing(tmp_path / "second", server.address)
    assert command(project, "pull", env={TOKEN: READER}).returncode == 0
    common = local_common(project)
    assert len(common) == 2
    for path in (project.folder / "build/.kernelwright/cache").glob("??/*"):
        if (path in common) == (lost == "what kernels have in common"):
            path.unlink()
    project.write("SConstruct", REFUSE + SCONSTRUCT)
    before = len(server.requests())
    run = project.scons("-j2", env={TOKEN: READER})
    assert set(run.labels) == {"CACHED", "PACKAGE"} and package(project) == package(server.first)  # type: ignore[attr-defined]
    asked = [line.split()[6].rpartition("/")[2] for line in server.requests()[before:]]
    # Two are what the first definition file declares; it is looked at in case that a worker is needed.
    assert len(asked) == (4 if lost == "what kernels have in common" else 6)
    assert all((path.name in asked) == (lost == "what kernels have in common") for path in common)


def test_a_target_is_taken_stage_by_stage(server: Nginx, tmp_path: Path) -> None:
    project = sharing(tmp_path / "second", server.address)
    run = project.scons("-j1", "build", env={TOKEN: READER})
    assert set(run.labels) == {"CACHED", "PACKAGE"} and package(project) == package(server.first)  # type: ignore[attr-defined]


def command(project: Project, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """``kernelwright cache`` in the project."""
    program = "import sys; from kernelwright.cli import main; sys.exit(main(sys.argv[1:]))"
    prepared, variables = starter("support.scons_start"), project.variables(env)
    return prepared.run(program, "cache", *arguments, env=variables, path=[SITE_SCONS], cwd=project.folder)


def test_pushing_and_pulling_by_hand(server: Nginx, tmp_path: Path) -> None:
    project = sharing(tmp_path / "second", server.address)
    pulled = command(project, "pull", env={TOKEN: READER})
    assert "2 of 2 definition files of demo are in the build cache" in pulled.stdout, pulled.stdout + pulled.stderr
    assert not (project.folder / "build/demo").exists() and not (project.folder / "build/kernels").exists()
    run = project.scons("REMOTE_CACHE=")
    assert set(run.labels) == {"CACHED", "PACKAGE"} and package(project) == package(server.first)  # type: ignore[attr-defined]
    said = command(project, "stats").stdout
    assert "last build, local: " in said and "last build, remote" not in said and f"{server.address}, read" in said
    folder = {"KERNELWRIGHT_REMOTE_CACHE": "shared"}
    pushed = command(server.first, "push", env=folder)  # type: ignore[attr-defined]
    assert pushed.returncode == 0 and not pushed.stderr and "entries are new in the remote cache" in pushed.stdout
    assert command(server.first, "push", env=folder).stdout.startswith("0 entries are new")  # type: ignore[attr-defined]
    third = sharing(tmp_path / "third", str(server.first.folder / "shared"))  # type: ignore[attr-defined]
    assert set(third.scons().labels) == {"CACHED", "PACKAGE"}
    assert command(project, "push").returncode == 1, "without a token"
    nowhere = command(project, "push", env={"KERNELWRIGHT_REMOTE_CACHE": ""})
    assert nowhere.returncode == 1 and "remote_cache is empty" in nowhere.stderr


def test_a_broken_server_leaves_the_build_as_it_was(server: Nginx, tmp_path: Path) -> None:
    with faulty() as broken:
        broken.answer = status(500)
        project = sharing(tmp_path / "second", broken.address)
        run = project.scons("-j2", "REMOTE_MODE=read-write")
    assert "CACHED" not in run.labels and package(project) == package(server.first)  # type: ignore[attr-defined]
    assert run.output.count("the remote cache is off for this run") == 1 and len(broken.asked) < 20
