"""Tensor maps in host code that is C. A tensor map describes an array to the copy engine of a GPU (TMA).

TVM 0.27 makes them in C++ only, where ``CUtensorMap`` is a type. Its C has no such type, and no ``tvm_stack_alloca`` of
one. There they get plain memory, and the launcher finds the aligned part of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

ENCODE = "tirx.tensormap_encode_tiled"
"""What makes a tensor map in TIR. In C it is a packed call of ``runtime.cuTensorMapEncodeTiled``."""

STORING = ("tirx.ptx.cp_async_bulk_tensor_s2g", "tirx.ptx.cp_reduce_async_bulk_tensor")
"""Beginnings of the names of instructions that write to the array of a tensor map; the others read it."""

ROOM = 24
"""How many values of 8 bytes hold a ``CUtensorMap`` (cuda.h: 128 bytes, aligned to 64) wherever they begin."""


TYPE = """\
#ifdef __CUDACC_RTC__
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#endif
"""
"""The type for NVRTC: TVM's source includes cuda.h, which has it, for nvcc only."""

FIRST_FUNCTION = 'extern "C" __global__'


def with_type(source: str) -> str:
    """CUDA source that has the type of tensor maps in whatever compiles it, if it has tensor maps."""
    place = source.find(FIRST_FUNCTION)
    if place < 0 or "CUtensorMap" not in source:
        return source
    return source[:place] + TYPE + source[place:]


def in_plain_memory(host: tvm.IRModule) -> tvm.IRModule:
    """The host module with plain memory for each tensor map."""
    functions = {var: _in_plain_memory(function) for var, function in host.functions_items()}
    return tvm.IRModule(functions, attrs=host.attrs)


def _in_plain_memory(function: tirx.PrimFunc) -> tirx.PrimFunc:
    pointers: list[tuple[Any, Any]] = []

    def plain(variable: Any) -> Any:
        if not is_pointer(variable.ty):
            return variable
        for known, pointer in pointers:
            if known.same_as(variable):
                return pointer
        pointers.append((variable, tirx.Var(str(variable.name), "handle")))
        return pointers[-1][1]

    body = tvm_ffi.structural_map(function.body, [(tvm.ir.Call, _room), (tvm.ir.Var, plain)])
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)


def _room(call: Any) -> Any:
    if not is_tensor_map(call):
        return call
    return tvm.ir.Call(call.op, [tvm.ir.StringImm("shape"), tirx.IntImm("int32", ROOM)], ret_ty="handle")


def is_tensor_map(value: Any) -> bool:
    """Whether an expression makes room for a tensor map."""
    named = str(getattr(getattr(value, "op", None), "name", "")) == "tirx.tvm_stack_alloca"
    return named and str(value.args[0].value) == "tensormap"


def is_pointer(kind: Any) -> bool:
    """Whether a type is that of a pointer to a tensor map."""
    return isinstance(kind, tvm.ir.PointerType) and isinstance(kind.element_type, tirx.TensorMapType)


def encoded(call: Any, number: Callable[[Any], int | str]) -> dict[str, Any]:
    """What a call that makes a tensor map says of it, in the order and with the numbers of cuTensorMapEncodeTiled.

    Arguments:
        number: writes a size.
    """
    attrs, rank = call.attrs, int(call.attrs.rank)
    values = iter(map(number, call.args[2:]))
    lengths = {"sizes": rank, "strides": rank - 1, "box": rank, "steps": rank}
    lists = {name: list(itertools.islice(values, length)) for name, length in lengths.items()}
    modes = {"interleave": "interleave", "swizzle": "swizzle", "promotion": "l2_promotion", "fill": "oob_fill"}
    return {
        "dtype": str(attrs.descriptor_dtype),
        **lists,
        **{name: int(getattr(attrs, attribute)) for name, attribute in modes.items()},
    }
