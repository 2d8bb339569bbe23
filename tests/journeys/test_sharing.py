"""Days with several checkouts, branches and machines, and runs that are killed, wait, or find no room."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import allow_writing, obedient, small_disk
from support.moments import HANGS_AFTER_S, Gate, wait_for
from support.project import ADD, SCALE, SCONSTRUCT, Project

FILE = "kernels/scale.py"

REFUSE = """\
from kernelwright.processes import pool, runner
from kernelwright.toolchain import probe

def refuse(*arguments, **options):
    raise RuntimeError("a worker or a compiler is started, or nvcc is probed")

pool.ForkServer = probe.probe_nvcc = runner.ToolRunner.run = refuse
"""
"""The begin of a build file that starts no worker and no compiler."""


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gate for definitions, outside of the project."""
    with Gate(tmp_path_factory.mktemp("gate") / "gate") as gate:
        yield gate


def add_setting(project: Project, line: str) -> Project:
    path = project.folder / "pyproject.toml"
    path.write_text(f"{path.read_text()}{line}\n")
    return project


def test_branches_and_a_second_checkout_share_a_cache_and_a_moved_one_makes_nothing(cpu_project, tmp_path_factory):
    """What is imported inside of a definition is known only after the lowering, and here it differs by branch."""
    add_setting(cpu_project, f'cache_dir = "{tmp_path_factory.mktemp("shared") / "cache"}"')
    cpu_project.replace(FILE, "    @T.prim_func", "    from lib import FACTOR\n\n    @T.prim_func")
    cpu_project.replace(FILE, "T.cast(2.0", "T.cast(FACTOR")
    cpu_project.replace("SConstruct", 'env.Glob("kernels/*.py")', '["kernels/scale.py", "kernels/add_one.py"]')
    cpu_project.write("kernels/left.py", "FACTOR = 3.0\n")
    cpu_project.write("kernels/right.py", "FACTOR = 4.0\n")
    for branch, factor, lowered in (("left", 3, 3), ("right", 4, 2), ("left", 3, 0), ("right", 4, 0)):
        cpu_project.write("kernels/lib.py", f"from {branch} import FACTOR\n")
        run = cpu_project.scons("-j2")
        assert run.labels.get("LOWER", 0) == lowered, branch
        assert lowered or run.labels == {"CACHED": 3, "PACKAGE": 1}
        assert cpu_project.value() == factor
    second = Project(tmp_path_factory.mktemp("second"))
    ignored = shutil.ignore_patterns("build", ".sconsign*")
    shutil.copytree(cpu_project.folder, second.folder, dirs_exist_ok=True, ignore=ignored)
    second.replace("SConstruct", "from", REFUSE + "from")
    second.scons("-j2")
    names = ("build/demo", "build/kernels")
    assert second.files(*names) == cpu_project.files(*names) and second.value() == 4
    moved = Project(second.folder.rename(second.folder.with_name("moved")))
    assert moved.scons().stages == []
    copy = moved.folder.with_name("copy")
    shutil.copytree(moved.folder, copy, copy_function=shutil.copyfile)  # with other times
    run = Project(copy).scons()
    assert set(run.labels) <= {"CACHED"}, "what is imported late is known to the cache alone"


def test_ci_fills_a_remote_cache_and_another_machine_makes_only_what_it_has_edited(project, tmp_path_factory):
    remote = tmp_path_factory.mktemp("remote") / "cache"
    ci = add_setting(project, f'remote_cache = "{remote}"')
    assert "CACHED" not in ci.scons("-j2", "REMOTE_MODE=read-write").labels
    desk = ci.copied(tmp_path_factory.mktemp("machines") / "desk")
    shutil.rmtree(desk.folder / "build")
    desk.write("SConstruct", REFUSE + SCONSTRUCT)
    before = sorted(remote.rglob("*"))
    assert set(desk.scons("-j2").labels) == {"CACHED", "PACKAGE"}
    assert desk.files("build/demo") == ci.files("build/demo") and sorted(remote.rglob("*")) == before
    assert desk.value() == 2 and desk.scons().stages == []
    desk.write("SConstruct", SCONSTRUCT)
    desk.replace(FILE, "T.cast(2.0", "T.cast(3.0")
    assert desk.scons("-j2").labels == {"CUBIN": 2, "LINK": 1, "LOWER": 4, "PACKAGE": 1, "PTX": 2}
    assert sorted(remote.rglob("*")) == before and desk.value() == 3


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_build_is_ended_in_the_middle_and_what_it_left_is_not_taken_for_the_build_before(cpu_project, gate, ending):
    cpu_project.built("-j2")
    library = cpu_project.folder / "build/kernels/demo/scale/scale.so"
    before = library.read_bytes()
    cpu_project.replace(FILE, "T.cast(2.0", "T.cast(3.0")
    stops = ADD.replace("add_one", "zz_stops").replace("    n = te", f"    {gate.python}\n    n = te")
    cpu_project.write("kernels/zz_stops.py", stops)
    process = cpu_project.start("-j2")
    gate.wait()
    wait_for(lambda: library.exists() and library.read_bytes() != before, "the other kernel is not built")
    process.send_signal(ending)
    process.communicate()
    assert process.returncode == (2 if ending == signal.SIGINT else -ending)
    (cpu_project.folder / "kernels/zz_stops.py").unlink()
    cpu_project.write(FILE, SCALE)
    cpu_project.scons("-j2")
    assert cpu_project.value() == 2 and library.read_bytes() == before
    assert cpu_project.scons("-j2").stages == []


