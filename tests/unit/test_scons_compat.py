"""What is used of SCons's private API is in one module, and is there in the release that pyproject.toml pins."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

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
from kernelwright.scons import compat
from support.scons_tree import Inputs, graph_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "site_scons/kernelwright/scons"


PRIVATE = re.compile(
    r"\._[a-z]\w*|default_ans|exit_status|OptionsParser|diskcheck|InterruptState|SConsign|default_fs|get_state"
)


def names_of_scons(path: Path) -> list[str]:
    """What a module uses of SCons's modules, as it is written."""
    tree = ast.parse(path.read_text())
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def test_the_release_is_the_pinned_one_and_no_other_module_uses_what_is_private() -> None:
    for path in FOLDER.glob("*.py"):
        if path.stem not in ("compat", "journal"):
            used = [name for name in names_of_scons(path) if name.startswith("SCons.") and PRIVATE.search(name)]
            assert used == [], path
    assert any(PRIVATE.search(name) for name in names_of_scons(FOLDER / "compat.py")), "or this test finds nothing"
    pinned = re.search(r'"scons==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned and compat.RELEASE == pinned[1] == SCons.__version__, "look through compat.py and journal.py"


def test_our_nodes_need_no_default_environment_which_looks_for_compilers(tmp_path, monkeypatch):
    monkeypatch.setattr(SCons.Defaults, "_default_env", None)
    graph = graph_of(tmp_path, monkeypatch, Inputs())
    stage = next(stage for stage in graph.package.stages if stage.label == "CC")
    for node in graph.run.nodes.nodes_of(stage):
        assert node.get_build_env().get_CacheDir().path is None
    assert SCons.Defaults._default_env is None


def test_folders_are_told_from_files(tmp_path):
    fs = SCons.Node.FS.FS(str(tmp_path))
    (tmp_path / "folder").mkdir()
    assert compat.is_folder(fs.Dir("folder")) and compat.is_folder(fs.Entry("folder"))
    assert not compat.is_folder(fs.File("file")) and not compat.is_folder(fs.Entry("absent"))


class Huge:
    """Something whose text nobody may ask for."""

    def __str__(self) -> str:
        raise AssertionError("its text was asked for")


def test_what_an_action_has_around_it_is_not_written_into_its_signature() -> None:
    huge, ran = SimpleNamespace(part=Huge()), list[SimpleNamespace]()
    with pytest.raises(AssertionError, match="its text was asked for"):
        SCons.Action.Action(lambda target, source, env: ran.append(huge), None)
    action = compat.late_action(SimpleNamespace(Action=SCons.Action.Action), lambda: ran.append(huge) or "it failed")
    error = action.execfunction(["node"], [], None)
    assert ran == [huge] and (error.node, error.errstr, error.exitstatus) == ("node", "it failed", 2)
    assert compat.late_action(SimpleNamespace(Action=SCons.Action.Action), str).execfunction(["node"], [], None) is None
