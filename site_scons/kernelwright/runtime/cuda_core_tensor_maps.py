"""Tensor maps of the cuda_core backend: the driver makes them, and launches pass them by value.

cuda.core 1.2 makes them of arrays only that it knows the owner of, and passes no other ones; cuda.bindings 13.4 has
memory for them that is not aligned as the driver wants it. So the driver is asked through ctypes, and starts what has
one among its parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

BYTES, ALIGNMENT = 128, 64
"""Of a CUtensorMap (cuda.h)."""

DTYPES = {
    **{"float16": 6, "bfloat16": 9, "float32": 7, "float64": 8, "uint8": 0, "int8": 0},
    **{"uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5},
    **{"bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0},
}
"""CUtensorMapDataType by dtype. Copies do not look at integers, so their sign does not matter, and other elements of a
byte are integers to them."""


class TensorMap:
    """Memory for one tensor map, which is zero at first."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT


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
        checked: raises an error that says what was being done, if the status of a call of the driver is one.
        data: the address of the array.
        dtype: that of its elements, in ``DTYPES``.
        sizes, strides, box, steps, modes: as of cuTensorMapEncodeTiled. Of an array without elements the map stays
            zero, since there is nothing to copy.

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

    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        *(ctypes.c_void_p(made.address), DTYPES[dtype], ctypes.c_uint32(len(sizes)), ctypes.c_void_p(data)),
        *(numbers(ctypes.c_uint64, sizes), numbers(ctypes.c_uint64, strides)),
        *(numbers(ctypes.c_uint32, box), numbers(ctypes.c_uint32, steps)),
        *modes,
    )
    checked(making, (driver.CUresult(status),))
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
    """Launch a device function some of whose parameters are tensor maps; what the driver returns.

    Arguments:
        kernel: the CUkernel.
        parameters: tensor maps, addresses of memory, and numbers of ctypes.
    """
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
    values = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in parameters]
    places = [value.address if isinstance(value, TensorMap) else ctypes.addressof(value) for value in values]
    given = (ctypes.c_void_p * len(places))(*places)
    function = driver.CUfunction(int(kernel))
    result: tuple[Any, ...] = driver.cuLaunchKernelEx(config, function, ctypes.addressof(given), 0)
    return result
