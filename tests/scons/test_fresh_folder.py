"""A fresh build folder with a full build cache: no worker starts, and no tool is probed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kernelwright.state.cache import BuildCache
from support import tuned
from support.project import NO_TOOLS, SCONSTRUCT, Project, new_project


def sharing(project: Project, cache: Path) -> Project:
    """A project whose kernels import a helper, and whose build cache is outside of its folder."""
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text() + f'cache_dir = "{cache}"\n')
    project.write("kernels/_helper.py", "X = 1\n")
    project.replace("kernels/add_one.py", "from tvm import te", "import _helper\nfrom tvm import te")
    return project


PROCESSES = """\
from kernelwright.scons import restored
from kernelwright.state.restorer import Restorer

restored.BATCH = restored.WORTH_A_PROCESS = 1
restore = Restorer.restore

def counted(self, question):
    print("restored by scons:", question[4])
    return restore(self, question)

Restorer.restore = counted
"""
"""The begin of a build file that has processes restore kernels, from the second definition file on."""

HALF = """\
restored.PROGRAM = '''
import os, sys
sys.stdin.readline()
sys.stdin.readline()
os.makedirs("build/kernels/demo/scale/dtype-float32")
open("build/kernels/demo/scale/scale.so", "w").write("half of it")
'''
"""
"""Processes that end in the middle of their work."""

HALF_AN_ANSWER = """\
restored.PROGRAM = '''
import sys
sys.stdin.readline()
sys.stdin.readline()
print('{"answers": [', end="")
'''
"""
"""Processes that end in the middle of an answer."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkout of the project, and with the cache that its build has filled."""
    folder = tmp_path_factory.mktemp("fresh")
    checkout = new_project(folder / "first" / "checkout")
    sharing(checkout, folder / "cache").scons(fresh=True)
    return folder


@pytest.fixture
def shared(project: Project, elsewhere: Path, tmp_path: Path) -> Project:
    """The project with a build cache outside of its folder, filled by a checkout of it elsewhere."""
    shutil.copytree(elsewhere / "cache", tmp_path / "cache")
    return sharing(project, tmp_path / "cache")


def refuse(project: Project) -> None:
    """Let builds of a project fail that start a worker or probe nvcc."""
    project.write("SConstruct", NO_TOOLS + SCONSTRUCT)


def executed(project: Project) -> list[str]:
    """The definition files that the last run has executed."""
    trace = json.loads((project.folder / "build/trace.json").read_text())
    return sorted(event["args"]["subject"] for event in trace["traceEvents"] if event.get("cat") == "DISCOVER")


def test_another_checkout_starts_no_worker_and_probes_nothing(shared: Project, elsewhere: Path) -> None:
    refuse(shared)
    run = shared.scons(fresh=True)
    assert set(run.labels) == {"CACHED", "PACKAGE"}
    first, second = Project(elsewhere / "first" / "checkout").files("build/demo"), shared.files("build/demo")
    here = len("build/demo/")
    assert {name[here:]: data for name, data in first.items()} == {name[here:]: data for name, data in second.items()}
    assert shared.scons().counts[0] == 0
    trace = json.loads((elsewhere / "first/checkout/build/trace.json").read_text())
    probes = [event for event in trace["traceEvents"] if event.get("cat") == "PROBE"]
    assert probes and all(event["args"]["cpu_seconds"] > 0 for event in probes), "the first checkout has probed"


@pytest.mark.parametrize(
    ("program", "here"),
    [("", 1), ('restored.PROGRAM = "#" * (1 << 22)\n', 2), (HALF, 2), (HALF_AN_ANSWER, 2)],
    ids=["processes", "none that starts", "one that is killed", "while it answers"],
)
def test_many_kernels_are_taken_by_several_processes(shared: Project, elsewhere: Path, program: str, here: int) -> None:
    shared.write("SConstruct", NO_TOOLS + PROCESSES + program + SCONSTRUCT)
    run = shared.scons("-j2")
    assert set(run.labels) == {"CACHED", "PACKAGE"} and run.output.count("restored by scons") == here
    first, second = Project(elsewhere / "first" / "checkout").files("build"), shared.files("build")
    made = {name for name in first if name.startswith(("build/demo/", "build/kernels/"))}
    assert {name: first[name] for name in made} == {name: second.get(name) for name in made}
    assert shared.scons().counts[0] == 0


