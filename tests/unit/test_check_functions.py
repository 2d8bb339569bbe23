"""Lowerings do not depend on the bodies of functions that only checks call, and on all else of a definition file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.core.errors import DefinitionError
from kernelwright.worker.check_functions import CheckFunctions
from support.project import ROOT
from support.workers_project import EMPTY, Project

TOP = """
def helper(): pass
def around():
    def a(): pass
"""

REFERENCE = """
@k.reference
def _(x):
    # a comment
    "text"; text = '''
é'''
    return x
after = 1
"""

CHANGES = {
    "its name is used": ("def _(x)", "def named(x)", "also = named\n"),
    "its name is a text": ("def _(x)", "def named(x)", "also = globals()['named']\n"),
    "it has two decorators": ("@k.reference", "@k.reference\n@abs", ""),
    "it is of something else": ("@k.reference", "@other.reference", ""),
    "it decides what is built": ("@k.reference", "@k.sizes", ""),
    "it has a type parameter": ("def _(x)", "def _[T](x)", ""),
    "it is no Python": ("return x", "return return", ""),
}


@pytest.fixture(scope="module")
def pool_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("definitions"))
    with project.pool:
        yield project


def left(text: str) -> str | None:
    return CheckFunctions("k.py", text.encode()).text


def test_a_body_is_left_out_and_no_line_moves() -> None:
    text = EMPTY.format(name="k", top=TOP, body="return None") + REFERENCE
    short = left(text)
    assert short is not None and "é" not in short and "raise RuntimeError" in short
    assert short.partition("raise")[0] == text.partition('"text"')[0]
    assert [line for line in enumerate(short.split("\n")) if "after" in line[1]] == [
        line for line in enumerate(text.split("\n")) if "after" in line[1]
    ]


@pytest.mark.parametrize("name", CHANGES)
def test_a_function_that_something_else_may_call_stays(name: str) -> None:
    old, new, more = CHANGES[name]
    assert old in REFERENCE
    assert left(EMPTY.format(name="k", top=TOP, body="return None") + REFERENCE.replace(old, new) + more) is None


@pytest.mark.parametrize("path", sorted(ROOT.glob("kernels/[!_]*.py")), ids=lambda path: path.stem)
def test_what_is_left_of_a_kernel_of_the_library_is_python(path: Path) -> None:
    text = path.read_text()
    short = left(text)
    assert (short is None) == (".reference" not in text)
    if short is not None:
        compile(short, path, "exec")
        assert len(short.split("\n")) == len(text.split("\n"))


SELF = {
    "opens it": "open(__file__).read()",
    "asks for its size": "import os; os.stat(__file__)",
    "has it read": "import subprocess; subprocess.run(['cat', __file__], capture_output=True)",
    "executes it again": (
        "import importlib.util as u; s = u.spec_from_file_location('z', __file__); "
        "s.loader.exec_module(u.module_from_spec(s)) if __name__ != 'z' else None"
    ),
}


@pytest.mark.parametrize("how", SELF)
def test_a_file_that_looks_into_itself_depends_on_all_of_it(pool_project: Project, how: str) -> None:
    name = how.replace(" ", "_")
    file = pool_project.empty(name, SELF[how])
    path = pool_project.folder / file
    reference = REFERENCE.replace("@k", f"@{name}")
    seen = []
    for text in (reference, reference.replace("return x", "return 1")):
        path.write_text(path.read_text().partition("\n@" + name)[0] + text)
        seen.append(pool_project.discover(file)["lowered"])
    assert seen[0] != seen[1]


def test_a_file_that_declares_to_read_itself_depends_on_all_of_it(pool_project: Project) -> None:
    file = pool_project.empty("declares")
    path = pool_project.folder / file
    plain = path.read_text() + REFERENCE.replace("@k", "@declares")
    assert "@kernel\n" in plain
    for text, is_whole in ((plain, False), (plain.replace("@kernel\n", "@kernel(reads=['decl*.py'])\n"), True)):
        path.write_text(text)
        found = pool_project.discover(file)
        assert (found["lowered"] == found["dependencies"][file]) == is_whole


def test_a_definition_that_looks_into_its_file_when_it_is_called_depends_on_all_of_it(pool_project: Project) -> None:
    files = {name: pool_project.copy(name) for name in ("plain", "looks")}
    for name, file in files.items():
        path = pool_project.folder / file
        look = "    open(__file__).read()\n" if name == "looks" else ""
        text = path.read_text().replace("    @T", f"{look}    @T") + REFERENCE.replace("@k", f"@{name}")
        path.write_text(text)
    seen = {name: set(pool_project.lower(file, name)["dependencies"]) for name, file in files.items()}
    assert "./kernels/looks.py" in seen["looks"] and not any(name.startswith("./") for name in seen["plain"])


def test_nothing_shows_a_body_to_a_definition_and_a_check_has_it(pool_project: Project) -> None:
    body = """
import inspect, sys
assert chr(233) not in inspect.getsource(sys.modules[hidden.function.__module__])
return globals()[chr(95)](1)
"""
    file = pool_project.empty("hidden", body=body)
    path = pool_project.folder / file
    path.write_text(path.read_text() + REFERENCE.replace("@k", "@hidden"))
    with pytest.raises(DefinitionError, match="only checks may call this function"):
        pool_project.lower(file, "hidden")
