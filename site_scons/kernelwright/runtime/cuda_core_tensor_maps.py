"""Tensor maps of the cuda_core backend: the driver makes them, and launches pass them by value.

cuda.core 1.2 makes them only for arrays whose owner it knows, and passes only those that it made. cuda.bindings 13.4
does not align their memory as the driver requires. So this module makes them with the driver through ctypes, and uses
the driver to launch the functions that take one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

BYTES, ALIGNMENT = 128, 64
"""Size and alignment of a CUtensorMap (cuda.h), in bytes."""

DTYPES = {
    **{"float16": 6, "bfloat16": 9, "float32": 7, "float64": 8, "uint8": 0, "int8": 0},
    **{"uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5},
    **{"bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0},
}
"""dtype -> CUtensorMapDataType. Copies do not look at values, so a signed type may have the number of an unsigned one,
and any type of one byte has that of uint8."""

ELEMENT = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2)
"""CUtensorMapDataType -> bytes of an element."""

UNITS, END = {2: 32}, 1 << 40
"""What strides have to be multiples of with an interleave, otherwise of 16, and what they are below; in bytes
(cuTensorMapEncodeTiled in cuda.h)."""

LAST_WRONG, SMALL = 13010, 128 << 10
"""The last CUDA version whose driver sets a bit in maps of fewer bytes that has to be 0; so CUTLASS 4 and Triton 3.9
clear it."""


class Structure:
    """Memory for a parameter, which is zero at first.

    Arguments:
        size: in bytes.
    """

    def __init__(self, size: int = BYTES) -> None:
        self.size = size
        self._memory = ctypes.create_string_buffer(size + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT

    def put(self, offset: int, value: Any) -> None:
        """Copy an address, a number of ctypes or another structure to an offset."""
        address, size = _place(ctypes.c_uint64(value) if isinstance(value, int) else value)
        ctypes.memmove(self.address + offset, address, size)


class TensorMap(Structure):
    """Memory for one tensor map."""


def _place(value: Any) -> tuple[int, int]:
    """Where a structure or a number of ctypes is, and its size."""
    if isinstance(value, Structure):
        return value.address, value.size
    return ctypes.addressof(value), ctypes.sizeof(value)


def _allowed(stride: int, size: int, unit: int) -> int:
    """A stride that the driver takes. Over a single element nothing strides, so any other will do there."""
    return stride if size > 1 or (0 < stride < END and stride % unit == 0) else unit


def encoded(
    checked: Callable[[Callable[[], str], tuple[Any, ...]], Any],
    data: int,
    dtype: str,
    *,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    steps: Sequence[int],
    modes: Sequence[int],
) -> TensorMap:
    """The tensor map of an array; a context of its device is current.

    Arguments:
        checked: as :meth:`Cuda.checked`; raises an error that says what failed, if the status is an error.
        data: the address of the array.
        dtype: that of its elements, in ``DTYPES``.
        sizes, strides, box, steps, modes: as cuTensorMapEncodeTiled takes them. The map of an array without elements
            stays zero, since there is nothing to copy.

    Raises:
        RuntimeError: the driver refuses.
    """
    from cuda.bindings import driver

    made = TensorMap()
    if not all(sizes):
        return made

    def making() -> str:
        shape = ", ".join(map(str, reversed(sizes)))
        return f"making a tensor map of {dtype}[{shape}] at {data:#x}"

    def numbers(kind: Any, values: Sequence[int]) -> Any:
        return (kind * len(values))(*values)

    unit = UNITS.get(modes[0], 16)
    strides = [_allowed(stride, size, unit) for stride, size in zip(strides, sizes[1:], strict=True)]
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        *(ctypes.c_void_p(made.address), DTYPES[dtype], ctypes.c_uint32(len(sizes)), ctypes.c_void_p(data)),
        *(numbers(ctypes.c_uint64, sizes), numbers(ctypes.c_uint64, strides)),
        *(numbers(ctypes.c_uint32, box), numbers(ctypes.c_uint32, steps)),
        *modes,
    )
    checked(making, (driver.CUresult(status),))
    version = checked(lambda: "asking for the version of the driver", driver.cuDriverGetVersion())
    last = sum((size - 1) * step for size, step in zip(sizes, (ELEMENT[DTYPES[dtype]], *strides), strict=True))
    if version <= LAST_WRONG and last + 1 < SMALL:
        ctypes.c_uint64.from_address(made.address + 8).value &= ~(1 << 21)
    return made


def start(
    kernel: Any,
    stream: int,
    *,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    parameters: Sequence[Any],
) -> tuple[Any, ...]:
    """Launch a device function that takes tensor maps or structures, and return what the driver returns.

    Arguments:
        kernel: the CUkernel.
        parameters: structures, addresses of memory, and numbers of ctypes.
    """
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
    values = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in parameters]
    places = [_place(value)[0] for value in values]
    given = (ctypes.c_void_p * len(places))(*places)
    function = driver.CUfunction(int(kernel))
    result: tuple[Any, ...] = driver.cuLaunchKernelEx(config, function, ctypes.addressof(given), 0)
    return result
