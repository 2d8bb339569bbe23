"""What packages of a run share, and which kernels a run need not look at: locks, links, the cache, settled kernels."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")

import SCons.Node
import SCons.Script
from kernelwright.core.errors import KernelwrightError, SettingsError, Where
from kernelwright.core.files import open_lock
from kernelwright.core.shard import shard_of
from kernelwright.define.settings import Settings
from kernelwright.scons import definitions, restored, settling, tool
from kernelwright.scons import package as package_module
from kernelwright.scons.caches import FLUSH_S, INTERRUPTED_S
from kernelwright.scons.definitions import Unsettled
from kernelwright.scons.graph import PackageGraph
from kernelwright.scons.package import Package, asked_of
from kernelwright.scons.run import BuildRun
from kernelwright.scons.settling import Settling
from kernelwright.stages import discovery
from kernelwright.stages.package import remove_unknown
from kernelwright.state.counts import Counts
from kernelwright.state.settled import Settled
from kernelwright.toolchain.distribution import Distribution
from support.scons_tree import FILE, GEMM, TOOLS, Inputs, graph_of, make_all, new_graph, new_run, stages_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildRun:
    return new_run(tmp_path, monkeypatch)


def choose(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Have options of the command line; all others are not given."""
    monkeypatch.setattr(SCons.Script, "GetOption", lambda name: options.get(name))


# --- The lock


def test_a_tree_in_which_another_run_works_is_refused_or_waited_for(run, monkeypatch):
    other = os.fdopen(open_lock(run.state / "lock"), "w")
    fcntl.flock(other, fcntl.LOCK_EX)
    run.tree._note = lambda text: other.close()  # it ends while it is waited for
    choose(monkeypatch, kernelwright_no_wait=True)
    with pytest.raises(KernelwrightError, match="another scons works in this tree"):
        run.lock()
    assert not run.journal.writable
    choose(monkeypatch)
    run.lock()
    assert run.journal.writable
    with (run.state / "lock").open("a") as late, pytest.raises(BlockingIOError):
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)


# --- Links in the build folder


def test_a_link_anywhere_below_the_build_folder_is_refused_and_the_folder_itself_may_be_one(run, tmp_path):
    disk = tmp_path / "disk"
    (disk / "kernels").mkdir(parents=True)
    (tmp_path / "build").symlink_to(disk)
    inner = f"{tmp_path}/build/kernels/demo/gemm"
    run.require_folders([f"{tmp_path}/build/kernels", inner, "/somewhere/else", str(tmp_path)])
    (disk / "kernels" / "demo").symlink_to(tmp_path)
    for folder in (inner, f"{tmp_path}/build/kernels/demo"):
        with pytest.raises(KernelwrightError, match=r"build/kernels/demo is a symbolic link"):
            run.require_folders([f"{tmp_path}/build/kernels", folder])
    # A folder of builds that is in another one is no way around that.
    run.tree.bases.add(f"{tmp_path}/build/kernels/demo")
    with pytest.raises(KernelwrightError, match=r"build/kernels/demo is a symbolic link"):
        run.require_folders([inner])


