"""Tells TVM's simplifier which sizes are multiples of a number.

In the body of a function the size ``n`` becomes ``n // 16 * 16``. So conditions such as ``block * 16 + lane < n`` turn
into ``block < n // 16``, and loops over vectors need no tail. The function refuses other sizes by an assertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...core.errors import DefinitionError
from ..unit import Unit


def assumed(function: tirx.PrimFunc, multiples: Mapping[str, int], unit: Unit) -> tirx.PrimFunc:
    """The function with each of the sizes written as a multiple.

    Arguments:
        multiples: size symbol -> what its values are multiples of.

    Raises:
        DefinitionError: a symbol is not a size of an input, where callers' arrays could be compared with it.
    """
    pairs = [(_symbol(function, name, unit), number) for name, number in multiples.items()]

    def replaced(variable: Any) -> Any:
        return next((_rounded(symbol, number) for symbol, number in pairs if variable.same_as(symbol)), variable)

    body = tvm_ffi.structural_map(function.body, (tvm.ir.Var, replaced))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)


def asserted(function: tirx.PrimFunc, multiples: Mapping[str, int], unit: Unit) -> tirx.PrimFunc:
    """The scheduled function with an assertion in front for each size, which its host code makes before it launches."""
    checks = [_check(_symbol(function, name, unit), name, number, unit) for name, number in multiples.items()]
    body = tirx.SeqStmt([*checks, function.body])
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)


def _check(symbol: Any, name: str, number: int, unit: Unit) -> tirx.AssertStmt:
    remedy = f"pass arrays of such sizes, or list 1 for {name} in divisible"
    message = f"kernel '{unit.kernel}': the size {name} is not a multiple of {number}\n  remedy: {remedy}"
    passes = tirx.EQ(tirx.FloorMod(symbol, _number(symbol, number)), _number(symbol, 0))
    # TVM 0.27 documents another order of these arguments.
    return tirx.AssertStmt(passes, tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(message)])


def _rounded(symbol: Any, number: int) -> Any:
    return tirx.FloorDiv(symbol, _number(symbol, number)) * _number(symbol, number)


def _number(symbol: Any, value: int) -> Any:
    return tirx.IntImm(symbol.ty.dtype, value)


def _symbol(function: tirx.PrimFunc, name: str, unit: Unit) -> Any:
    sizes: list[Any] = []
    outputs = unit.named([str(parameter.name) for parameter in function.params])
    for parameter in function.params:
        if tirx.buffer.is_buffer_var(parameter) and str(parameter.name) not in outputs:
            sizes += [size for size in (*parameter.shape, *parameter.strides) if isinstance(size, tvm.ir.Var)]
    symbol = next((size for size in sizes if str(size.name) == name), None)
    if symbol is None:
        names = ", ".join(dict.fromkeys(str(size.name) for size in sizes)) or "there are none"
        message = f"divisible names {name!r}, which is no size or stride of an input (those are: {names})"
        raise DefinitionError(message, unit.where, "name a variable that is a whole dimension or stride of an input")
    return symbol
