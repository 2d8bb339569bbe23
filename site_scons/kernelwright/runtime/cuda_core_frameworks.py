"""What the cuda_core backend asks PyTorch and CuPy for: their current stream, and memory. It never imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .cuda_core_device import Cuda, Device
from .cuda_core_memory import new_output, pool_of
from .dtype import torch_dtype
from .interface import LEGACY, OF_THREAD, library_of, plain_number

DEFAULT = (0, LEGACY)
"""Handles of the default stream."""


class Stream(NamedTuple):
    """A stream: its handle, and what keeps it alive."""

    handle: int
    kept: Any = None

    @classmethod
    def of(cls, stream: Any) -> Stream | None:
        """The stream that a caller passed, in any accepted form; None: it is no stream."""
        number = plain_number(stream)
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**64:
            return cls(number)
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            return cls(int(protocol()[1]), stream)
        for attribute in ("cuda_stream", "ptr"):  # PyTorch and CuPy, before they had the protocol
            if isinstance(getattr(stream, attribute, None), int):
                return cls(int(getattr(stream, attribute)), stream)
        return None


class Framework:
    """Makes new arrays if no argument is from a framework: in memory of our own, on the default stream."""

    name = "cuda.core"

    def current_stream(self) -> Stream:
        """The stream that the framework's user has made current."""
        return Stream(0)

    def new_array(self, cuda: Cuda, device: Device, dtype: str, shape: tuple[int, ...], stream: Stream) -> Any:
        """A new array for an output.

        Raises:
            TypeError: the framework has no such dtype.
        """
        return new_output(cuda, device, dtype, shape, *stream)

    def workspace(self, cuda: Cuda, device: Device, size: int, stream: Stream) -> tuple[int, Callable[[], None]]:
        """The address of temporary memory, and a function that frees it."""
        return pool_of(device.number).allocate_workspace(cuda, device, size, stream.handle)


class _Lender(Framework):
    """A framework that can allocate memory on a GPU."""

    def workspace(self, cuda: Cuda, device: Device, size: int, stream: Stream) -> tuple[int, Callable[[], None]]:
        kept = [self.new_array(cuda, device, "uint8", (max(size, 1),), stream)]
        return address_of(kept[0]), kept.clear


class _Torch(_Lender):
    """PyTorch.

    Arguments:
        tensor: the first argument that is on a GPU, or None.
    """

    name = "torch"

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self._tensor = tensor

    def current_stream(self) -> Stream:
        if self._tensor is None:
            return Stream(0)
        stream = self._torch.cuda.current_stream(self._tensor.device)
        return Stream(int(stream.cuda_stream), stream)

    def new_array(self, cuda: Cuda, device: Device, dtype: str, shape: tuple[int, ...], stream: Stream) -> Any:
        torch, kind, place = self._torch, torch_dtype(dtype), self._torch.device("cuda", device.number)
        handle = 0 if stream.handle in DEFAULT else stream.handle
        if torch.cuda.current_stream(place).cuda_stream == handle:
            return torch.empty(shape, dtype=kind, device=place)
        # PyTorch makes an external stream of any handle but that of the default stream.
        other = torch.cuda.ExternalStream(handle, place) if handle else torch.cuda.default_stream(place)
        with torch.cuda.stream(other):
            return torch.empty(shape, dtype=kind, device=place)


class _Cupy(_Lender):
    """CuPy.

    Arguments:
        array: the first argument that is an array of CuPy.
    """

    name = "cupy"

    def __init__(self, cupy: Any, array: Any) -> None:
        self._cupy = cupy
        self._array = array

    def current_stream(self) -> Stream:
        stream = self._cupy.cuda.get_current_stream(self._array.device.id)
        return Stream(int(stream.ptr), stream)

    def new_array(self, cuda: Cuda, device: Device, dtype: str, shape: tuple[int, ...], stream: Stream) -> Any:
        streams = self._cupy.cuda
        if stream.handle in DEFAULT:
            other = streams.Stream.null
        elif stream.handle == OF_THREAD:
            other = streams.Stream.ptds
        else:
            other = streams.ExternalStream(stream.handle, device.number)
        with streams.Device(device.number), other:
            return self._cupy.empty(shape, dtype=dtype)


def framework_of(arrays: Iterable[Any]) -> Framework:
    """The framework that gives the current stream and new arrays: PyTorch if an argument is its, else CuPy, else none.

    Arguments:
        arrays: the arguments that are passed as arrays.
    """
    arrays = list(arrays)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None:
        tensors = [array for array in arrays if isinstance(array, torch.Tensor)]
        if tensors:
            return _Torch(torch, next((tensor for tensor in tensors if tensor.device.type == "cuda"), None))
    if cupy is not None:
        found = [array for array in arrays if library_of(array) == "cupy"]
        if found:
            return _Cupy(cupy, found[0])
    return Framework()


def address_of(array: Any) -> int:
    """The address of a new array's data."""
    data = array.data_ptr() if hasattr(array, "data_ptr") else array.ptr if hasattr(array, "ptr") else array.data.ptr
    return int(data)
