"""What is used of SCons's private API is in one module, and is there in the release that pyproject.toml pins."""

from __future__ import annotations

import ast
import inspect
import re
import threading
from pathlib import Path

import pytest

pytest.importorskip("SCons")

import SCons.Action
import SCons.Defaults
import SCons.Node
import SCons.Node.Alias
import SCons.Node.FS
import SCons.SConsign
import SCons.Script.Main
import SCons.Taskmaster.Job
from kernelwright.scons import compat, journal
from scons_tree import Inputs, graph_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "site_scons/kernelwright/scons"


def test_the_release_is_the_pinned_one():
    pinned = re.search(r'"scons==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned and compat.RELEASE == pinned[1] == SCons.__version__, "look through compat.py and journal.py"


PRIVATE = re.compile(
    r"\._[a-z]\w*|default_ans|exit_status|OptionsParser|diskcheck|InterruptState|SConsign|default_fs|get_state"
)


def names_of_scons(path: Path) -> list[str]:
    """What a module uses of SCons's modules, as it is written."""
    tree = ast.parse(path.read_text())
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def test_no_other_module_uses_what_is_private():
    for path in FOLDER.glob("*.py"):
        if path.stem not in ("compat", "journal"):
            used = [name for name in names_of_scons(path) if name.startswith("SCons.") and PRIVATE.search(name)]
            assert used == [], path
    assert any(PRIVATE.search(name) for name in names_of_scons(FOLDER / "compat.py")), "or this test finds nothing"


def test_actions_have_the_methods_that_are_replaced():
    for name in ("get_presig", "get_implicit_deps", "strfunction", "print_cmd_line", "execute"):
        assert hasattr(SCons.Action.FunctionAction, name) or hasattr(compat.ActionBase, name), name
    assert issubclass(SCons.Action.FunctionAction, compat.ActionBase)
    assert list(inspect.signature(compat.ActionBase.print_cmd_line).parameters) == [
        "self",
        "s",
        "target",
        "source",
        "env",
    ]


def test_nodes_have_the_states_that_a_run_counts():
    node = SCons.Node.FS.FS("/").File("/a")
    expected = {
        SCons.Node.executed: (True, False, True, True),
        SCons.Node.up_to_date: (False, True, True, True),
        SCons.Node.failed: (False, False, False, True),
        SCons.Node.no_state: (False, False, False, False),
    }
    for state, told in expected.items():
        node.set_state(state)
        asked = (compat.was_built, compat.was_up_to_date, compat.is_done, compat.is_dealt_with)
        assert tuple(question(node) for question in asked) == told


def test_an_alias_that_is_added_is_found(monkeypatch):
    monkeypatch.setattr(SCons.Node.Alias, "default_ans", SCons.Node.Alias.AliasNameSpace())
    assert compat.find_alias("gemm") is None
    compat.add_alias("gemm")
    assert compat.find_alias("gemm").name == "gemm"


def test_the_run_ends_with_status_2_and_goes_on_after_errors(monkeypatch):
    for name in ("exit_status", "this_build_status"):
        monkeypatch.setattr(SCons.Script.Main, name, 0)
    monkeypatch.setattr(SCons.Script.Main, "OptionsParser", type("Parser", (), {"values": type("Values", (), {})()}))
    compat.fail_at_the_end()
    assert (SCons.Script.Main.exit_status, SCons.Script.Main.this_build_status) == (2, 2)
    compat.keep_going()
    assert SCons.Script.Main.OptionsParser.values.keep_going is True
    source = inspect.getsource(SCons.Script.Main)
    assert "global this_build_status" in source and "sys.exit(exit_status)" in source, "SCons reads what is set"


def test_folders_are_told_from_files(tmp_path):
    fs = SCons.Node.FS.FS(str(tmp_path))
    (tmp_path / "folder").mkdir()
    assert compat.is_folder(fs.Dir("folder")) and compat.is_folder(fs.Entry("folder"))
    assert not compat.is_folder(fs.File("file")) and not compat.is_folder(fs.Entry("absent"))


def test_a_node_can_be_made_where_something_else_is(tmp_path):
    (tmp_path / "a.out").mkdir()
    fs = SCons.Node.FS.FS(str(tmp_path))
    with compat.unchecked_nodes():
        assert fs.File("a.out").name == "a.out"
    with pytest.raises(TypeError, match="found where file expected"):
        SCons.Node.FS.FS(str(tmp_path)).File("a.out")


def test_an_interrupt_is_noted_and_calls_the_function(monkeypatch):
    state, called = SCons.Taskmaster.Job.InterruptState, threading.Event()
    monkeypatch.setattr(state, "set", state.set)
    compat.on_interrupt(called.set)
    interrupted = state()
    interrupted.set()
    assert interrupted() and called.wait(60)


def test_the_cache_folder_of_a_build_file_is_known(tmp_path, monkeypatch):
    import SCons.Environment

    env = SCons.Environment.Environment(tools=[], platform="posix")
    monkeypatch.setattr(SCons.Defaults, "_default_env", None)
    assert compat.cache_folder(env) is None
    folder = str(tmp_path / "shared")  # SCons makes it
    env.CacheDir(folder)
    assert str(compat.cache_folder(env)) == folder


def test_our_nodes_need_no_default_environment_which_looks_for_compilers(tmp_path, monkeypatch):
    monkeypatch.setattr(SCons.Defaults, "_default_env", None)
    graph = graph_of(tmp_path, monkeypatch, Inputs())
    stage = next(stage for stage in graph.made if stage.label == "CC")
    for node in graph.run.nodes_of(stage):
        assert node.get_build_env().get_CacheDir().path is None
    assert SCons.Defaults._default_env is None


def test_an_option_that_nobody_added_has_no_value():
    assert compat.option("kernelwright_unheard_of") is None


def test_signatures_are_asked_for_by_folder():
    assert callable(SCons.SConsign.ForDirectory) and issubclass(journal.FolderSignatures, SCons.SConsign.Base)
