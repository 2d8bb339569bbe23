"""Structures that functions get by value. Their members are values as parameters are, at the places of C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.dtype import Dtype, bytes_of
from ...core.errors import Where
from ...core.signature import Structure
from ...define.arguments import Tensor, Workspace
from ..launches import dtype_of
from .tensor_map import TensorMap


@dataclass(frozen=True, init=False)
class Struct:
    """A structure that a function gets by value.

    Arguments:
        fields: all of its members, in order, by their names: what a parameter could be, or a Struct. The arguments
            among them are arguments of the kernel by these names.
    """

    fields: Mapping[str, Any]

    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "fields", fields)

    @property
    def names(self) -> Iterator[str]:
        """Those of its members, and of what these have."""
        for name, value in self.fields.items():
            yield from (name, *(value.names if isinstance(value, Struct) else ()))


@dataclass(frozen=True)
class Field:
    """A member of a structure, also of one in it.

    Arguments:
        path: the names that lead to it.
        offset, bytes: where it is in the outermost structure.
        value: what the definition says of it.
    """

    path: tuple[str, ...]
    offset: int
    bytes: int
    value: Any


def fields_of(struct: Struct) -> list[Field]:
    """The members of a structure, and of those in it, by C's rules."""
    return list(_placed(struct, (), 0))


def _placed(struct: Struct, path: tuple[str, ...], offset: int) -> Iterator[Field]:
    for name, value in struct.fields.items():
        size, alignment = _measure(value)
        offset = -(-offset // alignment) * alignment
        if isinstance(value, Struct):
            yield from _placed(value, (*path, name), offset)
        else:
            yield Field((*path, name), offset, size, value)
        offset += size


def bytes_of_struct(struct: Struct) -> int:
    """The size of a structure."""
    return _measure(struct)[0]


def _measure(value: Any) -> tuple[int, int]:
    """The size and the alignment of a member."""
    if isinstance(value, TensorMap):
        return 128, 64
    if not isinstance(value, Struct):
        size = 8 if isinstance(value, (Tensor, Workspace)) else bytes_of(Dtype.parse(dtype_of(value), Where()).bits)
        return size, size
    end, most = 0, 1
    for size, alignment in map(_measure, value.fields.values()):
        end, most = -(-end // alignment) * alignment + size, max(most, alignment)
    return max(-(-end // most) * most, 1), most


def flat(parameters: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The values of parameters by name; in place of a structure, those of its members."""
    return [
        pair
        for name, value in parameters.items()
        for pair in (flat(value.fields) if isinstance(value, Struct) else [(name, value)])
    ]


def structures_in(parameters: Mapping[str, Any]) -> tuple[Structure, ...]:
    """The structures among parameters, as a launch puts them together."""
    made, first = [], 0
    for value in parameters.values():
        if isinstance(value, Struct):
            fields = fields_of(value)
            places = tuple((field.offset, field.bytes) for field in fields)
            made.append(Structure(first, bytes_of_struct(value), places))
            first += len(fields)
        else:
            first += 1
    return tuple(made)
