"""Code that is for all languages knows none by its name: what differs is told by the front ends, one class for each.

Front ends of other distributions are used by the same code, so they can do what those of Kernelwright can.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright import frontends
from kernelwright.define.kernel_options import KernelOptions
from support.project import ROOT
from test_floors import MODULES, PACKAGE, imports_of

TABLE = "frontends/__init__.py"

ELSEWHERE = {"cuda", "torch"}
"""Names that are also those of a target, of a device, of a package on PyPI and of a backend. They count only beside
something that has a front end in its name, but for arguments of ``files``, which are targets."""

USED_BY_NAME = {
    ("define/kernel_options.py", "tir"): "the default of the option, which a test compares with the table",
    ("define/package_name.py", "triton"): "a package on PyPI, whose name no package may take",
    ("define/package_name.py", "tilelang"): "the same",
    ("ondemand/loaded.py", "tir"): "a kind of text that users ask for, in any language",
    ("commands/init.py", "*"): "a project to begin with for each language, which a test compares with the table",
    ("commands/record.py", "triton"): "the command that records programs of Triton",
    ("commands/importer/definition.py", "cuda"): "the command that writes definitions in CUDA C++",
    ("ondemand/live.py", "tir"): "shows the schedule that TVM has",
    **{(f"{name}.py", "*"): "what definitions in it import" for name in ("cuda", "cutedsl", "tilelang", "triton")},
}
"""(module, name) -> why it may use the name; ``*`` stands for any name."""


def named(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each text in a module that is a front end's name."""
    for node in ast.walk(ast.parse(text)):
        beside = isinstance(node, ast.Compare | ast.Call | ast.Subscript) and "front" in ast.unparse(node)
        beside &= not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".files"))
        for child in ast.iter_child_nodes(node):
            name = child.value if isinstance(child, ast.Constant) else None
            if name in frontends.names() and (beside or name not in ELSEWHERE):
                yield child.lineno, name


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """Line and name for each import from a front end's folder, of a module that is in no front end's folder."""
    for other, statement in imports_of(module):
        folder, *rest = other.relative_to(PACKAGE).parts
        if folder == "frontends" != module.relative_to(PACKAGE).parts[0] and rest[0] in frontends.names():
            yield statement.lineno, rest[0]


def places() -> Iterator[tuple[str, int, str]]:
    """Module, line and name of all uses outside of the table and of the front end's own folder."""
    for module in MODULES:
        file = module.relative_to(PACKAGE).as_posix()
        for line, name in (*named(module.read_text(encoding="utf-8")), *imported(module)):
            if file != TABLE and not file.startswith(f"frontends/{name}/"):
                yield file, line, name


def test_no_code_knows_a_language_by_its_name_outside_of_its_own_folder() -> None:
    found = list(places())
    assert [f"{file}:{line} {name}" for file, line, name in found if not may(file, name)] == []
    unused = {key for key in USED_BY_NAME if not any(key in ((file, name), (file, "*")) for file, _, name in found)}
    assert not unused, "these need no exception any more"


def may(file: str, name: str) -> bool:
    """Whether a module has a reason."""
    return (file, name) in USED_BY_NAME or (file, "*") in USED_BY_NAME


@pytest.mark.parametrize(
    "line", ['x = frontend == "cuda"', 'x = front_ends.get("torch")', 'x = ("tir",)', 'x["triton"]']
)
def test_a_use_of_a_name_is_found(line: str) -> None:
    """In each form in which code could decide by a name; a target that is called like a language is none."""
    assert [number for number, _ in named(line)] == [1]
    assert not [*named('x = target == "cuda"')]


def test_no_code_knows_a_plug_in_of_the_repository() -> None:
    names = {path.name.removeprefix("kernelwright_") for path in (ROOT / "plugins").glob("*/kernelwright_*")}
    assert {"cutile", "cpp"} <= names
    for module in MODULES:
        text = module.read_text(encoding="utf-8").lower()
        assert not [name for name in names if f"kernelwright_{name}" in text or f'"{name}"' in text], module
    assert "cutile" not in "".join(module.read_text(encoding="utf-8").lower() for module in MODULES)


def test_the_default_of_the_option_is_the_first_of_the_table() -> None:
    assert KernelOptions().frontend == frontends.names()[0]