def test_what_was_not_made_is_removed_and_nothing_that_a_link_leads_to(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    for name in ("outside", "top/kept", "top/gone/in"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("outside/mine", "top/kept/a", "top/kept/b", "top/gone/in/c"):
        (tmp_path / name).touch()
    (top / "link").symlink_to(outside)
    (top / "kept" / "dangling").symlink_to("nowhere")
    remove_unknown(top, [str(top / "kept" / "a")])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("outside", "outside/mine", "top", "top/kept", "top/kept/a")
    ]


# --- Settings that packages share


def test_the_most_patient_package_sets_the_time_limits_and_other_settings_of_the_run_are_given_once(run):
    for worker, compiler in ((100.0, 10.0), (400.0, 9000.0), (200.0, 20.0)):
        run.allow(Settings(package="demo", worker_timeout=worker, tool_timeout=compiler), ["worker_timeout"])
        for name in ("pool", "compilers"):
            vars(run.processes).setdefault(name, SimpleNamespace(timeout_s=None))
    assert (run.pool.timeout_s, run.compilers.timeout_s) == (400.0, 9000.0)
    for name in ("TILE", "WIDTH"):
        run.allow(Settings(package="demo", environment=(name,)), ["environment"])
    assert run.pool.variables == ("TILE", "WIDTH"), "those of all packages"
    other = Settings(package="other", cache_dir="elsewhere")
    run.allow(other, [])  # where it is not the package that says so
    run.allow(Settings(package="other"), ["cache_dir"])
    run.allow(replace(other, glibc="2.31"), ["glibc"])
    with pytest.raises(SettingsError, match="cache_dir is 'elsewhere', and 'build/"):
        run.allow(other, ["cache_dir"])
    with pytest.raises(SettingsError, match="remote_cache is 'shared', and '' for demo"):
        run.allow(Settings(package="other", remote_cache="shared"), ["remote_cache"])


def test_the_command_line_wins_over_variables_and_these_over_the_package_and_pyproject(monkeypatch):
    choose(monkeypatch)
    table = {"remote_mode": "read", "remote_cache": "of the project", "cache_size": "1M", "package": "demo"}
    env = {"KERNELWRIGHT_TABLE": table, "KERNELWRIGHT_REMOTE_MODE": "read-write", "KERNELWRIGHT_REMOTE_CACHE": "/typed"}

    def chosen() -> tuple[str, str, str]:
        found = tool._settings(env, None, {"cache_size": "2M", "remote_cache": "/of/the/package"})
        return found.remote_cache, found.remote_mode, found.cache_size

    for name in ("CACHE", "MODE", "LAYOUT"):
        monkeypatch.delenv(f"KERNELWRIGHT_REMOTE_{name}", raising=False)
    monkeypatch.setattr(SCons.Script, "ARGUMENTS", {})
    assert chosen() == ("/of/the/package", "read", "2M")
    monkeypatch.setenv("KERNELWRIGHT_REMOTE_CACHE", "/of/the/shell")
    assert chosen() == ("/of/the/shell", "read", "2M")
    monkeypatch.setattr(SCons.Script, "ARGUMENTS", {"REMOTE_CACHE": "/typed", "REMOTE_MODE": "read-write"})
    assert chosen() == ("/typed", "read-write", "2M")


def test_the_cache_has_the_size_of_the_settings_and_may_be_read_only_or_absent(tmp_path, monkeypatch):
    shared = Settings(package="demo", cache_dir="shared", cache_size="3M")
    cache = new_run(tmp_path, monkeypatch, shared).cache
    assert cache is not None
    assert (cache._folder, cache._limit, cache._writable) == (tmp_path / "shared", 3 << 20, True)
    choose(monkeypatch, cache_readonly=True)
    cache = new_run(tmp_path, monkeypatch, shared).cache
    assert cache is not None and not cache._writable
    choose(monkeypatch, cache_disable=True)
    assert new_run(tmp_path, monkeypatch, shared).cache is None
    choose(monkeypatch)
    assert new_run(tmp_path, monkeypatch, Settings(package="demo", cache_dir="")).cache is None


OWN_CACHE = "build/.kernelwright/cache"


@pytest.mark.parametrize("place", ["build", "build/demo", "build/.kernelwright", OWN_CACHE, f"{OWN_CACHE}/x"])
def test_a_cache_among_outputs_is_refused_also_through_a_link_and_its_own_place_is_not(tmp_path, monkeypatch, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / "elsewhere").symlink_to(tmp_path / place)
    for name in (place, "elsewhere"):
        run = new_run(tmp_path, monkeypatch, Settings(package="demo", cache_dir=name))
        if place == OWN_CACHE:
            assert run.cache is not None
        else:
            with pytest.raises(SettingsError, match="builds write into build"):
                run.caches.require()


def test_at_the_end_all_that_was_found_out_is_kept(run, monkeypatch):
    kept = []
    run.lock()
    run.settle.append(lambda: kept.append("settled"))
    run.journal.close = lambda: kept.append("journal")
    vars(run.caches)["build"] = SimpleNamespace(trim=lambda: kept.append("cache"), problem=None)
    vars(run.processes)["compilers"] = SimpleNamespace(save=lambda: kept.append("measurements"), close=lambda: None)
    run.outcome.settled = 1
    run._close()
    assert sorted(kept) == ["cache", "journal", "measurements", "settled"]
    choose(monkeypatch, no_exec=True)
    run._close()
    assert len(kept) == 4, "a run that only shows something keeps nothing"


@pytest.mark.parametrize("when", ["its children end", "it keeps what it found out"])
def test_whoever_interrupts_the_end_of_a_run_sees_no_traceback(run, capsys, when):
    closed = []
    interrupts = iter([KeyboardInterrupt])

    def interrupt() -> None:
        for error in interrupts:
            raise error

    def close(patience_s: float) -> None:
        closed.append(patience_s)
        run.caches.remote.is_closed = True

    vars(run.caches)["remote"] = SimpleNamespace(is_closed=False, close=close, counts=Counts())
    if when == "its children end":
        vars(run.processes)["pool"] = SimpleNamespace(close=interrupt)
    run.settle.append(interrupt)
    run.outcome.settled = 1
    run._close()
    assert "kernelwright: interrupted at its end" in capsys.readouterr().err
    assert closed == [INTERRUPTED_S], "what the remote cache is to get is written, or left out with a line"


def test_however_often_a_run_is_interrupted_its_requests_end_before_it(run):
    waited = []

    def close(patience_s: float) -> None:
        waited.append(patience_s)
        if len(waited) < 4:
            raise KeyboardInterrupt
        run.caches.remote.is_closed = True

    vars(run.caches)["remote"] = SimpleNamespace(is_closed=False, close=close, counts=Counts())
    run.caches.close(interrupted=False)
    assert waited == [FLUSH_S, 0, 0, 0]


def test_a_long_error_that_many_stages_have_is_shown_once(run):
    def error(line: int, detail: str | None) -> KernelwrightError:
        return KernelwrightError("no worker has it", Where(location=f"a.py:{line}"), "start one", detail)

    first, again, other, short = error(1, "needed: x"), error(2, "needed: x"), error(3, "needed: y"), error(4, None)
    assert run.outcome.text_of(first) == str(first) and run.outcome.text_of(other) == str(other)
    assert run.outcome.text_of(again) == "a.py:2: no worker has it (its details are shown once)"
    assert [run.outcome.text_of(short), run.outcome.text_of(short)] == [str(short)] * 2, "there is nothing to leave out"


def test_the_remedy_of_an_error_that_all_variants_of_a_kernel_have_is_shown_once(run):
    errors = [KernelwrightError("no module 'x'", Where("scale", variant), "install it") for variant in ("a", "b")]
    assert [run.outcome.text_of(error) for error in errors] == [
        "scale/a: no module 'x'\n  remedy: install it",
        "scale/b: no module 'x' (its remedy is shown once)",
    ]


# --- Packages, and settled kernels


def test_a_second_package_of_the_same_name_is_refused(tmp_path, monkeypatch):
    graph = new_graph(tmp_path, monkeypatch, Inputs())
    with pytest.raises(SettingsError, match="a package of that name exists already"):
        Package(graph.run.env, graph.run, graph.package.settings, [])
    Package(graph.run.env, graph.run, replace(graph.package.settings, package="other"), [])


def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs | None = None) -> str:
    return new_graph(tmp_path, monkeypatch, inputs or Inputs()).package.key


