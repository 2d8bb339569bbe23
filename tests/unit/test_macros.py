"""Macros of TVMScript find the parser that they are called by."""

from __future__ import annotations

import inspect

import pytest
import tvm
from kernelwright.lower import tir_macros
from tvm.script import tirx as T
from tvm.script.parser.core.parser import ScriptMacro

SIZE = 8


@T.macro
def doubled(y, x, i):  # type: ignore[no-untyped-def]
    y[i] = x[i] * T.float32(2)


def parsed() -> tvm.tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((SIZE,), "float32")):  # type: ignore[no-untyped-def]
        for i in range(SIZE):
            doubled(y, x, i)

    return main


def test_a_macro_gives_the_same_and_reads_no_lines_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed()
    monkeypatch.setattr(ScriptMacro, "_find_parser_def", ScriptMacro._find_parser_def)  # put back at the end
    tir_macros.find_parsers_by_frames()
    asked: list[object] = []
    monkeypatch.setattr(inspect, "getouterframes", lambda frame, context=1: asked.append(frame) or [])
    monkeypatch.setattr(inspect, "stack", lambda context=1: [])
    tvm.ir.assert_structural_equal(parsed(), expected)
    assert not asked


def test_outside_of_a_function_there_is_no_parser() -> None:
    with pytest.raises(RuntimeError, match="not available"):
        tir_macros._find_parser(doubled)
