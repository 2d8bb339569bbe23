"""Builds and compile on demand use what the other one has finished."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kernelwright.ondemand.store import KernelStore
from kernelwright.state.cache import BuildCache
from support.project import SCONSTRUCT, Project

SHOW_IMPORT = """
import atexit, sys
atexit.register(lambda: print("looked:", any(name.startswith("kernelwright.ondemand") for name in sys.modules)))
"""


@pytest.fixture
def filled(cpu_project: Project, tmp_path: Path) -> Path:
    """The cache of compile on demand, with all stages of a project that has none of them any more."""
    cpu_project.built()
    folder = tmp_path / "on-demand"
    assert KernelStore(folder).lasting
    shutil.copytree(cpu_project.folder / "build/.kernelwright/cache", folder / "stages")
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