def test_two_runs_in_one_tree_and_an_edit_meanwhile(cpu_project: Project, gate: Gate) -> None:
    cpu_project.replace(FILE, "    @T.prim_func", f"    {gate.python}\n\n    @T.prim_func")
    text = (cpu_project.folder / FILE).read_text()
    first = cpu_project.start("-Q")
    gate.wait()
    refused = cpu_project.scons("--no-wait", ok=False)
    assert "another scons works in this tree" in refused.output and "--no-wait" in refused.output
    second = cpu_project.start("-Q")
    assert second.stdout is not None
    said = [next(line for line in second.stdout if "another scons works in this tree, waiting" in line)]
    assert first.poll() is None
    cpu_project.write(FILE, text.replace("T.cast(2.0", "T.cast(9.0"))
    gate.open()
    output = first.communicate(timeout=HANGS_AFTER_S)[0]
    assert first.returncode == 2 and "edited meanwhile" in output
    said += second.communicate(timeout=HANGS_AFTER_S)[0].splitlines()
    assert second.returncode == 0 and cpu_project.value() == 9, said
    third = cpu_project.start("-Q")
    assert "[ " not in third.communicate(timeout=HANGS_AFTER_S)[0] and third.returncode == 0


def test_what_may_not_be_read_or_written_is_named_and_nothing_is_spoilt(cpu_project: Project) -> None:
    cpu_project.built("-j2")
    whole = cpu_project.files("build/demo", "build/kernels")

    def attempt() -> tuple[int, str]:
        run = cpu_project.start(command=obedient())
        output = run.communicate(timeout=HANGS_AFTER_S)[0]
        assert 'File "' not in output, output
        return run.returncode, output

    path = cpu_project.folder / FILE
    path.chmod(0)
    status, output = attempt()
    assert status == 2 and "kernels/scale.py [discover]" in output and "Permission denied" in output
    assert "remedy: give yourself the right to read it: chmod u+r kernels/scale.py" in output
    path.chmod(0o644)
    for name, factor in (("build/.kernelwright", 3), ("build/kernels/demo/scale", 4)):
        cpu_project.write(FILE, SCALE.replace("T.cast(2.0", f"T.cast({factor}.0"))
        allow_writing(cpu_project.folder / name, False)
        status, output = attempt()
        assert status == 2 and "Permission denied" in output and str(cpu_project.folder / name) in output
        allow_writing(cpu_project.folder / name, True)
        cpu_project.scons("-j2")
        assert cpu_project.value() == factor
    journal = cpu_project.folder / "build/.kernelwright/journal"
    cpu_project.write(FILE, SCALE.replace("T.cast(2.0", "T.cast(5.0"))
    allow_writing(journal, False)
    status, output = attempt()
    assert status == 0 and cpu_project.value() == 5
    assert re.search(rf"could not be kept: Permission denied \({re.escape(str(journal))}/\w+.jsonl\)", output), output
    allow_writing(journal, True)
    cpu_project.write(FILE, SCALE)
    cpu_project.scons("-j2")
    assert cpu_project.files("build/demo", "build/kernels") == whole
    assert cpu_project.scons("-j2").stages == []


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small", "64m") as folder:
        yield folder


def used_kib(top: Path) -> int:
    status = os.statvfs(top)
    return (status.f_blocks - status.f_bfree) * status.f_frsize // 1024


def test_a_full_disk_is_an_error_wherever_it_fills_up_and_no_harm_afterwards(project, disk, tmp_path_factory):
    """What one run has made, the next one need not make, so that each fills the disk at another place."""
    cache = tmp_path_factory.mktemp("cache") / "cache"
    words = ("-j2", "--cache-readonly", f"CACHE_DIR={cache}")
    project.scons("-j2", f"CACHE_DIR={cache}")
    whole = project.files("build/demo", "build/kernels")
    ignored = shutil.ignore_patterns("build")
    small = Project(Path(shutil.copytree(project.folder, disk, dirs_exist_ok=True, ignore=ignored)))
    (disk / "build/.kernelwright").mkdir(parents=True)
    shutil.copy(project.folder / "build/.kernelwright/toolchain.json", disk / "build/.kernelwright")
    stages, start = set(), used_kib(disk)
    for kib in range(start + 16, start + 2000, 40):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", disk], check=True)
        run = small.scons(*words, ok=None)
        if run.status == 0 and "No space left" not in run.output:
            break
        assert "No space left on device" in run.output and f"({disk}/build" in run.output, run.output
        stages |= set(re.findall(r"^scons: \*\*\* \[.*\[(\w+)\]: the operating system said", run.output, re.M))
    assert len(stages) >= 3 and "assemble" in stages, stages
    subprocess.run(["mount", "-o", f"remount,size={used_kib(disk) + 200}k", disk], check=True)
    (disk / "build/kernels/demo/scale/dtype-float32/cuda/compute_80.ptx").unlink()
    run = small.scons("-j2", "CACHE_DIR=", ok=False)  # a compiler fills it
    assert "No space left on device" in run.output and "remedy: make room on the disk" in run.output
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    small.scons(*words)
    assert small.files("build/demo", "build/kernels") == whole
    assert small.scons(*words).stages == []
