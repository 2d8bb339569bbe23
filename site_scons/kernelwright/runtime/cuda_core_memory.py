"""Device memory of the cuda_core backend: temporary memory, and outputs for which no framework offers an allocator.

Each device has one pool, which keeps all memory that it has got from the system. By default CUDA's pools give free
memory back at each synchronisation. On a device without pools, memory is allocated directly.

An output lives longer than its call, and nothing tells when the last work on it is done. Other libraries read it by
DLPack in streams of their own, and the stream of its launch may be destroyed before the output ends. It may end in any
thread, while a graph is captured, or in a forked child. So nothing calls the driver when an output ends: its memory is
put on a list. It is freed once the device has done all work that it had when the list was taken. A call waits for that
if it makes an output and more than ``LIMIT`` bytes are on the list, or if the device has no memory left.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from .cuda_core_device import LAST_DEFAULT_STREAM, Cuda, Device
from .dlpack import narrow_code, with_code
from .dtype import numpy_dtype
from .interface import LEGACY, NewArray

LIMIT = 256 << 20
"""The most bytes of ended outputs that may wait to be freed."""

LEAST = 64 << 10
"""The bytes that an output counts for at least, so that the list does not get long."""

KEEP = 2**64 - 1
"""Bytes that a pool keeps: all."""


class Pool:
    """The memory of one device, for all kernels of a package. Thread-safe.

    Messages name the kernel that asks, so each function gets its :class:`Cuda`. A context of the device is current.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: Any = None
        self._released: deque[tuple[int, int]] = deque()
        self._waiting = 0  # about how many bytes are on the list; counted without the lock, see release
        self._limit = LIMIT  # how many of them make a call wait for the device

    def allocate_output(self, cuda: Cuda, device: Device, size: int, stream: int) -> int:
        """The address of memory for an output that is written in a stream.

        Raises:
            RuntimeError: there is not enough memory, or the stream is captured, or belongs to another context.
        """
        self._check_stream(cuda, device, stream)
        if self._waiting > self._limit:
            self._free_released(cuda, device, stream)
        return self._allocated(cuda, device, size, stream, f"{size} bytes for an output")

    def release(self, address: int, size: int) -> None:
        """Put the memory of an ended output on the list. Safe anywhere: it calls no driver and takes no lock."""
        self._released.append((address, size))
        self._waiting += max(size, LEAST)

    def allocate_workspace(self, cuda: Cuda, device: Device, size: int, stream: int) -> tuple[int, Callable[[], None]]:
        """The address of temporary memory for work in a stream, and a function that frees it there.

        In a captured stream the pool's memory belongs to the graph, from the node that allocates to the one that frees.

        Raises:
            RuntimeError: there is not enough memory; or the stream is captured, and the device has no pools.
        """
        if not device.memory_pools and cuda.is_captured(device, stream):
            cuda.refuse(
                RuntimeError,
                f"it needs temporary memory, which a graph cannot hold on {device}: the device has no memory pools\n"
                "  remedy: call it outside of graph capture",
            )
        address = self._allocated(cuda, device, size, stream, f"a workspace of {size} bytes on {device}")
        return address, lambda: _free(cuda, device, address, stream)

    def _check_stream(self, cuda: Cuda, device: Device, stream: int) -> None:
        """Refuse streams whose work :meth:`_free_released` does not wait for."""
        if cuda.is_captured(device, stream):
            text = f"its output would be part of the graph that is captured on {device}, and gone once that has run"
            cuda.refuse(RuntimeError, f"{text}\n  remedy: pass the outputs")
        if stream <= LAST_DEFAULT_STREAM:
            return
        result = cuda.driver.cuStreamGetCtx(stream)
        context = cuda.checked(lambda: f"asking for the context of a stream of {device}", result)
        if int(context) != int(device.context):
            text = f"its output would be made in a stream of another context of {device} than the primary one"
            cuda.refuse(RuntimeError, f"{text}\n  remedy: pass the outputs")

    def _allocated(self, cuda: Cuda, device: Device, size: int, stream: int, what: str) -> int:
        result = self._try(cuda, device, max(size, 1), stream)
        full = cuda.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        if result[0] == full and self._released and not cuda.is_captured(device, stream):
            self._free_released(cuda, device, stream)
            result = self._try(cuda, device, max(size, 1), stream)
        return int(cuda.checked(lambda: f"allocating {what}", result))

    def _try(self, cuda: Cuda, device: Device, size: int, stream: int) -> tuple[Any, ...]:
        if device.memory_pools:
            found: tuple[Any, ...] = cuda.driver.cuMemAllocFromPoolAsync(size, self._pool(cuda, device), stream)
        else:
            with cuda.relaxed():
                found = cuda.driver.cuMemAlloc(size)
        return found

    def _pool(self, cuda: Cuda, device: Device) -> Any:
        """The handle of the pool, which is made at the first use."""
        if self._handle is None:
            with self._lock, cuda.relaxed():
                if self._handle is None:
                    self._handle = _new_pool(cuda, device)
        return self._handle

    def _free_released(self, cuda: Cuda, device: Device, stream: int) -> None:
        """Wait for the device, and free the memory on the list.

        If the wait fails (the device has failed, or a graph is captured), the memory stays on the list. It makes the
        capture fail, too, so the next wait comes only after ``LIMIT`` more bytes. After a wait that succeeds no work on
        the memory is left, so it may be freed in the stream of this call, which surely exists.
        """
        with self._lock, cuda.current(device, 0), cuda.relaxed():
            taken = [self._released.popleft() for _ in range(len(self._released))]
            (status,) = cuda.driver.cuCtxSynchronize()
            if status:
                self._released.extend(taken)
                self._limit = self._waiting + LIMIT
                return
            self._waiting, self._limit = 0, LIMIT
        for address, _ in taken:
            _free(cuda, device, address, stream)


