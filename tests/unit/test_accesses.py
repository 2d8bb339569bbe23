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
BULK = "T.ptx.cp.async_.bulk.global_.shared__cta.bulk_group"

STATEMENTS = {
    "own[0] = x[t]": (4, False),
    "x[t] = own[0]": (4, True),
    'T.ptx.cp.async_.ca.shared.global_(shared.access_ptr("w"), T.address_of(x[t]), 4)': (16, False),
    'T.evaluate(T.s_tir.cp_async_raw("float32", shared.data, 0, x.data, 0, 16))': (16, True),
    f"T.ptx.ld.global_.v4.f32({OWN}, T.address_of(x[t]))": (16, False),
    f"T.ptx.ld.global_.v8.f32({OWN}, own[4], own[5], own[6], own[7], T.address_of(x[t]))": (32, False),
    'T.ptx.ld.shared.f32(x[t], shared.access_ptr("r"))': (16, True),
    "T.ptx.st.global_.f32(T.address_of(x[t]), own[0])": (4, True),
    "T.ptx.st.global_.f32(T.address_of(y[t]), x[t])": (4, False),
    f"T.ptx.st.global_.v4.f32(T.address_of(x[t]), {OWN})": (16, True),
    f"T.ptx.st.global_.v8.f32(T.address_of(x[t]), {OWN}, own[4], own[5], own[6], own[7])": (32, True),
    "T.ptx.red.global_.add.f32(T.address_of(x[t]), own[0])": (4, True),
    f"T.ptx.red.global_.add.v4.f32(T.address_of(x[t]), {OWN})": (16, True),
    f'{BULK}(T.address_of(x[t]), shared.access_ptr("r"), T.uint32(16))': (16, True),
    "x[T.ramp(t * 4, 1, 4)] = T.broadcast(T.float32(0), 4)": (16, True),
    "x[T.ramp(t * 8, 1, 8)] = T.broadcast(T.float32(0), 8)": (16, True),
    "own[T.ramp(0, 1, 4)] = x[T.ramp(t * 4, 1, 4)]": (16, False),
    "own[T.ramp(0, 1, 2)] = x[T.ramp(t * 2, 1, 2)]": (8, False),
    "x[T.ramp(t * 2, 1, 2)] = own[T.ramp(0, 1, 2)]\n        x[T.ramp(t * 3, 1, 3)] = own[T.ramp(0, 1, 3)]": (8, True),
    "Tx.copy(own[0:4], x[0:4])": (16, True),
    "Tx.copy(x[0:4], own[0:4])": (16, True),
    'Tx.copy(own[0:8], x[0:8], dispatch="vec_256b")': (32, True),
}
"""A statement -> the alignment that it demands of x, and whether it may write to x as far as that is known."""


def function(folder: Path, text: str) -> Any:
    """A function in TVMScript, which reads the source of its functions."""
    name = str(folder / "function.py")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    made: dict[str, Any] = {"__name__": "function"}
    exec(compile(text, name, "exec"), made)
    return made["main"]


def written(main: Any) -> list[bool]:
    """Whether each argument of a function may be written by it."""
    buffers = _written_buffers(main)
    return [any(parameter.same_as(buffer) for buffer in buffers) for parameter in main.params]


@pytest.mark.parametrize(("statement", "expected"), STATEMENTS.items(), ids=range(len(STATEMENTS)))
def test_each_way_to_move_several_elements_demands_its_alignment(tmp_path, statement, expected):
    mode = "" if statement.startswith("Tx.") else "(s_tir=True)"
    main = function(tmp_path, FUNCTION.format(mode=mode, statement=statement))
    alignment, is_written = expected
    assert [required_alignment(main, parameter, gpu=True) for parameter in main.params] == [alignment, 4]
    assert required_alignment(main, main.params[0], gpu=False) == 4
    assert written(main) == [is_written, True]


VIEW = """
from tvm.script import tirx as T

@T.prim_func
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32", align=32)):
    view = T.decl_buffer((16, 4), "float32", data=x.data)
    for t in T.thread_binding(16, thread="threadIdx.x"):
        view[t, 0] = y[t]
"""


