"""Device memory of the cuda_core backend: temporary memory, and outputs for which no framework offers an allocator.

It comes from one pool for each device, which keeps what it once got from the system. By default a pool gives all that
is free back at each synchronisation. Devices without pools have plain memory.

An output lives longer than its call, and nobody tells when the last work on it is done: other libraries read it through
DLPack in streams of their own, the stream of its launch may have been destroyed by then, and its end comes in any
thread, while a graph is captured, or in a forked child. So the end of an output makes no call of the driver: its memory
is put on a list, and freed once the device has done all the work that it was given before the list was taken. That is
waited for when more than ``LIMIT`` bytes are on the list, by the next call that makes an output, or when the device has
no memory left.
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
"""How many bytes of outputs that have ended may wait to be freed."""

LEAST = 64 << 10
"""What the smallest output counts for, so that the list does not get long."""

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
        self._waiting = 0  # about: threads count without a lock, since an output may end while this one has it
        self._limit = LIMIT  # on how much of it to wait for the device

    def allocate_output(self, cuda: Cuda, device: Device, size: int, stream: int) -> int:
        """The address of memory for an output that is written in a stream.

        Raises:
            RuntimeError: there is not enough, or the stream is captured, or belongs to another context.
        """
        self._check_stream(cuda, device, stream)
        if self._waiting > self._limit:
            self._free_released(cuda, device, stream)
        return self._allocated(cuda, device, size, stream, f"{size} bytes for an output")

    def release(self, address: int, size: int) -> None:
        """Note that an output has ended. Called from anywhere; it makes no call of the driver and takes no lock."""
        self._released.append((address, size))
        self._waiting += max(size, LEAST)

    def allocate_workspace(self, cuda: Cuda, device: Device, size: int, stream: int) -> tuple[int, Callable[[], None]]:
        """The address of temporary memory for work in a stream, and what frees it there.

        In a captured stream the pool's memory belongs to the graph, from the node that allocates to the one that frees.

        Raises:
            RuntimeError: there is not enough; or the stream is captured, and the device has no pools.
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
        from cuda.bindings import driver

        if cuda.is_captured(device, stream):
            text = f"its output would be part of the graph that is captured on {device}, and gone once that has run"
            cuda.refuse(RuntimeError, f"{text}\n  remedy: pass the outputs")
        if stream <= LAST_DEFAULT_STREAM:
            return
        context = cuda.checked(lambda: f"asking for the context of a stream of {device}", driver.cuStreamGetCtx(stream))
        if int(context) != int(device.context):
            text = f"its output would be made in a stream of another context of {device} than the primary one"
            cuda.refuse(RuntimeError, f"{text}\n  remedy: pass the outputs")

    def _allocated(self, cuda: Cuda, device: Device, size: int, stream: int, what: str) -> int:
        from cuda.bindings import driver

        result = self._try(cuda, device, max(size, 1), stream)
        full = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        if result[0] == full and self._released and not cuda.is_captured(device, stream):
            self._free_released(cuda, device, stream)
            result = self._try(cuda, device, max(size, 1), stream)
        return int(cuda.checked(lambda: f"allocating {what}", result))

    def _try(self, cuda: Cuda, device: Device, size: int, stream: int) -> tuple[Any, ...]:
        from cuda.bindings import driver

        if device.memory_pools:
            found: tuple[Any, ...] = driver.cuMemAllocFromPoolAsync(size, self._pool(cuda, device), stream)
        else:
            with cuda.relaxed():
                found = driver.cuMemAlloc(size)
        return found

    def _pool(self, cuda: Cuda, device: Device) -> Any:
        """The handle of the pool, which is made at the first use."""
        from cuda.bindings import driver

        if self._handle is None:
            with self._lock, cuda.relaxed():
                if self._handle is None:
                    self._handle = _new_pool(driver, cuda, device)
        return self._handle

    def _free_released(self, cuda: Cuda, device: Device, stream: int) -> None:
        """Free what has been released. What cannot be waited for stays: the device has failed, or a graph is captured.

        A wait that fails makes that capture fail too, so the next one comes after as much memory again. After one that
        succeeds no work on the memory is left, so it may be freed in the stream of this call, which surely exists.
        """
        from cuda.bindings import driver

        with self._lock, cuda.current(device, 0), cuda.relaxed():
            taken = [self._released.popleft() for _ in range(len(self._released))]
            (status,) = driver.cuCtxSynchronize()
            if status:
                self._released.extend(taken)
                self._limit = self._waiting + LIMIT
                return
            self._waiting, self._limit = 0, LIMIT
        for address, _ in taken:
            _free(cuda, device, address, stream)


def _new_pool(driver: Any, cuda: Cuda, device: Device) -> Any:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.number
    pool = cuda.checked(lambda: f"making a memory pool on {device}", driver.cuMemPoolCreate(properties))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    kept = driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP))
    if kept[0]:
        driver.cuMemPoolDestroy(pool)
    cuda.checked(lambda: f"setting up a memory pool on {device}", kept)
    return pool


def _free(cuda: Cuda, device: Device, address: int, stream: int) -> None:
    from cuda.bindings import driver

    if device.memory_pools:
        driver.cuMemFreeAsync(address, stream)
        return
    with cuda.relaxed():
        driver.cuMemFree(address)


@cache
def pool_of(number: int) -> Pool:
    """The pool of the device of that number."""
    return Pool()


# ---- outputs


@cache
def _resource_class(base: Any) -> Any:
    """A memory resource of cuda.core whose memory is released, and not freed, when its buffer ends."""

    def allocate(self: Any, size: int, *, stream: Any) -> Any:
        raise NotImplementedError

    def deallocate(self: Any, ptr: Any, size: int, *, stream: Any) -> None:
        self.pool.release(int(ptr), size)

    values: dict[str, Any] = {"is_device_accessible": True, "is_host_accessible": False, "device_id": -1}
    return type("ReleasedMemory", (base,), values | {"allocate": allocate, "deallocate": deallocate})


class Output(NewArray):
    """A new array on a GPU that no framework has allocated, and that knows the stream of its launch.

    What is not here is looked up in a ``cuda.core.utils.StridedMemoryView``: ``ptr``, ``shape``, ``dtype`` and others.
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
    """Make a stream wait for another one, or wait for one; called as :func:`hand_over` calls a library's service."""
    from cuda.bindings import driver

    device = cuda.device(number)  # an error, if the process was forked
    with cuda.current(device, max(streams[0], 0)):
        if name == b"kw_order":
            cuda.order(device, *streams)
        elif streams[0] < 0:
            cuda.checked(lambda: f"waiting for {device}", driver.cuCtxSynchronize())
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
