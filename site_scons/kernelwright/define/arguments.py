"""Arguments that a definition declares, because the source of the kernel does not say enough about them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from types import EllipsisType
from typing import Any

from ..core.errors import DefinitionError, Where, shown
from ..runtime.size import translate
from .sizes import Size, Sizes, check_size, text_of, unbracketed
from .strides import COMPACT, Strides, as_given, require_divisor, strides_of

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""The dtypes that tensors can have."""

SCALARS = ("float64", "float32", "int64", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool")
"""The dtypes of numbers that can be arguments."""

MOST_ALIGNED = 1 << 16
"""Largest alignment of data, in bytes; that of memory which CUDA allocates is 512."""


EXAMPLE = 'write, for example, Tensor({!r}, "m", 128, ceildiv("m", 64)); divisors are numbers'

ROWS = "rows"
"""The name of the product of leading dimensions for which a shape has just ``...``."""


@dataclass(frozen=True, init=False)
class Tensor:
    """A tensor argument.

    Arguments:
        dtype: its type, such as ``float16``.
        shape: its sizes: integers, and names of sizes that callers choose. Equal names are equal sizes. A size
            can also follow from sizes that other arguments have: ``"8 * m8"``, or ``ceildiv("t", 64)``. ``(..., "n")``
            as the first one stands for any number of leading dimensions, which fold into one of the size ``n``, their
            product; ``...`` is short for ``(..., "rows")``. Arrays that fold to one name have equal leading dimensions.
        alignment: bytes that its data is aligned to; default: those of an element, so that slices can be passed. More
            lets the code load several elements at once.
        multiples: name of a size or stride -> what it is a multiple of, which callers are held to.
        written: whether the kernel writes to it; outputs are written in any case. None: not said, which is no, where
            the source does not tell either.
        strides: in elements: ``compact``, which is row-major order without gaps; ``dense``, which is 1 in the last
            dimension and anything in the others; ``free``, which is anything; or one for each dimension: an integer, a
            name, an expression over names, or None for anything. The name of a size stands for that size. Anything may
            be negative, and 0 unless the kernel writes to it.
        folds: whether leading dimensions fold into the first one of the shape.
        optional: whether callers may pass None for it, or leave it out; the function gets a null pointer then.
        given: whether this variant is for calls that pass a tensor; False: it is for those that pass None or leave it
            out, and nothing else is known of the tensor.
    """

    dtype: str
    shape: tuple[int | str, ...]
    folds: bool
    alignment: int | None
    multiples: Mapping[str, int]
    written: bool | None
    strides: Strides
    optional: bool
    given: bool

    def __init__(
        self,
        dtype: str,
        *shape: int | str | Size | EllipsisType | tuple[EllipsisType, str],
        alignment: int | None = None,
        multiples: Mapping[str, int] | None = None,
        written: bool | None = None,
        strides: str | Sequence[int | str | Size | None] = COMPACT,
        optional: bool = False,
        given: bool = True,
    ) -> None:
        if given is False:
            shape, alignment, multiples, strides = (), None, None, COMPACT
        first: Any = (..., ROWS) if shape[:1] == (...,) else next(iter(shape), None)
        folds = isinstance(first, tuple) and len(first) == 2 and first[0] is ...
        texts = (
            text_of(size) if isinstance(size, Size) else size for size in (first[1:] + shape[1:] if folds else shape)
        )
        sizes: Any = tuple(unbracketed(size) if isinstance(size, str) else size for size in texts)
        values = (dtype, sizes, folds, alignment, dict(multiples or {}), written, as_given(strides), optional, given)
        for each, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, each.name, value)

    @property
    def passed(self) -> bool | None:
        """Whether callers pass a tensor for it; False: they pass None; None: either."""
        return None if self.optional else self.given

    @classmethod
    def of_fields(cls, dtype: str, shape: Sequence[int | str], folds: bool = False, **others: Any) -> Tensor:
        """The tensor with these fields; see ``core/converter.py``."""
        return cls(dtype, *([(..., *shape[:1]), *shape[1:]] if folds else shape), **others)

    def specialized(self, step: int, sizes: Collection[int | str]) -> Tensor:
        """The same tensor, with data that is aligned to a number of bytes, and sizes that are multiples of it.

        Arguments:
            step: the number, a power of two.
            sizes: the names of those sizes, of this tensor or of others.
        """
        names = (size for size in self.shape if isinstance(size, str) and size in sizes)
        multiples = {**self.multiples, **{name: math.lcm(step, self.multiples.get(name, 1)) for name in names}}
        changed = {"alignment": max(step, self.alignment or 1), "multiples": multiples}
        return self.of_fields(**{**vars(self), **changed})

    def with_demands_of(self, other: Tensor) -> Tensor:
        """The same tensor, which has to be as aligned as another one, and to have sizes that are multiples as there."""
        multiples = multiples_of({"this": self, "that": other})
        alignment = max(self.alignment or 0, other.alignment or 0) or None
        strides = other.strides if isinstance(self.strides, str) else self.strides  # multiples may name them
        return self.of_fields(**{**vars(self), "alignment": alignment, "multiples": multiples, "strides": strides})

    def without_demands(self, name: str) -> Tensor:
        """The same tensor, of any alignment and with any sizes, whose strides stand one by one.

        Arguments:
            name: of the argument.
        """
        strides = strides_of(name, self.shape, self.strides)
        return self.of_fields(**{**vars(self), "alignment": None, "multiples": {}, "strides": strides})


