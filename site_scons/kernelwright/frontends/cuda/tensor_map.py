"""Tensor maps in definitions. A tensor map describes an array to the copy engine of a GPU (TMA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dtype import Dtype, bytes_of
from ...core.errors import DefinitionError, Where, shown
from ...define.arguments import Tensor
from ...define.strides import all_strides

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes within which the copies of rows are exchanged -> the number of the mode (CUtensorMapSwizzle in cuda.h)."""

PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""Bytes that the level 2 cache loads at once -> the number of the mode (CUtensorMapL2promotion)."""

FILLS = {"zero": 0, "nan": 1}
"""What a copy has for elements out of bounds -> the number of the mode (CUtensorMapFloatOOBfill)."""

WITH_NAN = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that a copy can fill with NaN."""

LARGEST_BOX, LARGEST_RANK, UNIT = 256, 5, 16
"""Limits of cuTensorMapEncodeTiled: elements in a dimension of a box, dimensions, and bytes that addresses, strides and
rows of a box are multiples of."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor argument of which the function gets a ``CUtensorMap`` instead of a pointer.

    The launcher has the driver encode it, from the address and the sizes of each call.

    Arguments:
        tensor: the argument.
        box: how many elements one copy has in each dimension, in the order of the tensor's shape.
        swizzle: 0, 32, 64 or 128 bytes.
        promotion: 0, 64, 128 or 256 bytes.
        fill: ``zero`` or ``nan``, which is for floating-point numbers of two bytes or more.
    """

    tensor: Tensor
    box: Sequence[int]
    swizzle: int = 0
    promotion: int = 0
    fill: str = "zero"

    def check(self, name: str, where: Where) -> None:
        """Raise a DefinitionError if no driver can encode the map.

        Arguments:
            name: of the argument.
        """
        if isinstance(self.tensor, Tensor) and self.tensor.passed is not True:
            message = f"the TensorMap of {name!r} is of a tensor that may be None, and there is no map of no memory"
            raise DefinitionError(message, where, "make a variant with another function, which takes a plain Tensor")
        if not isinstance(self.tensor, Tensor) or not 1 <= len(self.tensor.shape) <= LARGEST_RANK:
            message = f"the TensorMap of {name!r} is of {shown(self.tensor)}"
            raise DefinitionError(message, where, f"give it a Tensor with one to {LARGEST_RANK} dimensions")
        last_stride = all_strides(name, self.tensor.shape, self.tensor.strides)[-1:]
        if last_stride != (1,):
            message = f"the TensorMap of {name!r} is of a tensor whose last stride is not always 1"
            raise DefinitionError(message, where, 'write strides="dense", or 1 as the last of the strides')
        box, rank = list(self.box), len(self.tensor.shape)
        if len(box) != rank or not all(type(size) is int and 1 <= size <= LARGEST_BOX for size in box):
            message = f"the TensorMap of {name!r} has box={shown(self.box)}"
            raise DefinitionError(
                message, where, f"give {rank} integers from 1 to {LARGEST_BOX}, one for each dimension"
            )
        for what, value, known in (
            ("swizzle", self.swizzle, SWIZZLES),
            ("promotion", self.promotion, PROMOTIONS),
            ("fill", self.fill, FILLS),
        ):
            if value not in known:
                message = f"the TensorMap of {name!r} has {what}={shown(value)}"
                raise DefinitionError(message, where, f"use one of {', '.join(map(str, known))}")
        if self.fill == "nan" and self.tensor.dtype not in WITH_NAN:
            message = f"the TensorMap of {name!r} has fill='nan' and the dtype {shown(self.tensor.dtype)}"
            raise DefinitionError(message, where, f"use fill='zero', or one of {', '.join(WITH_NAN)}")
        element = bytes_of(Dtype.parse(self.tensor.dtype, where).bits)
        row = box[-1] * element
        if row % UNIT or (self.swizzle and row > self.swizzle):
            message = f"the TensorMap of {name!r} has a box with rows of {row} bytes"
            limit = f", and no more than its swizzle of {self.swizzle}" if self.swizzle else ""
            raise DefinitionError(message, where, f"make them a multiple of {UNIT}{limit}")
        last = self.tensor.shape[-1]
        if rank > 1 and isinstance(last, int) and last * element % UNIT:
            message = f"the TensorMap of {name!r} is of a tensor with rows of {last * element} bytes"
            raise DefinitionError(message, where, f"make them a multiple of {UNIT}")
