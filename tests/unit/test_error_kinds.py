"""Errors are values: what the program does about one hangs on its kind, and never on its words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kernelwright
from kernelwright.runtime import refusal

HOME = Path(kernelwright.__file__).parent

LOOKS = {"startswith", "endswith", "find", "rfind", "index", "count", "replace", "removeprefix", "removesuffix"}
LOOKS |= {"partition", "rpartition", "split", "match", "search", "fullmatch", "findall", "sub"}
"""Methods that look into a text, or change it by what is in it."""

WORDS = {"message", "remedy", "detail", "args"}
"""The attributes of an error that are for people."""

ALLOWED = {
    "lower/cutedsl_compiler.py _compile_error": "CuTe DSL tells the user's line in its text only",
    "lower/triton_compiler.py _Compiler.require_written": "Triton raises one class, and tells this in words only",
    "runtime/cuda_core_device.py Cuda.call": "cuda.core tells the driver's error in its text only",
    "wheel/project.py _words": "it shows a library's text, with the table that was read; nothing hangs on it",
    "ondemand/build.py _move_places": "what compilers printed names files in a folder that has moved since; shown only",
}
"""Functions that look into the words of an error all the same -> the reason."""

NAMES_SCONS = {
    **dict.fromkeys(["cli.py", "build.py"], "commands that start scons"),
    **dict.fromkeys(["scons", "wheel", "report", "importer"], "only builds, and what is made of them, get there"),
    "stages/wheel.py": "on demand there are no wheels",
    "state/trace.py": "only builds have a timeline",
    "state/shards.py": "on demand there are no shards",
    "define/settings.py": "the help of scons",
    "runtime/loader.py": "packages that were built partially",
    "runtime/provider.py": "packages in the folder of a build",
}
"""Files and folders that may speak of ``scons`` -> the reason. Others do not know who asked."""


class _Looks(ast.NodeVisitor):
    """Finds where a function looks into the words of an error.

    What an error is, is told by ``except ... as``, by an annotation that ends in ``Error`` or ``Exception``, and by a
    name that is assigned from one of these.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self._place: list[str] = []
        self._errors: set[str] = set()
        self._texts: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = set(self._errors), set(self._texts)
        self._place.append(node.name)
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is not None and _is_error(ast.unparse(argument.annotation)):
                self._errors.add(argument.arg)
        self.generic_visit(node)
        self._place.pop()
        self._errors, self._texts = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._place.append(node.name)
        self.generic_visit(node)
        self._place.pop()

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._errors.add(node.name)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node.value, ast.Name) and node.value.id in self._errors:
            self._errors |= names
        elif self._is_text(node.value):
            self._texts |= names

    def visit_Compare(self, node: ast.Compare) -> None:
        if any(map(self._is_text, [node.left, *node.comparators])) and not _compares_with_nothing(node):
            self._note(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        looked_at = [node.func.value, *node.args] if isinstance(node.func, ast.Attribute) else []
        if method in LOOKS and any(map(self._is_text, looked_at)):
            self._note(node)
        self.generic_visit(node)

    def _note(self, node: ast.expr) -> None:
        self.found.append((".".join(self._place), node.lineno))

    def _is_text(self, node: ast.expr) -> bool:
        """Whether an expression is the words of an error, or made of them."""
        match node:
            case ast.Name(id=name):
                return name in self._texts
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]) if name in self._errors:
                return True
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[value]):
                return self._is_text(value)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in WORDS and name in self._errors:
                return True
            case ast.Attribute(attr="detail" | "remedy"):
                return True
            case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.Call(func=ast.Attribute(value=value)):
                return self._is_text(value)
            case ast.BoolOp(values=values):
                return any(map(self._is_text, values))
        return False


def _is_error(annotation: str) -> bool:
    return any(part.strip().endswith(("Error", "Exception")) for part in annotation.split("|"))


def _compares_with_nothing(node: ast.Compare) -> bool:
    return isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None


def looks(source: str) -> list[tuple[str, int]]:
    """Where a module looks into the words of an error: function and line."""
    visitor = _Looks()
    visitor.visit(ast.parse(source))
    return visitor.found


def found_in(path: Path) -> Iterator[str]:
    name = path.relative_to(HOME).as_posix()
    yield from (f"{name} {place}" for place, _ in looks(path.read_text(encoding="utf-8")))


def test_nothing_hangs_on_the_words_of_an_error() -> None:
    files = sorted(HOME.rglob("*.py"))
    assert len(files) > 300
    assert {name for path in files for name in found_in(path)} == set(ALLOWED)


def texts(path: Path) -> Iterator[str]:
    """The texts in a file that people may read: in Python all but docstrings, in C what is in quotes."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".h":
        yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)
        return
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_what_builds_and_compiles_on_demand_share_tells_nobody_to_run_scons() -> None:
    told: dict[str, list[str]] = {}
    for path in sorted([*HOME.rglob("*.py"), *HOME.rglob("*.h")]):
        name = path.relative_to(HOME).as_posix()
        words = [text for text in texts(path) if re.search(r"\bscons\b(?!/)|\brebuild", text)]
        if words:
            told[name if name in NAMES_SCONS else name.partition("/")[0]] = words
    assert told.keys() == NAMES_SCONS.keys(), {key: told.get(key) for key in told.keys() ^ NAMES_SCONS.keys()}


def test_the_library_and_python_have_one_list_of_refusals() -> None:
    header = (HOME / "library" / "launcher" / "error.h").read_text(encoding="utf-8")
    ours = {name: value for name, value in vars(refusal).items() if name.isupper() and name != "TYPE_CHECKING"}
    assert dict(re.findall(r'#define KW_(\w+) "(\w+)"', header)) == ours
    assert all(len(value) > 7 for value in ours.values())