@dataclass(frozen=True)
class Scalar:
    """A number as an argument.

    Arguments:
        dtype: its type, such as ``float32``.
        default: what it is in calls that leave it out, or that pass None; None: none may.
        multiple: what an integer is a multiple of, which callers are held to.
    """

    dtype: str
    default: bool | int | float | None = None
    multiple: int = 1

    @property
    def is_multiple(self) -> bool:
        """Whether its ``multiple`` is a number that such an argument can be a multiple of, as its default then is."""
        fits = (
            type(self.multiple) is int and 0 < self.multiple < 1 << 31 and ("int" in self.dtype or self.multiple == 1)
        )
        return fits and (self.default is None or self.multiple == 1 or self.default % self.multiple == 0)


@dataclass(frozen=True, init=False)
class Workspace:
    """Temporary memory of a call, which no caller sees. Launches of one call that name the same one share it.

    Arguments:
        dtype: the type of its elements.
        shape: their number is the product: sizes that a call tells, or integers.
        zeroed: whether it is all zeros before the first launch; otherwise nothing is known of its content.
    """

    dtype: str
    shape: tuple[Sizes, ...]
    zeroed: bool

    def __init__(self, dtype: str, *shape: Sizes, zeroed: bool = False) -> None:
        for name, value in (("dtype", dtype), ("shape", shape), ("zeroed", zeroed)):
            object.__setattr__(self, name, value)

    @classmethod
    def of_fields(cls, dtype: str, shape: Sequence[Sizes], **others: Any) -> Workspace:
        """The workspace with these fields; see ``core/converter.py``."""
        return cls(dtype, *shape, **others)

    def check(self, name: str, names: frozenset[str], where: Where) -> None:
        """Raise a DefinitionError for what no memory can be.

        Arguments:
            name: that of the parameter.
            names: the sizes that a call tells.
        """
        if self.dtype not in DTYPES:
            message = f"workspace {name!r} has the dtype {shown(self.dtype)}, which no tensor can have here"
            raise DefinitionError(message, where, f"use one of {', '.join(DTYPES)}")
        for size in self.shape:
            check_size(size, names, f"workspace {name!r}", where)
            if isinstance(size, int) and size < 0:
                message = f"workspace {name!r} has the size {size}"
                raise DefinitionError(message, where, "write a size that is not negative")
            try:
                translate(text_of(size), str, str, require_divisor)
            except ValueError as error:
                message = f"workspace {name!r} has the size {shown(unbracketed(text_of(size)))}: {error}"
                raise DefinitionError(
                    message, where, "divide by a number, or pass the quotient as an argument"
                ) from error


def is_absent(value: object) -> bool:
    """Whether an argument is a tensor for which each call of the variant passes None."""
    return isinstance(value, Tensor) and value.passed is False


def multiples_of(declared: Mapping[str, Any], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """The multiples of sizes: name of a size -> the number that its values are multiples of, by all declarations.

    Arguments:
        declared: the arguments by their names.
        known: multiples from elsewhere.
    """
    multiples = dict(known or {})
    for argument, value in declared.items():
        own = {argument: value.multiple} if isinstance(value, Scalar) and value.multiple != 1 else {}
        for name, number in (value.multiples if isinstance(value, Tensor) else own).items():
            multiples[name] = math.lcm(number, multiples.get(name, 1))
    return multiples