def test_a_view_demands_as_much_as_the_largest_access_and_on_the_cpu_as_the_elements(tmp_path: Path) -> None:
    main = function(tmp_path, VIEW)
    assert [required_alignment(main, parameter, gpu=True) for parameter in main.params] == [16, 32]
    on_cpu = relaxed(main)
    assert [int(parameter.data_alignment) for parameter in on_cpu.params] == [4, 32], "unless more is asked for"
    assert [element_alignment(parameter) for parameter in on_cpu.params] == [4, 4]


VIEWS = {
    "a part of a part": """
    for i in range(4):
        with T.sblock("outer"):
            vi = T.axis.spatial(4, i)
            row = T.match_buffer(y[vi, 0:4], (4,), offset_factor=1)
            for j in range(4):
                with T.sblock("inner"):
                    vj = T.axis.spatial(4, j)
                    element = T.match_buffer(row[vj], (1,), offset_factor=1)
                    element[0] = x[vi, vj]
""",
    "a declared view of another one": """
    read = T.decl_buffer((2, 8), "float32", data=x.data)
    rows = T.decl_buffer((2, 8), "float32", data=y.data)
    flat = T.decl_buffer((16,), "float32", data=rows.data)
    for i in range(16):
        flat[i] = read[i // 8, i % 8]
""",
    "a declared view of a part": """
    for i in range(4):
        with T.sblock("outer"):
            vi = T.axis.spatial(4, i)
            T.reads(x[vi, 0:4])
            T.writes(y[vi, 0:4])
            row = T.match_buffer(y[vi, 0:4], (4,), offset_factor=1)
            view = T.decl_buffer((2, 2), "float32", data=row.data)
            for j in range(4):
                view[j // 2, j % 2] = x[vi, j]
""",
    "a part of a declared view": """
    flat = T.decl_buffer((16,), "float32", data=y.data)
    for i in range(4):
        with T.sblock("outer"):
            vi = T.axis.spatial(4, i)
            row = T.match_buffer(flat[vi * 4 : vi * 4 + 4], (4,), offset_factor=1)
            for j in range(4):
                row[j] = x[vi, j]
""",
    "a view that is passed on": """
    flat = T.decl_buffer((16,), "float32", data=y.data)
    T.evaluate(T.call_extern("void", "fill", flat.data, x[0, 0]))
""",
}
"""Views -> a body that reads x and writes y through them."""

ON_VIEWS = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
"""


@pytest.mark.parametrize("views", VIEWS)
def test_a_view_writes_to_the_argument_as_far_as_it_is_written(tmp_path: Path, views: str) -> None:
    assert written(function(tmp_path, ON_VIEWS + VIEWS[views])) == [False, True]


def test_code_is_generated_for_the_arch_that_is_named() -> None:
    unit = Unit("k", "default", "kw_k", {}, (), "llvm", "x86-64-v3", "k.py:1")
    assert str(target_for(unit).attrs["mcpu"]) == "x86-64-v3"
    units = [replace(unit, target="cuda", arch=arch) for arch in ("sm_90a", "compute_80")]
    archs = {unit.arch: str(target_for(unit).attrs["arch"]) for unit in units}
    assert archs == {"sm_90a": "sm_90a", "compute_80": "sm_80"}


PACKED = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "{dtype}"), y: T.Buffer((64,), "{dtype}")):
    for b in T.thread_binding({blocks}, thread="threadIdx.x"):
        for v in {loop}:
            with T.sblock("y"):
                i = T.axis.spatial(64, b * {step} + v)
                y[i] = x[i]
"""


@pytest.mark.parametrize(
    ("dtype", "step", "alignment"),
    [
        *(("int4x8", 1, 4), ("float4_e2m1fnx2", 1, 1), ("float4_e2m1fn", 8, 4), ("int8", 4, 4), ("float32", 1, 4)),
        *(("float32x4", 1, 16), ("float32", 4, 16), ("float32", 8, 16)),
    ],
)
def test_the_demand_of_code_for_the_gpu_counts_bits(dtype: str, step: int, alignment: int, tmp_path: Path) -> None:
    loop = f"T.vectorized({step})" if step > 1 else "range(1)"
    source = PACKED.format(dtype=dtype, step=step, blocks=64 // step, loop=loop)
    main = function(tmp_path, source)
    found = [required_alignment(main, parameter, gpu=True) for parameter in main.params]
    assert found == [alignment, alignment]
