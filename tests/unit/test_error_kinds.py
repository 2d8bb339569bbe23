"""Errors are values: what the program does about one hangs on its kind, and never on its words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kernelwright.runtime import refusal
from support.sources import PACKAGE, name_of, nodes, trees

LOOKS = {"startswith", "endswith", "find", "rfind", "index", "count", "replace", "removeprefix", "removesuffix"}
LOOKS |= {"partition", "rpartition", "split", "match", "search", "fullmatch", "findall", "sub"}
"""Methods that look into a text, or change it by what is in it."""

ALLOWED = {
    "frontends/cutedsl/compiler.py _compile_error": "CuTe DSL tells the user's line in its text only",
    "frontends/triton/compiler.py _ProgramCompiler.require_written": "Triton tells this in words only",
    "cluster/dask_client.py DaskEngine._gone_if_closed": "its argument is no text, but the bytes that a worker sent",
    "scons/outcome.py Outcome.text_of": "it asks whether the very same was shown before, whatever it says",
    "stages/object.py ObjectCompilation._tell_what_lacks": "compilers name a header that is absent in words only",
    "stages/torch_library.py _refused": "PyTorch tells what it refuses to register in words only",
    "runtime/cuda_core_device.py Cuda.call": "cuda.core tells the driver's error in its text only",
    "package/project.py _words": "it shows a library's text, with the table that was read; nothing hangs on it",
    **dict.fromkeys(
        [
            "testing/calls.py strides_are_taken_or_refused",
            "testing/calls.py a_wrong_call_names_the_kernel",
            "testing/calls.py a_kernel_says_what_it_has",
            "testing/launches.py a_wrong_array_is_not_launched",
        ],
        "it tests what callers are told",
    ),
    "ondemand/build.py _move_places": "what compilers printed names files in a folder that has moved since; shown only",
}
"""Functions that look into the words of an error all the same -> the reason."""

NAMES_SCONS = {
    **dict.fromkeys(["commands", "build.py"], "commands that start scons"),
    **dict.fromkeys(["scons", "package/content.py", "package/size_table.py"], "only builds get there"),
    "ondemand/build.py": "a service that may compile nothing needs a build",
    "ondemand/origin.py": "only builds make operators for PyTorch",
    **dict.fromkeys(["stages/wheel.py", "package/variant_checks.py"], "on demand there are no wheels"),
    "state/trace.py": "only builds have a timeline",
    "state/shards.py": "on demand there are no shards",
    "define/settings.py": "the help of scons",
    "testing": "its projects are built by scons",
    "runtime/loader.py": "packages that were built partially",
    "runtime/provider.py": "packages in the folder of a build",
}
"""Files and folders that may speak of ``scons`` -> the reason. Others do not know who asked."""


def looks(tree: ast.Module) -> Iterator[str]:
    """The functions and methods of a module that look into the words of an error."""
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for function in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            if _looks(function):
                yield f"{owner.name}.{function.name}" if isinstance(owner, ast.ClassDef) else function.name


def _looks(function: ast.FunctionDef) -> bool:
    """Whether a function compares the words of an error, or calls one of `LOOKS` on them.

    An error is told by ``except ... as``, by an annotation, and by a name that is assigned from one; its words are what
    is made of it, its attributes for people, and names that are assigned from these.
    """
    nodes = list(ast.walk(function))
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    annotated = [node for node in nodes if isinstance(node, ast.arg) and node.annotation]
    errors |= {node.arg for node in annotated if re.search(r"(Error|Exception)\b", ast.unparse(node.annotation))}
    if not errors and not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"detail", "remedy"}:
        return False
    words = {r"\.(detail|remedy)\b"}
    for assigned in (node for node in nodes if isinstance(node, ast.Assign)):
        value = ast.unparse(assigned.value)
        names = {target.id for target in assigned.targets if isinstance(target, ast.Name)}
        if value in errors:
            errors |= names
        words |= {rf"\b(str|repr|first_line)\({name}\)|\b{name}\.(message|args)\b" for name in errors}
        if any(re.search(word, value) for word in words):
            words |= {rf"\b{name}\b" for name in names}
    words |= {rf"\b(str|repr|first_line)\({name}\)|\b{name}\.(message|args)\b" for name in errors}
    looked_at = (ast.unparse(part) for node in nodes for part in _parts(node))
    return any(re.search(word, text) for text in looked_at for word in words)


def _parts(node: ast.AST) -> list[ast.expr]:
    """What a comparison or a call of one of `LOOKS` looks at."""
    if isinstance(node, ast.Compare) and "None" not in map(ast.unparse, node.comparators):
        return [node.left, *node.comparators]
    is_look = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS
    return [node.func.value, *node.args] if is_look else []  # type: ignore[union-attr]


def test_nothing_hangs_on_the_words_of_an_error() -> None:
    assert {f"{name_of(path)} {place}" for path, tree in trees().items() for place in looks(tree)} == set(ALLOWED)


def texts(path: Path) -> Iterator[str]:
    """The texts in a file that people may read: in Python all but docstrings, in C what is in quotes."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".h":
        yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)
        return
    docs = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_what_builds_and_compiles_on_demand_share_tells_nobody_to_run_scons() -> None:
    told: dict[str, list[str]] = {}
    for path in sorted([*trees(), *PACKAGE.rglob("*.h")]):
        name = name_of(path)
        words = [text for text in texts(path) if re.search(r"\bscons\b(?!/)|\brebuild", text)]
        if words:
            told[name if name in NAMES_SCONS else name.partition("/")[0]] = words
    assert told.keys() == NAMES_SCONS.keys(), {key: told.get(key) for key in told.keys() ^ NAMES_SCONS.keys()}


def test_the_library_and_python_have_one_list_of_refusals() -> None:
    header = (PACKAGE / "backends" / "launcher" / "error.h").read_text(encoding="utf-8")
    ours = {name: value for name, value in vars(refusal).items() if name.isupper() and name != "TYPE_CHECKING"}
    assert dict(re.findall(r'#define KW_(\w+) "(\w+)"', header)) == ours
    assert all(len(value) > 7 for value in ours.values())
