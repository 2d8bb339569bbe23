"""Chooses TVM's pipeline for a function: that of ``tvm.compile``, unless the function needs another one.

TVM 0.27 has two of them, and both take any PrimFunc. ``default``, which is that of ``tvm.compile``, follows the strides
of buffers, puts in barriers, and reduces across threads. It ignores the layouts of TIRx, and knows none of its scopes
and tile primitives. ``tirx`` knows these; it follows layouts and ignores strides, and its barriers are those that are
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.tile_primitive import TilePrimitiveCall

from ...core.errors import DefinitionError
from ..unit import Unit

TIRX_CALLS = ("tirx.buffer_offset", "tirx.filter", "tirx.selector", "tirx.cuda.iket_")
"""Beginnings of the names of operations that only the pipeline ``tirx`` lowers."""


def passes_for(module: tvm.IRModule) -> tuple[Any, Any, Any]:
    """The passes that lower a module, and what makes those that finish host code and device code."""
    if not is_tirx(module):
        passes: tuple[Any, Any, Any] = tirx.get_tir_pipeline("default")
        return passes
    tirx_passes, finish_host, finish_device = tirx.get_tir_pipeline("tirx")
    # It asks for "tir.disable_vectorize", which is no pass config.
    serial = tirx.transform.VectorizeLoop(not PassContext.current().config.get("tirx.disable_vectorize", False))
    return tvm.transform.Sequential([serial, tirx_passes]), finish_host, finish_device


def is_tirx(module: tvm.IRModule) -> bool:
    """Whether any function of a module has scopes, tile primitives or layouts of TIRx."""
    return any(map(_has_tirx, module.functions.values()))


def require_one_order(module: tvm.IRModule, unit: Unit) -> None:
    """Check that each buffer has one order of its elements, if the pipeline ``tirx`` lowers a module.

    Raises:
        DefinitionError: a buffer has no layout, or its layout says one thing and its strides another.
    """
    if not is_tirx(module):
        return
    for variable, function in module.functions_items():
        if function.attrs.get("s_tir", False):
            raise DefinitionError(
                f"{variable.name_hint!r} is a function with s_tir=True, whose buffers have no layout; it, or another "
                "of its module, has scopes, tile primitives or layouts of TIRx, which need one",
                unit.where,
                "remove s_tir=True, or what is of TIRx",
            )
        for buffer in _buffers(function):
            if len(buffer.strides) and buffer.layout is not None and not _agree(buffer):
                raise _two_orders(buffer, unit)


def _two_orders(buffer: Any, unit: Unit) -> DefinitionError:
    shape, strides = (", ".join(map(str, values)) for values in (buffer.shape, buffer.strides))
    return DefinitionError(
        f"buffer {str(buffer.name)!r} has the strides [{strides}] and the layout {buffer.layout}, which are two orders "
        "of its elements; in a function with scopes, tile primitives or layouts of TIRx the layout counts",
        unit.where,
        f"declare the layout that has these strides: layout=T.TileLayout(T.S[({shape}) : ({strides})])",
    )


def _has_tirx(function: tirx.PrimFunc) -> bool:
    uses: list[bool] = []

    def note(node: Any) -> None:
        uses.append(True)

    def note_call(call: Any) -> None:
        if str(getattr(call.op, "name", "")).startswith(TIRX_CALLS):
            uses.append(True)

    visitors = [((tirx.stmt.ScopeIdDefStmt, TilePrimitiveCall), note), (tvm.ir.Call, note_call)]
    tvm_ffi.structural_walk(function.body, visitors)
    return bool(uses) or any(map(_is_laid_out, _buffers(function)))


def _buffers(function: tirx.PrimFunc) -> Iterator[Any]:
    """The buffers that a function has as parameters, or declares."""
    declared: list[Any] = []
    tvm_ffi.structural_walk(
        function.body, ((tirx.DeclBuffer, tirx.AllocBuffer), lambda node: declared.append(node.buffer))
    )
    yield from (parameter for parameter in function.params if tirx.buffer.is_buffer_var(parameter))
    yield from declared


def _is_laid_out(buffer: Any) -> bool:
    """Whether a buffer has a layout that is not that of compact arrays, which TVMScript gives to every buffer."""
    layout = buffer.layout
    return layout is not None and not (isinstance(layout, TileLayout) and layout.is_trivial())


def _agree(buffer: Any) -> bool:
    stepped = TileLayout(S[tuple(buffer.shape) : tuple(buffer.strides)])
    return bool(tvm_ffi.structural_equal(buffer.layout.canonicalize(), stepped.canonicalize()))
