"""Sizes in definitions that declare their arguments: numbers that are computed of the sizes of a call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import DefinitionError, Where, shown
from ..runtime.size import CEILDIV, FUNCTIONS, stride_of, translate

INTEGERS = ("int32", "int64", "uint32", "uint64")
"""The dtypes that a size can be passed as."""


@dataclass(frozen=True)
class Size:
    """A number that follows from the sizes of a call, and is no argument of the kernel.

    It can be computed with: ``Size("n") * 4 + 1`` and ``Size("n * 4 + 1")`` are the same.

    Arguments:
        text: an expression over the names in the shapes of tensors: integers, ``+ - * // %``, ``min``, ``max`` and
            ``ceildiv``.
        dtype: what a parameter gets it as: ``int32``, ``int64``, ``uint32`` or ``uint64``.
    """

    text: str | int
    dtype: str = "int32"

    def __add__(self, other: Size | str | int) -> Size:
        return self._with("+", other)

    def __sub__(self, other: Size | str | int) -> Size:
        return self._with("-", other)

    def __mul__(self, other: Size | str | int) -> Size:
        return self._with("*", other)

    def __floordiv__(self, other: Size | str | int) -> Size:
        return self._with("//", other)

    def __mod__(self, other: Size | str | int) -> Size:
        return self._with("%", other)

    def __radd__(self, other: str | int) -> Size:
        return Size(other, self.dtype) + self

    def __rsub__(self, other: str | int) -> Size:
        return Size(other, self.dtype) - self

    def __rmul__(self, other: str | int) -> Size:
        return Size(other, self.dtype) * self

    def _with(self, operator: str, other: Size | str | int) -> Size:
        return Size(f"({text_of(self)} {operator} {text_of(other)})", self.dtype)


Sizes = Size | str | int
"""What can be a size of a launch; text is an expression, as in a :class:`Size`."""


def ceildiv(size: Size | str | int, divisor: Size | str | int) -> Size:
    """The quotient of two sizes, rounded up: how many blocks of ``divisor`` elements cover ``size`` elements."""
    whole = size if isinstance(size, Size) else Size(size)
    return (whole + divisor - 1) // divisor


def text_of(size: Any) -> str:
    """A size as an expression, in brackets if it was made of others; of something else, what Python writes for it."""
    if isinstance(size, Size):
        return text_of(size.text)
    if isinstance(size, str):
        return size if size.isidentifier() or is_bracketed(size) else f"({size})"
    return str(size) if type(size) is int else repr(size)


def is_bracketed(text: str) -> bool:
    """Whether an expression has brackets around all of it: ``(a + b)``, and not ``(a) + (b)``."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return position > 0 and position == len(text) - 1
    return False


def unbracketed(text: str) -> str:
    """An expression without the brackets around all of it."""
    return text[1:-1] if is_bracketed(text) else text


def plain_text(size: str) -> str:
    """A size that was declared, in the operations that signatures have."""

    def text(operation: str, operands: list[str]) -> str:
        if operation in FUNCTIONS:
            return f"{operation}({', '.join(map(unbracketed, operands))})"
        return f"({f' {operation} '.join(operands)})" if len(operands) > 1 else f"(0 - {operands[0]})"

    return unbracketed(translate(size, str, str, text)) if CEILDIV in size else size


def names_in(size: Sizes) -> list[str]:
    """The names in a size.

    Raises:
        ValueError: it is no arithmetic.
    """
    used: list[str] = []
    translate(text_of(size), _nothing, used.append, _nothing)
    return used


def divisor_of(size: Sizes, multiples: Mapping[str, int]) -> int:
    """What a size is a multiple of, as far as its terms tell; 0 if it is 0."""

    def operation(name: str, operands: list[int]) -> int:
        if name == "*":
            return math.prod(operands)
        return math.gcd(*operands) if name != "//" else 1

    return translate(text_of(size), abs, lambda name: multiples.get(name, 1), operation)


def on_axes(name: str, sizes: Sizes | Sequence[Sizes] | None) -> Iterator[tuple[str, Sizes]]:
    """The sizes of a launch as TVM names them: ``blockIdx.x`` and the size, and so on."""
    for axis, size in zip("xyz", _listed(sizes), strict=False):
        yield f"{name}.{axis}", size


def check_axes(sizes: Any, names: frozenset[str], what: str, where: Where) -> None:
    """Raise a DefinitionError unless something is one to three sizes that a call tells; the others are as below."""
    axes = _listed(sizes)
    if not 1 <= len(axes) <= 3:
        raise DefinitionError(f"{what} has {len(axes)} sizes", where, "give one to three: x, y and z")
    for size in axes:
        check_size(size, names, what, where)


def check_size(size: Any, names: frozenset[str], what: str, where: Where) -> None:
    """Check that a value is a size that follows from the arguments of a call.

    Arguments:
        names: those in the shapes of tensors.
        what: what it is of, for messages.

    Raises:
        DefinitionError: it is no arithmetic, or has a name that is in no shape.
    """
    remedy = (
        'write an integer, or an expression over sizes with + - * // % min max and ceildiv, such as ceildiv("n", 256)'
    )
    if not isinstance(size, (Size, str)) and type(size) is not int:
        raise DefinitionError(f"{what} is {shown(size)}, which is no size", where, remedy)
    try:
        used = names_in(size)
    except ValueError as error:
        raise DefinitionError(
            f"{what} is {shown(text_of(size))}, which is no arithmetic: {error}", where, remedy
        ) from error
    unknown = next((name for name in used if name not in names), None)
    if unknown is not None and stride_of(unknown) != unknown:
        message = f"{what} has {stride_of(unknown)}, and no Tensor that is given has that name and such a dimension"
        known = ", ".join(stride_of(name) for name in sorted(names) if stride_of(name) != name) or "none"
        remedy = f"name a dimension of a Tensor; there are {known}; pass 0 for one of a Tensor with given=False"
        raise DefinitionError(message, where, remedy)
    if unknown is not None:
        known = ", ".join(sorted(name for name in names if stride_of(name) == name)) or "none"
        message = f"{what} has the name {unknown!r}, which is in no shape of a Tensor that is passed ({known})"
        raise DefinitionError(message, where, remedy)
    if isinstance(size, Size) and size.dtype not in INTEGERS:
        raise DefinitionError(f"{what} has the dtype {shown(size.dtype)}", where, f"use one of {', '.join(INTEGERS)}")


def _listed(sizes: Any) -> list[Any]:
    if sizes is None:
        return []
    return list(sizes) if isinstance(sizes, (list, tuple)) else [sizes]


def _nothing(*_: Any) -> None:
    return None