def test_a_changed_import_executes_those_that_import_it(shared: Project) -> None:
    shared.write("kernels/_helper.py", "X = 2\n")
    run = shared.scons()
    assert executed(shared) == ["kernels/add_one.py"]
    assert [line for line in run.stages if line.startswith("LOWER")] == [
        "LOWER add_one/default cuda",
        "LOWER add_one/default x86-64-v3",
    ]


def test_a_damaged_cache_costs_time_and_nothing_else(shared: Project, tmp_path: Path) -> None:
    entries = sorted((tmp_path / "cache").glob("??/*"))
    for number, entry in enumerate(entries):
        content = entry.read_bytes()
        entry.write_bytes([content[:-1], b"", content[::-1]][number % 3])
    run = shared.scons()
    assert "CACHED" not in run.labels and executed(shared) == ["kernels/add_one.py", "kernels/scale.py"]
    shutil.rmtree(shared.folder / "build")
    refuse(shared)
    assert set(shared.scons().labels) == {"CACHED", "PACKAGE"}


def test_an_edit_in_a_fresh_folder_runs_what_follows_from_it(shared: Project) -> None:
    refuse(shared)
    shared.scons()
    shared.write("SConstruct", SCONSTRUCT)
    shared.replace("kernels/scale.py", "T.cast(2.0, dtype)", "T.cast(3.0, dtype)")
    run = shared.scons()
    assert executed(shared) == ["kernels/scale.py"]
    assert run.labels["LOWER"] == 4 and "PACKAGE" in run.labels
    assert not any("add_one" in line for line in run.stages)
    assert shared.scons().counts[0] == 0


def test_all_that_can_be_asked_for_works_in_a_fresh_folder(shared: Project) -> None:
    shared.scons()
    assert set(shared.scons("check").labels) == {"CHECK"}, "SCons finds all that came out of the cache up to date"
    assert shared.scons("--strict", ok=None).status in (0, 2)
    (shared.folder / "build/kernels/demo/scale/scale.so").write_bytes(b"")
    assert "scale.so" in shared.scons().output
    assert shared.scons().counts[0] == 0


def test_one_missing_entry_sends_its_definition_file_to_the_stages(shared: Project, tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "cache", 1 << 30)
    lost = [entry for _, _, entry in cache.entries() if b'"name":"scale.so"' in entry.read_bytes()[:1000]]
    assert len(lost) == 1
    lost[0].unlink()
    run = shared.scons()
    assert {label: count for label, count in run.labels.items() if label != "CACHED"} == {"LINK": 1, "PACKAGE": 1}
    assert executed(shared) == []


def test_kernels_of_an_earlier_build_are_left_to_the_stages(shared: Project) -> None:
    old = shared.write("build/kernels/demo/scale/default/mine.txt", "mine")
    refuse(shared)
    run = shared.scons()
    assert set(run.labels) == {"CACHED", "PACKAGE"} and not old.exists()


def test_only_what_is_asked_for_comes_out_of_the_cache(shared: Project) -> None:
    refuse(shared)
    run = shared.scons("scale")
    assert set(run.labels) == {"CACHED"} and not any("add_one" in line for line in run.stages)
    assert not (shared.folder / "build/kernels/demo/add_one").exists()


def test_a_link_among_the_folders_is_an_error_and_stays(shared: Project, tmp_path: Path) -> None:
    (shared.folder / "build/kernels").mkdir(parents=True)
    (tmp_path / "target").mkdir()
    (shared.folder / "build/kernels/demo").symlink_to(tmp_path / "target")
    run = shared.scons(ok=False)
    assert "is a symbolic link" in run.output and list((tmp_path / "target").iterdir()) == []


def test_a_new_tuning_table_is_not_overlooked(tmp_path: Path) -> None:
    settings = f'[tool.kernelwright]\ntargets = ["llvm"]\ncache_dir = "{tmp_path / "cache"}"\n'
    project = Project.of(tmp_path / "project", settings, scaled=tuned.SCALED)
    project.scons()
    shutil.rmtree(project.folder / "build")
    rules = tuned.tuned("float32", (None, {"block": 16}))
    project.write("tuning/scaled.x86-64-v3.any.json", tuned.table(rules))
    run = project.scons()
    assert "LOWER scaled/dtype-float32_block-16 x86-64-v3" in run.stages


def test_a_folder_of_somebody_is_refused_before_a_tool_is_probed(project: Project, tmp_path: Path) -> None:
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text() + f'cache_dir = "{tmp_path / "mine"}"\n')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    refuse(project)
    run = project.scons(fresh=True, ok=False)
    assert "the build cache cannot be in" in run.output
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
