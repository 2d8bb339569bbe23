"""What functions in TVMScript compute, and the device code that they become: compared with ``tvm.compile``.

The folder ``tvmscript`` has the functions. Code of a new kind belongs there.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.dtype import Dtype
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.frontends.tir.front_end import Tir
from kernelwright.frontends.tir.lowering import target_for
from kernelwright.frontends.unit import Unit
from support.differential_functions import Array, Function, functions, zeros
from support.launcher_build import FakeTensor, build, plan
from tvm.ir.transform import PassContext

ARCHS = {"llvm": "x86-64-v3", "cuda": "sm_90a"}

CPU, CUDA, TIRX = map(functions, ("cpu", "cuda", "tirx"))

UNALIGNED = {
    "a_view_at_any_place": "TVM takes every buffer to be aligned to 64 bytes, also one that begins within another",
    "vectors_at_any_place": "TVM takes every argument to be aligned to 64 bytes",
    "parts_by_a_helper": "the same, in a function that another calls",
}
"""Functions whose code for the CPU differs from TVM's, and why: TVM's ends the process for such data.

TVM's is made without vectors, and called with aligned data.
"""

UNUSED = ("-Wno-unused-parameter",)
"""For the wrapper: the strides of an argument may depend on no size."""


def lowered(function: Function, mode: str, target: str) -> Mapping[str, bytes]:
    """What the front end makes of a function."""
    configs = dict.fromkeys(function.pass_configs, True)
    name, symbol = function.name, f"kw_{function.name}"
    unit = Unit(name, "v", symbol, {}, (), target, ARCHS[target], "functions.py:1", pass_configs=configs)
    return Tir().lower(function.definition(mode), unit, lambda doing: None).files


def compiled(function: Function, mode: str, target: str, pipeline: str = "default") -> Any:
    """What ``tvm.compile`` makes of it, as a module whose function has the same name."""
    made = function.definition(mode)
    if function.helpers:
        functions = {var: other for var, other in made.functions_items() if var.name_hint != "main"}
        made = tvm.IRModule({function.name: made["main"].with_attr("global_symbol", function.name), **functions})
    chosen = target_for(Unit(function.name, "v", "", {}, (), target, ARCHS[target], ""))
    chosen = chosen.with_host("c") if target == "cuda" else chosen
    without_vectors = ["tirx.disable_vectorize"] if target == "llvm" and function.name in UNALIGNED else []
    configs = [*function.pass_configs, *without_vectors]
    with PassContext(config=dict.fromkeys(configs, True)):
        return tvm.compile(made, target=chosen, tir_pipeline=pipeline).mod


def passed(value: Any) -> Any:
    """An array as tvm-ffi takes it, whatever its dtype."""
    if not isinstance(value, np.ndarray):
        return value
    kind = Dtype.parse(str(value.dtype), Where())
    strides = [stride // value.itemsize for stride in value.strides]
    described = (kind.code, kind.bits, kind.lanes)
    return tvm_ffi.from_dlpack(FakeTensor(value.shape, described, strides=strides, data=value.ctypes.data))


@tvm_ffi.register_global_func("kernelwright.tests.double", override=True)
def _double(data: Any, count: int) -> None:
    array = np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), (count,))
    array *= 2


def called(library: Any, name: str, values: list[Any]) -> list[bytes]:
    """What is in the arrays after a call, and between the parts of them that were passed."""
    getattr(library, name)(*map(passed, values))
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return [(array if array.flags.c_contiguous else memory_of(array)).tobytes() for array in arrays]


def memory_of(array: Array) -> Array:
    """All that an array is a part of."""
    return memory_of(array.base) if isinstance(array.base, np.ndarray) else array


def aligned(array: Array) -> Array:
    """A copy at the alignment that TVM takes for granted."""
    copy = zeros(*array.shape, dtype=array.dtype)
    copy[...] = array
    return copy


class Libraries:
    """Kernel libraries of functions, one for all that are the same code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[bytes, ...], Any] = {}

    def of(self, files: Mapping[str, bytes]) -> Any:
        """The library of what a front end made, loaded."""
        key = (files["host.o"], files["signature.json"])
        if key not in self._made:
            folder = self._folder / str(len(self._made))
            folder.mkdir()
            (folder / "host.o").write_bytes(files["host.o"])
            unit = LoweredUnit.from_json(json.loads(files["signature.json"]), "host.o")
            self._made[key] = tvm_ffi.load_module(str(build(folder, plan(unit.kernel, unit), extra=UNUSED)))
        return self._made[key]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("libraries"))


@pytest.mark.parametrize("function", CPU.values(), ids=CPU)
def test_a_function_computes_on_the_cpu_what_it_computes_with_tvm(libraries: Libraries, function: Function) -> None:
    """TVM compiles it in one of its modes: in all of them a function means the same."""
    values = function.arrays()
    if function.name in UNALIGNED:
        values = list(map(aligned, values))
    theirs = called(compiled(function, function.modes[0], "llvm"), function.name, values)
    assert any(map(any, theirs)), "it does something"
    for mode in function.modes:
        library = libraries.of(lowered(function, mode, "llvm"))
        assert called(library, function.name, function.arrays()) == theirs, mode


