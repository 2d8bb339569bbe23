"""How a stage is run: all of its outputs or none, the build cache, and what becomes of its errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")

import SCons.Errors
import SCons.Node
import SCons.Script.Main
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.files import sha256_of
from kernelwright.core.pipeline import KINDS
from kernelwright.scons.package import StageAction
from kernelwright.scons.progress import Progress
from kernelwright.scons.run import BuildRun
from kernelwright.stages.execution import publish
from kernelwright.stages.partial import Partial
from kernelwright.stages.stage import Stage
from kernelwright.stages.stage_run import StageRun
from kernelwright.state.cache import BuildCache
from support.scons_tree import new_run

WHERE = Where("gemm", "m-1", "nvcc", "kernels/gemm.py:4")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildRun:
    """A run whose journal and cache are real, and that shows nothing."""
    run = new_run(tmp_path, monkeypatch)
    vars(run.caches)["build"] = BuildCache(tmp_path / "cache", 1 << 20)
    run.progress = run.outcome._progress = Progress(silent=True)
    run.__dict__["trace"] = SimpleNamespace(span=lambda *arguments, **keywords: None)
    return run


def writing(**contents: str) -> Callable[..., None]:
    """What makes files of these names, without the ending."""

    def make(scratch: Path, stage: StageRun) -> None:
        for name, text in contents.items():
            (scratch / f"{name}.out").write_text(text)

    return make


def a_stage(run: BuildRun, make: Callable[..., None], **fields: Any) -> Stage:
    """A stage that is to make ``a.out`` and ``b.out`` in a folder that does not exist yet."""
    outputs = {name: f"{run.top}/build/kernels/demo/gemm/m-1/{name}" for name in ("a.out", "b.out")}
    source = run.top / "source.txt"
    source.write_text("source")
    given = {"label": "CUBIN", "subject": "gemm/m-1 sm_80", "where": WHERE, "request": {}, "sources": [str(source)]}
    stage = Stage(**{**given, "instead": make, "outputs": outputs, **fields})
    run.nodes.nodes_of(stage)  # SCons has them before it runs anything
    return stage


def contents(stage: Stage) -> dict[str, str]:
    return {path.name: path.read_text() for path in map(Path, stage.paths) if path.exists()}


def executed(stage: Stage, run: BuildRun) -> Any:
    """What SCons is told when it runs the stage."""
    return StageAction(stage, run).execute(run.nodes.nodes_of(stage), list(map(run.nodes.node, stage.sources)), run.env)


def must_not_run(*given: Any) -> None:
    raise AssertionError("the stage ran")


# --- Outputs


def test_a_stage_that_makes_one_output_of_two_has_made_none(run):
    stage = a_stage(run, writing(a="1"))
    told = executed(stage, run)
    assert isinstance(told, SCons.Errors.BuildError)
    assert "the stage did not make b.out" in told.errstr
    assert contents(stage) == {} and not stage.published
    assert run.cache.fetch(stage.cache_key(run.journal.digest), run.top, ["a.out", "b.out"], lambda name: "") is None


def test_what_stands_where_an_output_is_to_be_is_replaced_unless_it_is_a_folder_with_something_in_it(run):
    stage = a_stage(run, writing(a="1", b="2"))
    first, second = map(Path, stage.paths)
    first.mkdir(parents=True)
    second.symlink_to(run.top / "source.txt")
    publish(stage, run)
    assert contents(stage) == {"a.out": "1", "b.out": "2"} and not second.is_symlink()
    assert (run.top / "source.txt").read_text() == "source"
    first.unlink()
    first.mkdir()
    (first / "mine").write_text("mine")
    told = executed(a_stage(run, writing(a="3", b="4")), run)
    assert told is not None and (first / "mine").read_text() == "mine"


# --- The build cache


def test_a_stage_that_may_not_be_kept_is_neither_stored_nor_fetched(run):
    publish(a_stage(run, writing(a="1", b="2"), cacheable=False), run)
    assert not (run.top / "cache").exists()
    publish(a_stage(run, writing(a="1", b="2")), run)
    fresh = a_stage(run, writing(a="3", b="4"), cacheable=False)
    publish(fresh, run)
    assert contents(fresh) == {"a.out": "3", "b.out": "4"}


def test_what_a_stage_read_is_kept_with_its_outputs_and_remembered_when_they_are_fetched(run):
    (run.top / "table.txt").write_text("1")
    read = {"table.txt": sha256_of(run.top / "table.txt")}
    publish(a_stage(run, writing(a="1", b="2"), later=read), run)
    noted: list[Any] = []
    again = a_stage(run, must_not_run, note=lambda read: noted.append(read) or read)
    publish(again, run)
    assert noted == [read] and again.later == read
    (run.top / "table.txt").write_text("2")
    edited = a_stage(run, writing(a="3", b="4"), note=noted.append)
    publish(edited, run)
    assert not edited.cached and len(noted) == 1


# --- Errors


def raising(error: Exception) -> Callable[..., None]:
    def make(*given: Any) -> None:
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KernelwrightError("it is wrong", WHERE, "mend it"), ["gemm/m-1 [nvcc]: it is wrong", "remedy: mend it"]),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ["No space left on device (", "/m-1/a.out)"]),
        (ZeroDivisionError("by zero"), ["an unexpected ZeroDivisionError: by zero", "report this as a defect"]),
    ],
)
def test_every_failure_ends_scons_with_status_2_and_the_whole_message(run, error, told):
    failed = executed(a_stage(run, raising(error)), run)
    assert isinstance(failed, SCons.Errors.BuildError)
    assert (failed.status, failed.exitstatus) == (2, 2)
    for part in (*told, "kernels/gemm.py:4"):
        assert part in failed.errstr
    assert run.outcome.counts["failed"] == 1


# --- What a partial build does without


@pytest.fixture
def partial_run(run: BuildRun, monkeypatch: pytest.MonkeyPatch) -> BuildRun:
    """The same with ``--partial``."""
    run.partial = run.outcome._partial = Partial(run.top)
    monkeypatch.setattr(SCons.Script.Main, "exit_status", 0)
    monkeypatch.setattr(SCons.Script.Main, "this_build_status", 0)
    return run


def after(stage: Stage, run: BuildRun, make: Callable[..., None], **fields: Any) -> Stage:
    """A stage that needs the outputs of another one."""
    outputs = {"c.out": f"{run.top}/build/kernels/demo/gemm/c.out"}
    return a_stage(run, make, **{"outputs": outputs, "sources": stage.paths, "label": "LINK", **fields})


TOLERATED = ("DISCOVER", "LOWER", "CUBIN", "PTX", "TEXT", "OBJECT", "FATBIN", "WRAP", "CC")
TOLERATED += ("EXT", "SOURCES", "ENTRY", "LINK", "TORCH")


@pytest.mark.parametrize("label", [label for label, kind in KINDS.items() if kind.module])
def test_what_a_package_can_do_without_may_fail_and_all_else_ends_the_build(partial_run, label):
    stage = a_stage(partial_run, raising(KernelwrightError("no", WHERE)), label=label, logs=partial_run.top / "failed")
    failed = executed(stage, partial_run)
    assert (failed is None) == (label in TOLERATED) == partial_run.partial.lacks(stage.paths[0])
    assert SCons.Script.Main.exit_status == (2 if label in TOLERATED else 0), "SCons itself sets it for what fails"
    assert not {"PACKAGE", "WHEEL", "CHECK"} & set(TOLERATED)
    assert partial_run.outcome.counts["failed"] == 1


def test_a_stage_that_goes_on_without_a_source_has_that_in_its_signature_and_is_not_kept(partial_run):
    first = a_stage(partial_run, raising(KernelwrightError("no", WHERE)), logs=partial_run.top / "failed")
    second = after(
        first, partial_run, lambda scratch, stage: (scratch / "c.out").write_text("partial"), rest=lambda: True
    )
    action = StageAction(second, partial_run)
    complete = action.get_presig([], [], None)
    executed(first, partial_run)
    assert executed(second, partial_run) is None and contents(second) == {"c.out": "partial"}
    assert action.get_presig([], [], None) != complete
    assert not (partial_run.top / "cache").exists()


def test_what_was_not_made_has_no_content_in_the_journal(partial_run):
    first = a_stage(partial_run, writing(a="1", b="2"))
    publish(first, partial_run)
    error = raising(KernelwrightError("no", WHERE))
    failing = a_stage(partial_run, error, logs=partial_run.top / "failed", request={"arch": "sm_90"})
    executed(failing, partial_run)
    assert [partial_run.journal.output(path) for path in failing.paths] == [None, None]


# --- Outputs that somebody changed


@pytest.mark.parametrize("mode", ["help", "clean", "no_exec", "question"])
def test_a_run_that_only_shows_something_removes_nothing_and_takes_no_lock(run, monkeypatch, mode):
    monkeypatch.setattr("SCons.Script.GetOption", lambda name: name == mode)
    stage = a_stage(run, must_not_run)
    first = Path(stage.paths[0])
    first.parent.mkdir(parents=True)
    first.write_text("of somebody")
    run.add(stage)
    run.lock()
    assert first.read_text() == "of somebody"
    assert not (run.state / "lock").exists() and not run.journal.writable