def _new_pool(cuda: Cuda, device: Device) -> Any:
    properties = cuda.driver.CUmemPoolProps()
    properties.allocType = cuda.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.number
    pool = cuda.checked(lambda: f"making a memory pool on {device}", cuda.driver.cuMemPoolCreate(properties))
    threshold = cuda.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    kept = cuda.driver.cuMemPoolSetAttribute(pool, threshold, cuda.driver.cuuint64_t(KEEP))
    if kept[0]:
        cuda.driver.cuMemPoolDestroy(pool)
    cuda.checked(lambda: f"setting up a memory pool on {device}", kept)
    return pool


def _free(cuda: Cuda, device: Device, address: int, stream: int) -> None:
    if device.memory_pools:
        cuda.driver.cuMemFreeAsync(address, stream)
        return
    with cuda.relaxed():
        cuda.driver.cuMemFree(address)


@cache
def pool_of(number: int) -> Pool:
    """The pool of the device of that number."""
    return Pool()


# ---- outputs


@cache
def _resource_class(base: Any) -> Any:
    """A class of cuda.core's memory resources: when a buffer ends, its memory is put on the pool's list, not freed."""

    def allocate(self: Any, size: int, *, stream: Any) -> Any:
        raise NotImplementedError

    def deallocate(self: Any, ptr: Any, size: int, *, stream: Any) -> None:
        self.pool.release(int(ptr), size)

    values: dict[str, Any] = {"is_device_accessible": True, "is_host_accessible": False, "device_id": -1}
    return type("ReleasedMemory", (base,), values | {"allocate": allocate, "deallocate": deallocate})


class Output(NewArray):
    """A new array on a GPU that no framework has allocated, and that knows the stream of its launch.

    Other attributes are those of a ``cuda.core.utils.StridedMemoryView``: ``ptr``, ``shape``, ``dtype`` and more.
    """

    __slots__ = ()

    def _exported(self, max_version: Any) -> Any:
        code = narrow_code(self.dtype.name)
        if code is None:
            return super()._exported(max_version)
        # cuda.core exports the dtypes of NumPy only.
        integers = self._view.view(dtype=numpy_dtype(f"uint{8 * self.dtype.itemsize}"))
        return with_code(integers.__dlpack__(max_version=max_version), code)


def _serve(cuda: Cuda, name: bytes, number: int, *streams: int) -> None:
    """Make a stream wait for another one, or wait for a stream; :func:`hand_over` calls it like a library's service."""
    device = cuda.device(number)  # an error, if the process was forked
    with cuda.current(device, max(streams[0], 0)):
        if name == b"kw_order":
            cuda.order(device, *streams)
        elif streams[0] < 0:
            cuda.checked(lambda: f"waiting for {device}", cuda.driver.cuCtxSynchronize())
        else:
            cuda.synchronize(device, streams[0])


def new_output(cuda: Cuda, device: Device, dtype: str, shape: tuple[int, ...], stream: int, kept: Any) -> Output:
    """A new array for an output of a launch.

    Raises:
        TypeError: NumPy and ml_dtypes have no such dtype.
        RuntimeError: there is no memory for it, or the stream is captured.
    """
    from cuda.core.utils import StridedMemoryView

    kind = numpy_dtype(dtype)
    size, pool = math.prod(shape) * kind.itemsize, pool_of(device.number)
    address = pool.allocate_output(cuda, device, size, stream)
    resource = _resource_class(cuda.core.MemoryResource)()
    resource.pool, resource.device_id = pool, device.number
    default = cuda.core.LEGACY_DEFAULT_STREAM
    buffer = cuda.core.Buffer.from_handle(address, max(size, 1), mr=resource, stream=default)
    view = StridedMemoryView.from_buffer(buffer, shape, dtype=kind)
    return Output(cuda.kernel, partial(_serve, cuda), view, stream or LEGACY, kept)
