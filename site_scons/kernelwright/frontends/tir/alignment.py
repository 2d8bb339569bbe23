"""Finds the alignment that the code of a function needs for the data of its arguments.

TVM 0.27 assumes that every buffer is aligned to 64 bytes, and neither checks nor documents that. So its vector code for
the CPU crashes for a NumPy array, which is aligned to 16 bytes, and for the slice ``x[1:]``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import MatchBufferRegion
from tvm.tirx.tile_primitive import TilePrimitiveCall

from ...core.dtype import alignment_of

DEFAULT = 64
"""What TVM assumes of a buffer whose definition says nothing (``runtime::kAllocAlignment``)."""

LARGEST_ACCESS = 16
"""Bytes of the largest access of one CUDA thread, except by instructions of 256 bits."""

WIDE_ACCESS = 32
"""Bytes of an instruction of 256 bits. Code has to name it, and only sm_100 and later archs have it."""

SEVERAL = (
    *("tirx.ptx.cp_async", "tirx.s_tir.cp_async", "tirx.ptx.ld"),
    *("tirx.ptx.st_vec", "tirx.ptx.red_vec", "tirx.ptx.atom_vec"),
)
"""Beginnings of the names of operations that move several elements from, or to, the address they are given."""


def relaxed(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its arguments aligned to their elements, unless the definition asks for another alignment.

    With that, LLVM uses unaligned vector instructions, which are as fast on aligned data.
    """
    pairs: list[tuple[Any, Any]] = []
    views = [view for view, _ in views_of(function)]
    for buffer in [p for p in function.params if tirx.buffer.is_buffer_var(p)] + views:
        if int(buffer.data_alignment) == DEFAULT:
            pairs.append((buffer, _with_alignment(buffer, element_alignment(buffer))))

    def replaced(variable: Any) -> Any:
        return next((new for old, new in pairs if variable.same_as(old)), variable)

    body = tvm_ffi.structural_map(function.body, (tvm.ir.Var, replaced))
    params = [replaced(parameter) for parameter in function.params]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs, function.span)


def required_alignment(function: tirx.PrimFunc, parameter: Any, gpu: bool) -> int:
    """Bytes to which the data of a tensor parameter must be aligned.

    Arguments:
        gpu: whether it is code for the GPU, which faults at a vector access of unaligned data; that for the CPU does
            not once the function is :func:`relaxed`.
    """
    element = element_alignment(parameter)
    asked = int(parameter.data_alignment)
    least = element if asked == DEFAULT else max(asked, element)
    return max(least, _access_alignment(function, parameter)) if gpu else least


def element_alignment(buffer: Any) -> int:
    """Bytes to which one element of a buffer is aligned."""
    return alignment_of(_bits_of(buffer.ty.dtype.dtype))


def _bits_of(kind: Any) -> int:
    return int(kind.bits) * int(kind.lanes)


def _with_alignment(buffer: Any, alignment: int) -> Any:
    return tirx.decl_buffer(
        buffer.shape,
        buffer.dtype,
        buffer.name,
        strides=list(buffer.strides),
        elem_offset=buffer.elem_offset,
        scope=buffer.scope(),
        data_alignment=alignment,
        offset_factor=buffer.offset_factor,
        layout=buffer.layout,
    )


def views_of(function: tirx.PrimFunc) -> list[tuple[Any, Any]]:
    """Buffers in the body that are views of others, which may not be aligned better than those, and what they view."""
    pairs: list[tuple[Any, Any]] = []

    def note_part(part: Any) -> None:
        pairs.append((part.buffer, part.source))

    def note_declared(declared: Any) -> None:
        if declared.data is not None:
            pairs.append((declared.buffer, declared.data))

    tvm_ffi.structural_walk(function.body, [(MatchBufferRegion, note_part), (tirx.DeclBuffer, note_declared)])
    return pairs


def _access_alignment(function: tirx.PrimFunc, parameter: Any) -> int:
    """Bytes that the most demanding access to a parameter's memory has to be aligned to."""
    if any(_mentions(source, parameter) for _, source in views_of(function)):
        return LARGEST_ACCESS
    element = _bits_of(parameter.ty.dtype.dtype)
    widths = [element]
    demanded = [1]

    def note_vector_loop(loop: Any) -> None:
        vector = int(loop.kind) == tirx.ForKind.VECTORIZED and isinstance(loop.extent, tirx.IntImm)
        if vector and _mentions(loop.body, parameter):
            widths.append(int(loop.extent.value) * element)

    def note_access(node: Any) -> None:
        buffer = node.source if isinstance(node, tvm.ir.TensorLoad) else node.buffer
        value = node if isinstance(node, tvm.ir.TensorLoad) else node.value
        if parameter.same_as(buffer) and isinstance(value.ty, tvm.ir.PrimType):
            widths.append(_bits_of(value.ty.dtype))

    def note_call(call: Any) -> None:
        name = str(getattr(call.op, "name", ""))
        if isinstance(call.op, tvm.ir.GlobalVar) and _mentions(call, parameter):
            demanded.append(LARGEST_ACCESS)  # another function of the module has it, and may read it as any type
        if name.startswith(SEVERAL) and _mentions(call, parameter):
            demanded.append(WIDE_ACCESS if "_vec256" in name else LARGEST_ACCESS)

    def note_tile(tile: Any) -> None:
        # What it becomes, such as copies of 16 bytes, is decided when it is lowered.
        if _mentions(tile, parameter):
            demanded.append(WIDE_ACCESS if "256" in str(tile.dispatch) else LARGEST_ACCESS)

    tvm_ffi.structural_walk(
        function.body,
        [
            (tirx.For, note_vector_loop),
            ((tvm.ir.TensorLoad, tirx.BufferStore), note_access),
            (tvm.ir.Call, note_call),
            (TilePrimitiveCall, note_tile),
        ],
    )
    return max(min(max(map(alignment_of, widths)), LARGEST_ACCESS), *demanded)


def _mentions(node: Any, parameter: Any) -> bool:
    mentions: list[bool] = []

    def note(variable: Any) -> None:
        if parameter.same_as(variable):
            mentions.append(True)

    tvm_ffi.structural_walk(node, (tvm.ir.Var, note))
    return bool(mentions)