def test_a_function_refuses_what_it_refuses_with_tvm(libraries: Libraries) -> None:
    function = replace(CPU["assertions"], values="numbers(7), zeros(7)")
    for library in (libraries.of(lowered(function, "", "llvm")), compiled(function, "", "llvm")):
        with pytest.raises(RuntimeError, match="no multiple of four"):
            called(library, function.name, function.arrays())
    function = CPU["functions_of_python"]
    unknown = replace(function, text=function.text.replace("kernelwright.tests.double", "kernelwright.tests.none"))
    with pytest.raises(RuntimeError, match=r"it calls the packed function 'kernelwright\.tests\.none'"):
        called(libraries.of(lowered(unknown, "", "llvm")), function.name, function.arrays())


@pytest.mark.parametrize(
    ("function", "mode"),
    [
        pytest.param(function, mode, id=f"{function.name}-{'s_tir' if mode else 'plain'}")
        for function in CUDA.values()
        for mode in function.modes
    ],
)
def test_a_function_becomes_the_device_and_host_code_that_tvm_makes_of_it(function: Function, mode: str) -> None:
    files = lowered(function, mode, "cuda")
    host = compiled(function, mode, "cuda")
    assert files["device.cu"].decode() == host.imports[0].inspect_source()
    theirs = host.inspect_source().partition("// CodegenC: NOTE: Auto-generated entry function")[0]
    theirs = re.sub(r"T\.int64\((\d+)\)", r"\1", theirs)  # texts of errors say plain numbers here
    ours = files["host.c"].decode().replace(f"kw_{function.name}", f"__tvm_ffi_{function.name}")
    assert ours.rstrip() == theirs.rstrip()


@pytest.mark.parametrize("function", TIRX.values(), ids=TIRX)
def test_what_only_the_pipeline_of_tirx_knows_is_lowered_by_it(function: Function) -> None:
    files = lowered(function, "", "cuda")
    assert files["device.cu"].decode() == compiled(function, "", "cuda", "tirx").imports[0].inspect_source()


def test_vectors_can_be_turned_off_in_that_pipeline_as_well() -> None:
    loop = """\
    for v in T.vectorized(4):
        y[bx * 64 + tx // 16 * 16 + v] = x[bx * 64 + tx // 16 * 16 + v]
"""
    on = replace(TIRX["scopes"], text=TIRX["scopes"].text.rstrip() + "\n" + loop)
    off = replace(on, pass_configs=("tirx.disable_vectorize",))
    sources = [lowered(each, "", "cuda")["device.cu"].decode() for each in (on, off)]
    assert ["float4" in source for source in sources] == [True, False]


@pytest.mark.parametrize(
    ("parameters", "more", "mode", "told", "remedy"),
    [
        (
            "x: A(m, 2, strides=(4, 1)), y: A(m, 2)",
            "y[tx, 0] = x[tx, 0]",
            "",
            "buffer 'x' has the strides [4, 1] and the layout T.TileLayout(T.S[(m, 2):(2, 1)]), which are two orders",
            "layout=T.TileLayout(T.S[(m, 2) : (4, 1)])",
        ),
        (
            "x: A(64, 4), y: A(64, 4)",
            "v = T.decl_buffer((4, 4), data=x.data, strides=(8, 1))\n    y[tx, 0] = v[0, 0]",
            "",
            "buffer 'v' has the strides [8, 1] and the layout T.TileLayout(T.S[(4, 4):(4, 1)]), which are two orders",
            "layout=T.TileLayout(T.S[(4, 4) : (8, 1)])",
        ),
        (
            *("x: A(64, 4), y: A(64, 4)", "y[tx, 0] = x[tx, 0]", "s_tir=True"),
            *("'k' is a function with s_tir=True, whose buffers have no layout", "remove s_tir=True"),
        ),
    ],
)
def test_a_buffer_without_one_order_of_its_elements_is_an_error_where_layouts_count(
    parameters: str, more: str, mode: str, told: str, remedy: str
) -> None:
    scopes = TIRX["scopes"].text.partition("\n")[2].rpartition("    y[")[0]
    with pytest.raises(DefinitionError, match=re.escape(told)) as caught:
        lowered(Function("k", f"({parameters}):\n{scopes}    {more}\n"), mode, "cuda")
    assert remedy in str(caught.value.remedy) and caught.value.where.stage == "lower"


def test_the_gpu_needs_the_largest_alignment_of_what_another_function_gets() -> None:
    files = lowered(CUDA["parts_by_a_helper"], "", "cuda")
    arguments = json.loads(files["signature.json"])["arguments"]
    assert [argument.get("alignment") for argument in arguments] == [16, 16]
