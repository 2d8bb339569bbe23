"""The memory of arrays of NumPy and tvm-ffi on the CPU, whatever their strides are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from ...core.dtype import Dtype, bytes_of
from ...core.errors import Where


def strides_of(array: Any) -> list[int]:
    """The strides of an array in elements. NumPy has them in bytes."""
    item = array.itemsize if hasattr(array, "ctypes") else 1
    return [int(stride) // item for stride in array.strides]


def before_first(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory there are before the first element of an array, because strides are negative."""
    return -sum(min(stride, 0) * (size - 1) for size, stride in zip(shape, strides, strict=True))


def memory_of(array: Any, dtype: str) -> memoryview:
    """The bytes of an array, from the lowest address to the highest one.

    Arguments:
        dtype: that of its elements.
    """
    shape, strides = [int(size) for size in array.shape], strides_of(array)
    if not math.prod(shape):
        return memoryview(bytearray())
    bits = Dtype.parse(dtype, Where(stage="check")).bits
    count = 1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))
    address = array.ctypes.data if hasattr(array, "ctypes") else array.data_ptr()
    low = address - bytes_of(before_first(shape, strides) * bits)
    return memoryview((ctypes.c_ubyte * bytes_of(count * bits)).from_address(low)).cast("B")
