"""Exports memory as DLPack has it, whoever has allocated it, be it there or not."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..runtime.dlpack import Tensor


class Exported(ctypes.Structure):
    """DLManagedTensor of dlpack.h. It has to live as long as what is made of it.

    Arguments:
        address: where the data is.
        device: kind and number of the device, as DLPack has them.
        dtype: code, bits and lanes, as DLPack has them.
        shape: the sizes.
        strides: in elements; None: the array is compact.
        offset: bytes from the address to the first element.
    """

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))

    def __init__(
        self,
        address: int,
        device: tuple[int, int],
        dtype: tuple[int, int, int],
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> None:
        self._lists = [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in (shape, strides or ())]
        sizes, steps = (ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64)) for numbers in self._lists)
        counted = (len(shape), *dtype, sizes, steps if strides else None)
        super().__init__(Tensor(address, *device, *counted, offset), None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.device_type, self.tensor.device_id

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self), b"dltensor", None)
