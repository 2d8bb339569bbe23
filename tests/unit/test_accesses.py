"""What the front end reads from the code of a function: how its data must be aligned, and which of it is written."""

from __future__ import annotations

import linecache
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.frontends.tir.alignment import element_alignment, relaxed, required_alignment
from kernelwright.frontends.tir.lowering import target_for
from kernelwright.frontends.tir.signature import _written_buffers
from kernelwright.frontends.unit import Unit

FUNCTION = """
from tvm.script import tirx as T
from tvm.tirx.script import tile as Tx

@T.prim_func{mode}
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    shared = T.alloc_buffer((64,), "float32", scope="shared")
    own = T.alloc_buffer((8,), "float32", scope="local")
    for t in T.thread_binding(8, thread="threadIdx.x"):
        y[t] = own[0] + shared[t]
        {statement}
"""

OWN = "own[0], own[1], own[2], own[3]"

ALIGNMENTS = {
    "own[0] = x[t]": 4,
    "x[t] = own[0]": 4,
    'T.ptx.cp.async_.ca.shared.global_(shared.access_ptr("w"), T.address_of(x[t]), 4)': 16,
    'T.evaluate(T.s_tir.cp_async_raw("float32", shared.data, 0, x.data, 0, 16))': 16,
    f"T.ptx.ld.global_.v4.f32({OWN}, T.address_of(x[t]))": 16,
    f"T.ptx.ld.global_.v8.f32({OWN}, own[4], own[5], own[6], own[7], T.address_of(x[t]))": 32,
    "T.ptx.st.global_.f32(T.address_of(x[t]), own[0])": 4,
    f"T.ptx.st.global_.v4.f32(T.address_of(x[t]), {OWN})": 16,
    f"T.ptx.st.global_.v8.f32(T.address_of(x[t]), {OWN}, own[4], own[5], own[6], own[7])": 32,
    f"T.ptx.red.global_.add.v4.f32(T.address_of(x[t]), {OWN})": 16,
    "x[T.ramp(t * 4, 1, 4)] = T.broadcast(T.float32(0), 4)": 16,
    "x[T.ramp(t * 8, 1, 8)] = T.broadcast(T.float32(0), 8)": 16,
    "own[T.ramp(0, 1, 4)] = x[T.ramp(t * 4, 1, 4)]": 16,
    "own[T.ramp(0, 1, 2)] = x[T.ramp(t * 2, 1, 2)]": 8,
    "Tx.copy(own[0:4], x[0:4])": 16,
    "Tx.copy(x[0:4], own[0:4])": 16,
    'Tx.copy(own[0:8], x[0:8], dispatch="vec_256b")': 32,
}
"""A statement -> the alignment that it demands of x."""


def function(folder: Path, text: str) -> Any:
    """A function in TVMScript, which reads the source of its functions."""
    name = str(folder / "function.py")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    made: dict[str, Any] = {"__name__": "function"}
    exec(compile(text, name, "exec"), made)
    return made["main"]


@pytest.mark.parametrize(("statement", "alignment"), ALIGNMENTS.items(), ids=range(len(ALIGNMENTS)))
def test_each_way_to_move_several_elements_demands_its_alignment(
    tmp_path: Path, statement: str, alignment: int
) -> None:
    mode = "" if statement.startswith("Tx.") else "(s_tir=True)"
    main = function(tmp_path, FUNCTION.format(mode=mode, statement=statement))
    assert [required_alignment(main, parameter, gpu=True) for parameter in main.params] == [alignment, 4]
    assert required_alignment(main, main.params[0], gpu=False) == 4


VIEW = """
from tvm.script import tirx as T

@T.prim_func
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32", align=32)):
    view = T.decl_buffer((16, 4), "float32", data=x.data)
    for t in T.thread_binding(16, thread="threadIdx.x"):
        view[t, 0] = y[t]
"""


def test_a_view_demands_as_much_as_the_largest_access(tmp_path: Path) -> None:
    main = function(tmp_path, VIEW)
    assert [required_alignment(main, parameter, gpu=True) for parameter in main.params] == [16, 32]


def test_code_for_the_cpu_expects_no_more_than_the_elements_alignment_unless_it_is_asked_for(tmp_path: Path) -> None:
    main = relaxed(function(tmp_path, VIEW))
    assert [int(parameter.data_alignment) for parameter in main.params] == [4, 32]
    assert [element_alignment(parameter) for parameter in main.params] == [4, 4]


BULK = "T.ptx.cp.async_.bulk"

WRITES = {
    "own[0] = x[t]": False,
    f"T.ptx.ld.global_.v4.f32({OWN}, T.address_of(x[t]))": False,
    'T.ptx.cp.async_.ca.shared.global_(shared.access_ptr("w"), T.address_of(x[t]), 4)': False,
    'T.ptx.ld.shared.f32(x[t], shared.access_ptr("r"))': True,
    "T.ptx.st.global_.f32(T.address_of(x[t]), own[0])": True,
    "T.ptx.st.global_.f32(T.address_of(y[t]), x[t])": False,
    "T.ptx.red.global_.add.f32(T.address_of(x[t]), own[0])": True,
    f'{BULK}.global_.shared__cta.bulk_group(T.address_of(x[t]), shared.access_ptr("r"), T.uint32(16))': True,
    "Tx.copy(own[0:4], x[0:4])": True,
}
"""A statement -> whether x may be written by it, as far as it is known."""


@pytest.mark.parametrize(("statement", "written"), WRITES.items(), ids=range(len(WRITES)))
def test_what_may_write_to_an_argument_counts_as_writing(tmp_path: Path, statement: str, written: bool) -> None:
    mode = "" if statement.startswith("Tx.") else "(s_tir=True)"
    main = function(tmp_path, FUNCTION.format(mode=mode, statement=statement))
    buffers = _written_buffers(main)
    assert [any(p.same_as(b) for b in buffers) for p in main.params] == [written, True]


NESTED_VIEW = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
    for i in range(4):
        with T.sblock("outer"):
            vi = T.axis.spatial(4, i)
            row = T.match_buffer(y[vi, 0:4], (4,), offset_factor=1)
            for j in range(4):
                with T.sblock("inner"):
                    vj = T.axis.spatial(4, j)
                    element = T.match_buffer(row[vj], (1,), offset_factor=1)
                    element[0] = x[vi, vj]
"""


def test_writing_to_a_view_of_a_view_writes_to_the_argument(tmp_path: Path) -> None:
    main = function(tmp_path, NESTED_VIEW)
    buffers = _written_buffers(main)
    assert [any(p.same_as(b) for b in buffers) for p in main.params] == [False, True]


def test_code_is_generated_for_the_arch_that_is_named() -> None:
    unit = Unit("k", "default", "kw_k", {}, (), "llvm", "x86-64-v3", "k.py:1")
    assert str(target_for(unit).attrs["mcpu"]) == "x86-64-v3"
    units = [replace(unit, target="cuda", arch=arch) for arch in ("sm_90a", "compute_80")]
    archs = {unit.arch: str(target_for(unit).attrs["arch"]) for unit in units}
    assert archs == {"sm_90a": "sm_90a", "compute_80": "sm_80"}