KEYS = {
    "a setting": Inputs(Settings(package="demo", nvcc_flags=("-lineinfo",))),
    "a limit": Inputs(Settings(package="demo", max_registers=0)),
    "another limit": Inputs(Settings(package="demo", max_spills=0)),
    "CUDA of another family": Inputs(Settings(package="demo", cross_cuda="arm/cuda")),
    "the order of backends": Inputs(Settings(package="demo", backends=("cython", "tvm_ffi"))),
    "TVM": Inputs(tools=replace(TOOLS, lowerer=replace(TOOLS.lowerer, identity="other"))),
    "tvm-ffi": Inputs(tools=replace(TOOLS, lowerer=replace(TOOLS.lowerer, tvm_ffi="0.1.16"))),
    "nvcc": Inputs(tools=replace(TOOLS, nvcc=replace(TOOLS.nvcc, identity="other"))),
    "the C compiler": Inputs(tools=replace(TOOLS, host_compiler=replace(TOOLS.host_compiler, identity="other"))),
    "strictness": Inputs(strict=True),
}


@pytest.mark.parametrize("name", [*KEYS, "own_code", "VERSION"])
def test_no_kernel_is_settled_under_other_settings_or_tools_or_another_code_of_ours(tmp_path, monkeypatch, name):
    before = key(tmp_path, monkeypatch)
    assert key(tmp_path, monkeypatch) == before
    if name not in KEYS:
        monkeypatch.setattr(package_module, name, "other" if name == "VERSION" else lambda: "other")
    assert key(tmp_path, monkeypatch, KEYS.get(name)) != before


