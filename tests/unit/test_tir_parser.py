"""TVMScript's parser gives the same with what makes it faster."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Iterator

import pytest
import tvm
from kernelwright.frontends.tir import parser as tir_parser
from tvm.script import tirx as T
from tvm.script.parser.core import diagnostics, doc
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.parser import ScriptMacro

SIZE = 8


@T.macro
def doubled(y, x, i):  # type: ignore[no-untyped-def]
    y[i] = x[i] * T.float32(2)


def with_macro(size: int) -> tvm.tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((size,), "float32"), y: T.Buffer((size,), "float32")):  # type: ignore[no-untyped-def]
        for i in range(size):
            doubled(y, x, i)

    return main


def with_inline_function(size: int) -> tvm.tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((size,), "float32"), y: T.Buffer((size,), "float32")):  # type: ignore[no-untyped-def]
        @T.inline
        def copied(i):  # type: ignore[no-untyped-def]
            y[i] = x[i]

        for i in range(size):
            copied(i)

    return main


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The faster parser; the tests of this process get TVM's own one back, if they had that."""
    for owner, name in ((Source, "__init__"), (Source, "as_ast"), (ScriptMacro, "_find_parser_def")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(tir_parser, "_known", {})
    tir_parser._tree.cache_clear()
    tir_parser.make_parser_faster()
    yield
    tir_parser._tree.cache_clear()


@pytest.mark.parametrize("define", [with_macro, with_inline_function])
def test_a_function_gives_the_same_each_time(define, request):
    expected = [define(SIZE), define(2 * SIZE)]
    request.getfixturevalue("faster")
    for _ in range(2):
        for made, wanted in zip([define(SIZE), define(2 * SIZE)], expected, strict=True):
            tvm.ir.assert_structural_equal(made, wanted)
            assert made.script(show_meta=True) == wanted.script(show_meta=True)


@pytest.mark.usefixtures("faster")
def test_a_function_is_looked_up_and_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    look_up, parse = diagnostics.getsourcelines, doc.parse
    monkeypatch.setattr(diagnostics, "getsourcelines", lambda program: done.append("look up") or look_up(program))
    monkeypatch.setattr(doc, "parse", lambda source: done.append("parse") or parse(source))
    with_macro(SIZE)
    with_macro(2 * SIZE)
    assert done == ["look up", "parse", "parse"], "the function, and the macro in it, whose source TVM keeps"


@pytest.mark.usefixtures("faster")
def test_generated_functions_with_equal_code_keep_their_own_texts() -> None:
    def made(size: int) -> tvm.tirx.PrimFunc:
        text = f"""@T.prim_func(s_tir=True)
def main(x: T.Buffer(({size},), "float32")):
    x[0] = T.float32(1)
"""
        linecache.cache["<made>"] = (len(text), None, text.splitlines(keepends=True), "<made>")
        namespace: dict[str, tvm.tirx.PrimFunc] = {"T": T}
        exec(compile(text, "<made>", "exec"), namespace)
        return namespace["main"]

    assert [int(made(size).params[0].shape[0]) for size in (1, 2, 1)] == [1, 2, 1]


@pytest.mark.usefixtures("faster")
def test_other_threads_may_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions of a notebook are parsed in its process, which may parse others in other threads."""

    class Emptied(dict[int, object]):
        def __setitem__(self, key: int, value: object) -> None:
            super().__setitem__(key, value)
            self.clear()

    monkeypatch.setattr(tir_parser, "_known", Emptied())
    assert [int(with_macro(size).params[0].shape[0]) for size in (1, 2)] == [1, 2]


@pytest.mark.usefixtures("faster")
def test_a_function_that_stands_for_another_shows_the_source_of_that() -> None:
    def standing_for(function: Callable[[], None]) -> Callable[[], None]:
        return functools.wraps(function)(lambda: None)

    def first() -> None: ...

    def second() -> None: ...

    sources = [Source(standing_for(function)).source for function in (first, second, first)]
    assert [source.split("(")[0].strip() for source in sources] == ["def first", "def second", "def first"]


def test_outside_of_a_function_there_is_no_parser() -> None:
    with pytest.raises(RuntimeError, match="not available"):
        tir_parser._find_parser(doubled)
