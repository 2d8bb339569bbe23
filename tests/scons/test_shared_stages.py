"""Builds and compile on demand use what the other one has finished."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.ondemand.store import KernelStore
from kernelwright.state.cache import BuildCache
from support.project import SCONSTRUCT, SITE_SCONS, Project

SHOW_IMPORT = """
import atexit, sys
atexit.register(lambda: print("looked:", any(name.startswith("kernelwright.ondemand") for name in sys.modules)))
"""


def fill(folder: Path, built: Path) -> None:
    """Make a cache of compile on demand that has the stages of a build."""
    store = KernelStore(folder)
    assert store.lasting
    shutil.copytree(built, folder / "stages")


@pytest.fixture
def filled(cpu_project: Project, tmp_path: Path) -> Path:
    """The cache of compile on demand, with all stages of a project that has none of them any more."""
    cpu_project.built()
    folder = tmp_path / "on-demand"
    fill(folder, cpu_project.folder / "build/.kernelwright/cache")
    shutil.rmtree(cpu_project.folder / "build")
    return folder


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_scons_takes_what_was_compiled_on_demand_and_leaves_it_as_it_is(cpu_project: Project, filled: Path) -> None:
    before = times(filled)
    variables = {"KERNELWRIGHT_CACHE_DIR": str(filled)}
    first = cpu_project.scons(env=variables)
    assert set(first.labels) == {"CACHED", "PACKAGE"}
    assert times(filled) == before
    shutil.rmtree(filled)
    shutil.rmtree(cpu_project.folder / "build/demo")
    shutil.rmtree(cpu_project.folder / "build/kernels")
    again = cpu_project.scons(env=variables)
    assert set(again.labels) == {"CACHED", "PACKAGE"}, "the build's own cache has it now"


COMPILE = """
from kernelwright.ondemand.files import load
print([kernel.compile().cached for kernel in load("kernels/add_one.py")])
"""


def compile_on_demand(project: Project, cache: Path) -> subprocess.CompletedProcess[str]:
    variables = {"KERNELWRIGHT_CACHE_DIR": str(cache), "KERNELWRIGHT_VERBOSE": "1", "PYTHONPATH": str(SITE_SCONS)}
    command = [sys.executable, "-c", COMPILE]
    environment = {**os.environ, **variables, "PATH": f"{project.shared}/bin:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, check=True)


def test_each_way_takes_what_the_other_one_has_made(cpu_project: Project, tmp_path: Path) -> None:
    cache = tmp_path / "on-demand"
    first = compile_on_demand(cpu_project, cache)
    assert first.stdout == "[False]\n" and "[ LOWER ]" in first.stderr
    assert not re.search(r"CACHED \] \w+ add_one", first.stderr)
    run = cpu_project.scons(env={"KERNELWRIGHT_CACHE_DIR": str(cache)})
    assert "CACHED LOWER add_one/default x86-64-v3" in run.stages and any(
        line.startswith("LOWER scale") for line in run.stages
    )
    made = [line for line in run.stages if "add_one" in line and not line.startswith("CACHED")]
    assert set(made) <= {"CC add_one", "LINK add_one"}, "only what depends on where the library is to run"
    shutil.rmtree(cache)
    again = compile_on_demand(cpu_project, cache)
    assert again.stdout == "[False]\n" and "[ CACHED ]" in again.stderr and "[ LOWER ]" not in again.stderr
    assert compile_on_demand(cpu_project, cache).stdout == "[True]\n"


def test_damaged_stages_of_compile_on_demand_are_made_again(cpu_project: Project, filled: Path) -> None:
    for path in (filled / "stages").glob("??/*"):
        os.truncate(path, path.stat().st_size - 1)
    before = times(filled)
    run = cpu_project.scons(env={"KERNELWRIGHT_CACHE_DIR": str(filled)})
    assert "CACHED" not in run.labels and times(filled) == before


def test_without_a_cache_no_other_one_is_read(cpu_project: Project, filled: Path) -> None:
    run = cpu_project.scons("--cache-disable", env={"KERNELWRIGHT_CACHE_DIR": str(filled)})
    assert "CACHED" not in run.labels


def test_a_run_with_nothing_to_do_does_not_look_for_the_other_cache(cpu_project: Project) -> None:
    cpu_project.write("SConstruct", SCONSTRUCT + SHOW_IMPORT)
    assert "looked: True" in cpu_project.scons(fresh=True).output
    assert "looked: False" in cpu_project.scons(fresh=True).output


def test_compile_on_demand_takes_stages_of_the_project_s_builds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(b"made by a build")
    project = tmp_path / "project"
    builds = BuildCache(project / "build/.kernelwright/cache", 1 << 20)
    builds.store("ab" * 32, out, ["a"], {})
    before = times(project)
    (out / "a").unlink()
    for store in (KernelStore(tmp_path / "cache"), KernelStore(tmp_path / "cache", writable=False)):
        assert store.stages().fetch("cd" * 32, out, ["a"], str) is None
        assert store.stages(project).fetch("ab" * 32, out, ["a"], str) == {}
        assert (out / "a").read_bytes() == b"made by a build"
    assert times(project) == before
    shutil.rmtree(project)
    read_only = KernelStore(tmp_path / "cache", writable=False)
    assert read_only.stages(project).fetch("ab" * 32, out, ["a"], str) == {}, "it is in the cache of its own by now"
    assert KernelStore.private().stages(project).fetch("ab" * 32, out, ["a"], str) is None