def test_another_gpu_place_file_of_configs_or_cute_dsl_settles_nothing_and_what_changes_nothing_leaves_all(
    tmp_path, monkeypatch
):
    keys = {key(tmp_path, monkeypatch)}
    place = SimpleNamespace(get_abspath=lambda: f"{tmp_path}/elsewhere")
    others = {"has_gpu": False, "configured": SimpleNamespace(content=b"{}")}
    for name, other in {**others, "work": place, "folder": place, "checks": place}.items():
        graph = new_graph(tmp_path, monkeypatch, Inputs())
        vars(graph.package)[name] = other
        keys.add(graph.package.key)
    graph = new_graph(tmp_path, monkeypatch, Inputs())
    graph.package.tools.__dict__["of_front_ends"] = {"cutedsl": Distribution("4", "other")}
    keys.add(graph.package.key)
    assert len(keys) == 7
    other = Settings(package="demo", worker_timeout=1.0, memory_limit="1G", cache_dir="", max_wheel_size="1M")
    assert key(tmp_path, monkeypatch, Inputs(other)) == key(tmp_path, monkeypatch)


def finished(graph: PackageGraph) -> Any:
    return Settling(graph.package).finished(FILE, graph.definitions.kernels["gemm"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageGraph:
    """A package of one kernel for the CPU, all of which is made."""
    graph = graph_of(tmp_path, monkeypatch, Inputs(Settings(package="demo", targets=("llvm",))))
    make_all(graph)
    return graph


def test_a_kernel_is_finished_when_all_of_it_was_made_and_its_checks_count_when_all_were_done(package):
    whole = finished(package)
    assert whole.stages == 5 and whole.checks == 2 and whole.backends == ["tvm_ffi"]
    launcher = Path(package.package.launcher_stage.paths[0])
    assert set(whole.products) == {"_lib/gemm.so", f"_lib/{launcher.name}"}
    own = [path for stage in package.definitions.kernels["gemm"].stages for path in stage.paths]
    assert {package.run.top / path for path in whole.outputs} == {*map(Path, own), launcher}
    for node in package.run.nodes.nodes_of(package.definitions.kernels["gemm"].stages[0]):
        node.set_state(SCons.Node.up_to_date)
    assert finished(package) == whole
    package.run.nodes.node_of(stages_of(package)["CHECK gemm/m-2 cpu"]).set_state(SCons.Node.failed)
    assert finished(package).checks == 0
    package.run.partial = SimpleNamespace(lacks=lambda path: path == package.definitions.kernels["gemm"].entry)
    assert finished(package) is None


@pytest.mark.parametrize("state", [SCons.Node.failed, SCons.Node.no_state, SCons.Node.pending, SCons.Node.executing])
def test_a_kernel_of_which_one_stage_was_not_done_is_not_finished(package, state):
    for stage in package.definitions.kernels["gemm"].stages:
        package.run.nodes.node_of(stage).set_state(state)
        assert finished(package) is None, stage.label
        package.run.nodes.node_of(stage).set_state(SCons.Node.executed)
    assert finished(package) is not None


def taken(graph: PackageGraph, state: Settled) -> tuple[list[str], dict[str, Any]]:
    """The definition files to look into and the settled kernels, if an earlier run wrote this."""
    graph.package.asked = asked_of(graph.package.settings, graph.run)
    taking = Settling(graph.package)
    taking.before = state
    return taking.take_settled(), taking.kernels


def settled_state(package: PackageGraph, **fields: Any) -> Settled:
    """What an earlier run wrote of the package."""
    kernel = finished(package)
    stamps = {FILE: [1, 2, 3, 4]}
    return Settled("key", {FILE: stamps}, {FILE: []}, {"gemm": replace(kernel, **fields)})


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The groups of files whose stamps are not as they were: ``sources``, ``outputs`` or ``checks``."""
    changed: set[str] = set()

    def is_current(top: str, stamps: dict[str, Any]) -> bool:
        name = next(iter(stamps))
        group = "sources" if name == FILE else "checks" if "/check/" in name else "outputs"
        return group not in changed

    monkeypatch.setattr(settling, "is_current", is_current)
    monkeypatch.setattr(SCons.Script, "COMMAND_LINE_TARGETS", [])
    return changed


@pytest.mark.parametrize("group", ["sources", "outputs", "nothing is known"])
def test_a_kernel_is_looked_at_if_a_file_that_decides_it_or_an_output_changed_or_is_not_known(package, current, group):
    state = settled_state(package)
    state.files[FILE]["../include/a.h"] = [1, 2, 3, 4]
    assert taken(package, state) == ([], state.kernels)
    assert package.package.outside == {"../include/a.h"}, "what a wheel says of its source counts it"
    if group == "nothing is known":
        state.files = {}
    current.add(group)
    assert taken(package, state) == ([FILE], {})


def test_checks_are_looked_at_only_when_they_are_asked_for(package, current, monkeypatch):
    state, unchecked = settled_state(package), settled_state(package, checks=0)
    current.add("checks")
    assert taken(package, state)[0] == [] and taken(package, unchecked)[0] == []
    monkeypatch.setattr(SCons.Script, "COMMAND_LINE_TARGETS", ["check"])
    assert taken(package, state)[0] == [FILE] and taken(package, unchecked)[0] == [FILE]
    current.clear()
    assert taken(package, state)[0] == [] and taken(package, unchecked)[0] == [FILE]


@pytest.mark.parametrize("target", ["build/kernels/demo/gemm/gemm.so", "compile_commands", "--strict", "--tree=all"])
def test_every_kernel_has_its_nodes_where_these_are_asked_for(package, current, monkeypatch, target):
    state = settled_state(package)
    if target.startswith("--"):
        package.run.strict = target == "--strict"
        choose(monkeypatch, tree_printers=None if target == "--strict" else ["all"])
    else:
        monkeypatch.setattr(SCons.Script, "COMMAND_LINE_TARGETS", [target])
    assert taken(package, state) == ([FILE], {})


def test_a_table_that_is_new_for_any_kernel_of_a_file_has_the_file_looked_into(package, current):
    state = settled_state(package)
    state.kernels["other"] = replace(state.kernels["gemm"])
    vars(package.package)["tables"] = {"other": ("tuning/other.sm_80-108.json",)}
    assert taken(package, state) == ([FILE], {})
    state.files[FILE]["tuning/other.sm_80-108.json"] = [1, 2, 3, 4]
    assert taken(package, state) == ([], state.kernels)


@pytest.mark.parametrize("targets", ["", "demo", "wheel"])
@pytest.mark.parametrize("more", ["", "check", "gemm", "sass"])
def test_whole_kernels_come_out_of_the_cache_where_no_more_is_asked_of_them(run, monkeypatch, targets, more):
    monkeypatch.setattr(SCons.Script, "COMMAND_LINE_TARGETS", f"{targets} {more}".split())
    assert asked_of(Settings(package="demo"), run).restored == (not more)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_shard_has_the_tables_of_its_own_kernels(tmp_path, monkeypatch, count):
    package = new_graph(tmp_path, monkeypatch, Inputs()).package
    package.run.shards.shard = shard_of("gemm", count)
    names = ["gemm", *(f"k{number}" for number in range(9))]
    (tmp_path / "tuning").mkdir()
    for name in names:
        (tmp_path / f"tuning/{name}.sm_80-108.json").touch()
    assert [*package.tables] == [name for name in names if shard_of(name, count) == shard_of("gemm", count)]


@pytest.mark.parametrize("name", ["tiles.py", "/usr/include/a.h", "/home/me/a.h"])
def test_finished_kernels_are_given_to_others_if_these_can_compare_all_of_it(package, name):
    stages_of(package)["LOWER gemm/m-1 x86-64-v3"].later = {name: "1"}
    kernels = {"gemm": package.definitions.kernels["gemm"]}
    taking, given = Settling(package.package), []
    taking.restored = SimpleNamespace(keep=lambda file, *rest: given.append(file))
    file = Unsettled(replace(Inputs().definition, shared=True), kernels)
    taking._share(file, {"gemm": finished(package)})
    assert given == ([] if name.startswith("/home") else [FILE])


def test_finished_kernels_are_asked_for_with_all_that_their_definition_may_see(run, monkeypatch):
    def question(file: str = FILE, key: str = "key", python: str = "3.11", content: str = "1") -> str:
        monkeypatch.setattr(restored, "interpreter", lambda: [python])
        monkeypatch.setattr(restored, "dependency_digest", lambda top, name: content)
        return str(restored.RestoredKernels(run, key, "work", ())._question(file))

    others = question("other.py"), question(key="other"), question(python="3.12"), question(content="2")
    assert len({question(), *others}) == 5


def test_finished_kernels_are_given_to_others_if_each_output_of_each_stage_is_known(package, monkeypatch):
    stages, given = package.definitions.kernels["gemm"].stages, []
    monkeypatch.setattr(restored.RestoredKernels, "_stage", lambda self, *of: None)
    monkeypatch.setattr(restored, "Finished", lambda *what: what)
    monkeypatch.setattr(restored.RestoredKernels, "_question", lambda self, file: file)
    monkeypatch.setattr(restored.finished, "remember", lambda *answer: given.append(answer))
    for unknown in ("", *(path for stage in stages for path in stage.paths)):
        journal = SimpleNamespace(line_of=lambda path, unknown=unknown: None if path == unknown else "a line")
        run: Any = SimpleNamespace(cache=object(), journal=journal)
        restored.RestoredKernels(run, "key", "work", ()).keep(FILE, {}, [], stages, {})
    assert len(given) == 1


def test_what_is_settled_is_written_at_the_end_of_a_run_and_not_by_one_that_only_shows_something(package, monkeypatch):
    package.definitions.files.append(
        Unsettled(Inputs().definition, {"gemm": package.definitions.kernels["gemm"]}, ["a note"])
    )
    monkeypatch.setattr(settling, "trusted_stamps", lambda top, digests: dict.fromkeys(digests))
    choose(monkeypatch, no_exec=True)
    Settling(package.package).write(package.definitions, {})
    assert not settling.record_of(package.package).exists()
    choose(monkeypatch)
    Settling(package.package).write(package.definitions, {})
    kept = Settling(package.package).before
    assert kept.kernels == {"gemm": finished(package)}
    assert kept.files == {FILE: {FILE: None}} and kept.notes == {FILE: ["a note"]}
    # One that is not finished takes the whole file with it.
    package.run.nodes.node_of(package.definitions.kernels["gemm"].stages[0]).set_state(SCons.Node.failed)
    Settling(package.package).write(package.definitions, {})
    after = Settling(package.package).before
    assert after.kernels == {} and after.files == {}


def test_what_stages_turned_out_to_read_is_among_the_files_that_decide_a_kernel(package, monkeypatch):
    asked: dict[str, str] = {}
    monkeypatch.setattr(settling, "trusted_stamps", lambda top, digests: asked.update(digests))
    stages_of(package)["LOWER gemm/m-1 x86-64-v3"].later = {"table.txt": "1"}
    stages_of(package)["CHECK gemm/m-2 cpu"].later = {"expected.txt": "2"}
    stages_of(package)["LINK gemm"].outside = {"/installed/acme": "3"}
    found = Unsettled(Inputs().definition, {"gemm": package.definitions.kernels["gemm"]}, [])
    Settling(package.package).stamps(found)
    assert asked == {FILE: "1" * 64, "table.txt": "1", "expected.txt": "2", "/installed/acme": "3"}


def test_records_of_definitions_are_of_the_code_that_makes_them_of_tvm_strictness_and_variables_they_see(
    tmp_path, monkeypatch
):
    asked: list[tuple[str, Any]] = []

    def discover(records, files, pool, others, strict, note):
        asked.append((records._identity, others))
        return discovery.Discovery([], [])

    monkeypatch.setattr(discovery.DefinitionRecords, "discover", discover)

    def identity(inputs: Inputs, strict: bool = False) -> str:
        graph = new_graph(tmp_path, monkeypatch, inputs)
        graph.run.strict = strict
        graph.definitions.look_into([FILE], {"other": SimpleNamespace(file="kernels/other.py")})
        return asked[-1][0]

    seeing = Inputs(Settings(package="demo", environment=("MY_TILE",)))
    found = [identity(Inputs()), identity(KEYS["TVM"]), identity(Inputs(), strict=True), identity(seeing)]
    monkeypatch.setattr(definitions, "code_digest", lambda label: f"new code of {label}")
    found.append(identity(Inputs()))
    assert len(set(found)) == 5 and "new code of DISCOVER" in found[-1]
    assert {str(others) for _, others in asked} == {"{'other': 'kernels/other.py'}"}


def test_a_file_with_a_kernel_that_another_file_has_is_not_settled_without_it(tmp_path, monkeypatch):
    """The error is among those of discovery, and ``-k`` goes on. The next run has to say it again."""
    first, second = (
        Inputs().definition,
        replace(Inputs(others=(replace(GEMM, name="add"),)).definition, file="b.py", dependencies={"b.py": "1"}),
    )
    error = KernelwrightError("a kernel named 'gemm' is also defined")
    graph = new_graph(tmp_path, monkeypatch, Inputs())
    found = discovery.Discovery([first, second], [error])
    monkeypatch.setattr(discovery.DefinitionRecords, "discover", lambda *given, **named: found)
    assert graph.definitions.look_into([FILE, "b.py"], {}) == [error]
    assert [found.definition for found in graph.definitions.files] == [first]
    assert graph.definitions.kernels.keys() == {"gemm", "add"}

    graph = new_graph(tmp_path / "settled", monkeypatch, Inputs())
    found = discovery.Discovery([second], [error])
    monkeypatch.setattr(discovery.DefinitionRecords, "discover", lambda *given, **named: found)
    graph.definitions.look_into(["b.py"], {"gemm": SimpleNamespace(file=FILE)})
    assert graph.definitions.files == [] and graph.definitions.kernels.keys() == {"add"}
