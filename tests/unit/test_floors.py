"""No module imports from a folder above its own, and no two modules import each other, whatever way round.

The order of the folders is the list in docs/architecture.md. Every import counts: inside of functions, and for
annotations only.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.project import ROOT
from support.sources import PACKAGE, name_of, nodes, trees

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "template" not in path.relative_to(PACKAGE).parts)
OUTSIDE = {"SCons": {"scons"}, "tvm": {"frontends", "worker"}, "clang": {"commands"}}
"""A package of others -> the folders that may import it."""


def floors() -> list[str]:
    """The folders, the lowest first."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^```text\n(commands  .*?)^```$", text, re.M | re.S)
    assert block
    return re.findall(r"^(\w+) ", block[1], re.M)[::-1]


FLOORS = floors()


def folder_of(module: Path) -> str:
    """The folder of a module; empty at the root."""
    parts = module.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def statements_of(module: Path) -> list[ast.Import | ast.ImportFrom]:
    """All imports of a module, at any depth."""
    return [node for node in nodes(module) if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def imports_of(module: Path) -> list[tuple[Path, ast.ImportFrom]]:
    """The modules of ours that a module imports, at any depth; what is imported from a package's own text is that."""
    imports = []
    for node in statements_of(module):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                found = file_of(base / name.name) or file_of(base)
                assert found, f"{module}:{node.lineno} imports {name.name}, which is in no file"
                imports.append((found, node))
    return imports


def file_of(path: Path) -> Path | None:
    """The file of a module or a package by its path without a suffix."""
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def test_each_folder_is_on_one_floor_and_modules_at_the_root_are_few():
    folders = {folder_of(module) for module in MODULES} - {""}
    assert sorted(FLOORS) == sorted(folders)
    assert len([module for module in MODULES if not folder_of(module)]) <= 9


def test_a_folder_imports_from_no_folder_above_it() -> None:
    upward = [
        f"{name_of(module)}:{node.lineno} imports {name_of(imported)}"
        for module in MODULES
        for imported, node in imports_of(module)
        if folder_of(module) and not is_below(folder_of(module), folder_of(imported))
    ]
    assert not upward, "\n".join(upward)


def is_below(folder: str, other: str) -> bool:
    """Whether a folder may import a module of another one; the runtime may import nothing but itself."""
    if folder == "runtime" or not other:
        return folder == other
    return FLOORS.index(other) <= FLOORS.index(folder)


def test_no_two_modules_import_each_other_whatever_way_round() -> None:
    graph = {module: {imported for imported, _ in imports_of(module)} - {module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(str(module.relative_to(PACKAGE)) for module in reversed(error.args[1])))


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_heavy_is_imported_in_its_own_folders_only(name: str) -> None:
    found = set()
    for module in MODULES:
        for node in statements_of(module):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {folder_of(module) for imported in names if imported.partition(".")[0] == name}
    assert found <= OUTSIDE[name]
    assert found, f"{name} is imported nowhere: was it renamed?"


def test_a_build_knows_its_cluster_in_one_place_which_is_read_only_if_there_is_one() -> None:
    users = {
        (module.relative_to(PACKAGE).as_posix(), imported.stem, node.col_offset > 0)
        for module in MODULES
        for imported, node in imports_of(module)
        if folder_of(imported) == "cluster" != folder_of(module)
    }
    assert users == {("scons/run.py", "start", True), ("commands/worker.py", "command", False)}


LONGER = {"runtime/loader.py": "nothing else is imported before the modules of a package have been verified"}
"""Modules that have more lines than others, and why."""

WITH_MORE = {"BuildRun": 22, "KernelContext": 22}
"""Classes that have more methods than others."""


def values_of(call: ast.Call) -> int:
    """How many values a call passes by position, without those that are unpacked."""
    return sum(not isinstance(each, ast.Starred) for each in call.args)


def test_modules_functions_classes_and_calls_stay_readable() -> None:
    for module in MODULES:
        name = name_of(module)
        assert module.read_bytes().count(b"\n") <= (520 if name in LONGER else 500), name
        # A table at the top of a module may have long rows.
        tables = (each for each in trees()[module].body if isinstance(each, ast.AnnAssign))
        rows = {id(node) for table in tables for node in ast.walk(table)}
        for node in nodes(module):
            place = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None and node.end_lineno - node.lineno < 60, place
            elif isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                assert len(methods) <= WITH_MORE.get(node.name, 20), place
            elif isinstance(node, ast.Call) and values_of(node) > 6 and id(node) not in rows:
                assert ast.unparse(node.func).endswith("._line"), place  # that takes lines of a text


def test_a_definition_and_a_notebook_begin_without_what_only_compiles() -> None:
    """Each worker and each script that imports ``kernel`` waits for it."""
    program = "import sys; from kernelwright import kernel; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    late = (
        "tvm",
        "numpy",
        "subprocess",
        "kernelwright.toolchain",
        "kernelwright.package",
        "kernelwright.processes.pool",
    )
    assert [name for name in late if name in done.stdout.split()] == []
