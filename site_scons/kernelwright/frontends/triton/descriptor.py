"""Tensor descriptors as arguments of a Program: by one, a function copies blocks of a tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.dtype import Dtype, bytes_of
from ...core.errors import DefinitionError, LoweringError, Where, shown
from ...define.arguments import DTYPES, Tensor
from ...define.sizes import Size, divisor_of, text_of
from ...define.strides import all_strides, strides_of
from ..cuda.tensor_map import FILLS, LARGEST_RANK, UNIT, WITH_NAN, TensorMap
from ..launches import Passed, encoded

PROMOTION, SWIZZLES = 128, {0: 0, 1: 32, 2: 64, 3: 128}
"""What Triton's driver asks for whatever the code is, and its numbers of what differs -> the bytes."""


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor argument of which the function gets a descriptor instead of a pointer.

    Its data is aligned to 16 bytes, its last stride is 1, and the others are multiples of 16 bytes. Calls are held to
    that.

    Arguments:
        tensor: the argument.
        block_shape: how many elements a block has in each dimension: powers of two.
        padding: what a block has for elements out of bounds: ``zero``, or for floating-point numbers ``nan``.
    """

    tensor: Tensor
    block_shape: Sequence[int]
    padding: str = "zero"

    @property
    def dtype(self) -> str:
        """That of an element."""
        return self.tensor.dtype

    def checked_in_calls(self, name: str) -> TensorDescriptor:
        """The same, whose tensor has what callers are held to among its own demands.

        Arguments:
            name: of the argument.
        """
        tensor = self.tensor
        if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES:
            return self  # which a check says
        strides = strides_of(name, tensor.shape, tensor.strides) or tensor.strides
        steps = all_strides(name, tensor.shape, strides)[:-1]
        names = {str(step): UNIT // math.gcd(UNIT, self._element) for step in steps if str(step).isidentifier()}
        held = {**tensor.multiples, **{step: math.lcm(n, tensor.multiples.get(step, 1)) for step, n in names.items()}}
        changed = {"strides": strides, "multiples": held, "alignment": max(UNIT, tensor.alignment or 1)}
        return replace(self, tensor=tensor.of_fields(**{**vars(tensor), **changed}))

    def specialized(self, step: int, sizes: Collection[int | str]) -> TensorDescriptor:
        """See :meth:`Tensor.specialized`."""
        return replace(self, tensor=self.tensor.specialized(step, sizes))

    @property
    def _element(self) -> int:
        return bytes_of(Dtype.parse(self.dtype, Where()).bits)

    def check(self, name: str, multiples: Mapping[str, int], where: Where) -> None:
        """Raise a DefinitionError if there is no such descriptor.

        Arguments:
            name: of the argument.
            multiples: what sizes and strides are multiples of.
        """
        what = f"the TensorDescriptor of {name!r}"
        if self.tensor.passed is not True or not 1 <= len(self.tensor.shape) <= LARGEST_RANK:
            remedy = f"give it a Tensor with one to {LARGEST_RANK} dimensions that is not None in any call"
            raise DefinitionError(f"{what} is of {shown(self.tensor)}", where, remedy)
        *steps, last = all_strides(name, self.tensor.shape, self.tensor.strides)
        if last != 1:
            message = f"{what} is of a tensor whose last stride is not always 1"
            raise DefinitionError(message, where, 'write strides="dense", or 1 as the last of the strides')
        for step in steps:
            if divisor_of(Size(step), multiples) * self._element % UNIT:
                message = f"{what} has the stride {text_of(step)}, which is not in each call a multiple of {UNIT} bytes"
                remedy = "say what its sizes are multiples of: Tensor(..., multiples={...})"
                raise DefinitionError(message, where, remedy)
        block, rank = self.block_shape, len(self.tensor.shape)
        if (
            not isinstance(block, (list, tuple))
            or len(block) != rank
            or not all(type(size) is int and size > 0 and not size & (size - 1) for size in block)
            or block[-1] * self._element < UNIT
        ):
            remedy = f"give {rank} powers of two, the last of which has {UNIT} bytes or more"
            raise DefinitionError(f"{what} has block_shape={shown(block)}", where, remedy)
        if self.padding not in FILLS or (self.padding == "nan" and self.dtype not in WITH_NAN):
            message = f"{what} has padding={shown(self.padding)} and the dtype {self.dtype}"
            raise DefinitionError(message, where, f"use 'zero', or with {', '.join(WITH_NAN)} 'nan'")

    def passed(self, name: str, described: Mapping[str, Any] | None, where: Where) -> Iterator[tuple[str, Passed]]:
        """What a device function gets for it, in order: as ``make_tensordesc_arg`` and ``decompose_descriptor`` of
        Triton 3.9 have it.

        Arguments:
            name: of the argument.
            described: how Triton copies the blocks, as its ``tensordesc_meta`` has it; None: by pointers.

        Raises:
            LoweringError: no launch here makes such a tensor map.
        """
        shape, strides = self.tensor.shape, all_strides(name, self.tensor.shape, self.tensor.strides)
        told = [(f"{name} {axis}", Size(size)) for axis, size in enumerate(shape)]
        told += [(f"{name} stride {axis}", Size(step, "int64")) for axis, step in enumerate(strides)]
        if described is None:
            yield name, self.tensor
            for also, size in told:
                yield f"{also} in 64 bits", replace(size, dtype="int64")
            yield f"{name} padding", FILLS[self.padding]
            yield f"{name} rounding", 0
        else:
            require_tiled(name, described, where)
            modes = SWIZZLES[described["swizzle"]], PROMOTION, self.padding
            yield name, encoded(name, TensorMap(self.tensor, described["block_size"], *modes))
        yield from told


def require_tiled(name: str, described: Mapping[str, Any], where: Where) -> None:
    """Raise a LoweringError for a way of copying that launches here have no map for.

    Arguments:
        name: of the argument.
        described: as Triton's ``tensordesc_meta`` has it.
    """
    if described["fp4_padded"] or described["is_im2col"]:
        message = f"{name!r} is read as numbers of four bits, or by im2col, for which launches have no map"
        raise LoweringError(message, where, "call tl.make_tensor_descriptor in the function")
