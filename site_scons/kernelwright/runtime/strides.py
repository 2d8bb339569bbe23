"""Compares the strides of arrays with those that a variant declares, as the library's dispatcher does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from .size import Size, value_or_none

Strides = Sequence[Any] | None
"""In elements; None: those of a compact array."""


class Strided(Protocol):
    """An array."""

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """Its sizes; None: it is a number."""

    @property
    def strides(self) -> Strides:
        """Its strides."""


def stride_of(array: Strided, axis: int) -> Any:
    """How many elements lie between one index and the next."""
    return prod((array.shape or ())[axis + 1 :]) if array.strides is None else array.strides[axis]


def fold(shape: Sequence[Any], strides: Strides, trailing: int) -> tuple[tuple[Any, ...], Strides] | None:
    """Shape and strides of an array whose leading dimensions are one; None: its rows are not equally far apart.

    Arguments:
        trailing: how many dimensions stay as they are.
    """
    leading = len(shape) - trailing
    rows, rest = prod(shape[:leading]), tuple(shape[leading:])
    if strides is None:
        return (rows, *rest), None
    count, step = 1, prod(rest)
    for size, stride in reversed([*zip(shape[:leading], strides[:leading], strict=True)]):
        if size == 1:
            continue
        if count == 1:
            step = stride
        elif stride != step * count and 0 not in shape:
            return None
        count *= size
    return (rows, *rest), (step, *strides[leading:])


def told_stride(places: Iterable[tuple[Strided | None, int]], step: int = 1) -> Any:
    """What arrays tell of a symbol that only strides have.

    The first one counts that has several elements along the dimension. Over a single one nothing strides: if all are
    so, the symbol is what it is in a compact array, as a multiple of ``step``.

    Arguments:
        places: the arrays, of which an output may be left out and others may be None, each with a dimension.
        step: what the symbol has to be a multiple of.
    """
    given = [(array, array.shape, axis) for array, axis in places if array is not None and array.shape is not None]
    for array, shape, axis in given:
        if shape[axis] > 1 and 0 not in shape:
            return stride_of(array, axis)
    for _, shape, axis in given:
        stride = prod(shape[axis + 1 :])
        return stride - stride % step
    return 0


class DeclaredStrides:
    """The strides that the arguments of a variant declare.

    Arguments:
        entry: the variant's part of the manifest.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        arguments = entry["arguments"]
        self._declared = [[_stride(stride) for stride in item.get("strides", ())] for item in arguments]
        self._places: dict[str, list[tuple[int, int]]] = {}
        firm = [not item["output"] and item.get("given", True) is True for item in arguments]
        for position in sorted(range(len(firm)), key=lambda number: not firm[number]):
            for axis, stride in enumerate(arguments[position].get("strides", ())):
                if isinstance(stride, str) and stride.isidentifier():
                    self._places.setdefault(stride, []).append((position, axis))
        multiples = entry.get("multiples", {})
        self._steps = {name: multiples.get(name, 1) for name in self._places}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return any(self._declared)

    def told(self, call: Sequence[Strided | None], sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each symbol in strides.

        Arguments:
            call: all arguments in order; None for an output that is left out.
            sizes: the values of symbols that sizes and numbers tell.
        """
        told = {
            name: told_stride([(call[position], axis) for position, axis in places], self._steps[name])
            for name, places in self._places.items()
        }
        return {**told, **sizes}

    def other(self, position: int, call: Sequence[Strided | None], told: Mapping[str, Any]) -> tuple[int, Any] | None:
        """The first dimension in which an array has another stride than it needs, and what it needs; or None."""
        array, strides = call[position], self._declared[position]
        if array is None or array.shape is None or 0 in array.shape or (array.strides is None and not strides):
            return None
        for axis, size in enumerate(array.shape):
            declared = strides[axis] if strides else prod(array.shape[axis + 1 :])
            expected = value_or_none(declared, told) if isinstance(declared, Size) else declared
            if stride_of(array, axis) != expected and size != 1:
                return axis, expected
        return None

    def fit(self, call: Sequence[Strided | None], sizes: Mapping[str, Any]) -> bool:
        """Whether the strides of all arrays of a call fit; see :meth:`told`."""
        told = self.told(call, sizes)
        if any(self.other(position, call, told) for position in range(len(call))):
            return False
        return all(told[name] % step == 0 for name, step in self._steps.items())


def _stride(stride: int | str) -> Size | int:
    return Size(stride) if isinstance(stride, str) else int(stride)
