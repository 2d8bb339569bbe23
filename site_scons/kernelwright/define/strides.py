"""Strides that definitions declare: how many elements lie between one index of a dimension and the next."""

from __future__ import annotations

import keyword
import math
from collections.abc import Collection, Sequence
from typing import Any

from ..core.errors import DefinitionError, Where, shown
from ..runtime.size import stride_name, translate
from .sizes import Size, names_in, text_of

COMPACT, DENSE, FREE = "compact", "dense", "free"
"""Words in place of a stride for each dimension; see ``Tensor`` in ``arguments.py``."""

Strides = str | tuple[int | str | None, ...]
"""Strides as a tensor declares them: a word, or for each dimension an integer, an expression, or None for any."""

WRITE = 'write for example strides=("s", 1): an integer, a name, an expression over names, or None for each dimension'


def Stride(argument: str, dimension: int, dtype: str = "int32") -> Size:
    """The stride of a tensor argument in a dimension, in elements, as the array of a call has it.

    Arguments:
        argument: the name of the argument.
        dimension: its number, from 0.
        dtype: as that of a :class:`Size`, which it is: it can be computed with.

    Raises:
        DefinitionError: these are no name and no number.
    """
    if not isinstance(argument, str) or not argument.isidentifier() or type(dimension) is not int or dimension < 0:
        message = f"a Stride is of {shown(argument)} and {shown(dimension)}, which are no argument and dimension"
        raise DefinitionError(message, Where(stage="discover"), 'write for example Stride("x", 0): dimensions count up')
    return Size(stride_name(argument, dimension), dtype)


def as_given(strides: Any) -> Strides:
    """Strides as a tensor keeps them: sizes become their text, and what are no strides what Python writes for it."""
    if not isinstance(strides, (list, tuple)):
        return strides if isinstance(strides, str) else repr(strides)
    return tuple(text_of(stride) if isinstance(stride, Size) else stride for stride in strides)


def strides_of(name: str, shape: Sequence[int | str], strides: Strides) -> tuple[int | str, ...]:
    """The strides of an argument that it declares, each with a name if it is free; none if it has to be compact, or if
    they are no strides, which :func:`check_strides` says."""
    if strides == COMPACT:
        return ()
    free = (None,) * len(shape)
    listed = {FREE: free, DENSE: (*free[1:], 1)}.get(strides) if isinstance(strides, str) else strides
    known = listed if isinstance(listed, tuple) else ()
    return tuple(stride_name(name, axis) if stride is None else stride for axis, stride in enumerate(known))


def all_strides(name: str, shape: Sequence[int | str], strides: Strides) -> tuple[int | str, ...]:
    """As :func:`strides_of`, and those of a compact array if the argument has to be one."""
    if strides != COMPACT:
        return strides_of(name, shape, strides)
    return tuple(_product(shape[axis + 1 :]) for axis in range(len(shape)))


def _product(sizes: Sequence[int | str]) -> int | str:
    number = math.prod(size for size in sizes if isinstance(size, int))
    names = [text_of(size) for size in sizes if not isinstance(size, int)]
    return " * ".join([*names, *([str(number)] if number != 1 else [])]) if names else number


def check_strides(name: str, shape: Sequence[int | str], strides: Any, is_written: bool, where: Where) -> None:
    """Raise a DefinitionError unless an argument can have these strides.

    Arguments:
        name: that of the argument.
        shape: its shape.
        is_written: whether the kernel writes it.
    """
    if strides in (COMPACT, DENSE, FREE) and isinstance(strides, str):
        listed: Sequence[Any] = strides_of(name, shape, strides)
    elif isinstance(strides, tuple) and len(strides) == len(shape):
        listed = strides
    else:
        message = f"argument {name!r} has strides={shown(strides)}, and {len(shape)} dimensions"
        raise DefinitionError(message, where, f'{WRITE}; or one of the words "compact", "dense" and "free"')
    if not shape and strides != COMPACT:
        message = f"argument {name!r} has strides={shown(strides)}, and no dimensions to stride over"
        raise DefinitionError(message, where, "leave strides out")
    for axis, stride in enumerate(listed):
        _check_stride(f"stride {axis} of argument {name!r}", stride, where)
        if stride == 0 and is_written and shape[axis] != 1:
            message = f"stride {axis} of argument {name!r} is 0, and the kernel writes it"
            raise DefinitionError(message, where, "give each element of it a place of its own")


def _check_stride(what: str, stride: Any, where: Where) -> None:
    if stride is None or (type(stride) is int and abs(stride) < 1 << 63):
        return
    if not isinstance(stride, str):
        raise DefinitionError(f"{what} is {shown(stride)}, which is no stride", where, WRITE)
    try:
        translate(stride, str, str, require_divisor)
        if any(not used.isascii() or keyword.iskeyword(used) for used in names_in(stride)):
            raise ValueError("a name in it is none in C")
    except ValueError as error:
        raise DefinitionError(f"{what} is {shown(stride)}, which is no stride: {error}", where, WRITE) from error


def require_divisor(operation: str, operands: list[str]) -> str:
    """Refuse divisions whose divisor may be 0 in a call: the host code computes them before it can check."""
    if operation in ("//", "%") and (not operands[1].isdigit() or int(operands[1]) == 0):
        raise ValueError("its divisor is no positive integer")
    return ""


def check_told(name: str, strides: Sequence[int | str], told: Collection[str], where: Where) -> None:
    """Raise a DefinitionError if an expression among strides has a name that neither sizes nor strides tell."""
    for axis, stride in enumerate(strides):
        unknown = [used for used in names_in(stride) if used not in told]
        if unknown:
            message = f"stride {axis} of argument {name!r} is {stride}, and nothing tells {unknown[0]!r}"
            known = ", ".join(sorted(told)) or "none"
            remedy = f"use names of sizes, of integers, or of strides that stand alone; these are {known}"
            raise DefinitionError(message, where, remedy)
