"""How the measuring process times calls: with the clock of the CPU and pinned threads, or with events of CUDA's driver.

Both kinds have the same methods, so that what measures does not ask where it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from ..core.dtype import numpy_dtype
from ..core.errors import WorkerError
from ..core.exported import Exported
from ..core.signature import Argument
from ..ondemand.machine import driver_library
from ..worker.check import from_device, to_device

Call = Callable[[], Any]

ALIGNMENT = 64
"""Arrays on the CPU are aligned to so many bytes, as those of PyTorch are."""

POOL_THREADS = "kernelwright"
"""The name of the threads of the libraries' pool; see ``backends/launcher/threads.h``."""


SETTLE_S = 0.0001
"""After so long the threads of the pool sleep, if nothing is to be done: they spin for a fifth of that."""


class CpuClock:
    """Times calls on the CPU.

    The calling thread and the pool's threads each get a CPU of their own, in the order of their numbers, so that none
    of them moves while it is timed.
    """

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._threads = [os.getpid()]

    def tensor(self, array: NDArray[Any], argument: Argument) -> Any:
        """A tensor with the content of an array, for an argument."""
        result = to_device(array, replace(argument, alignment=ALIGNMENT), _Cpu())
        return tvm_ffi.from_dlpack(result) if isinstance(result, np.ndarray) else result

    def values(self, tensor: Any) -> NDArray[Any]:
        """What a tensor has in it now."""
        return from_device(tensor)

    def write(self, tensor: Any, array: NDArray[Any]) -> None:
        """Give a tensor the content of an array."""
        tensor_view: NDArray[Any] = np.from_dlpack(tensor)
        tensor_view[...] = array

    def first(self, call: Call) -> None:
        """Make the first call of a library, which may start the pool, and pin the threads then.

        The pool counts the CPUs that its starter may use. So the thread that calls is free until then.
        """
        os.sched_setaffinity(0, self._cpus)
        call()
        self._threads = [os.getpid(), *self._pool()]
        for number, thread in enumerate(self._threads):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(thread, [self._cpus[number % len(self._cpus)]])

    def _pool(self) -> list[int]:
        tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name))
        return [int(task.name) for task in tasks if (task / "comm").read_text().strip() == POOL_THREADS]

    def seconds(self, call: Call, calls: int) -> float:
        """Seconds of so many calls, one behind the other."""
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start

    def batch(self, call: Call, calls: int) -> tuple[float, float | None]:
        """Seconds of a call, by a batch of them; and with warm caches, if the first is with cold ones."""
        return self.seconds(call, calls) / calls, None

    def waited_s(self) -> float:
        """Seconds that the threads were ready to run, and had no CPU, since they began; always 0 if nobody counts that.

        Linux counts it (proc(5), the second field of schedstat), with CONFIG_SCHED_INFO.
        """
        waited = 0
        for thread in self._threads:
            with contextlib.suppress(OSError, IndexError, ValueError):
                waited += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        return waited / 1e9

    def is_disturbed(self, waited_s: float, allowed_s: float) -> bool:
        """Whether something else had a CPU of the threads during a batch that has just ended.

        A thread of the pool that still waits for its CPU has not been counted yet. By now it would sleep otherwise.

        Arguments:
            waited_s: what :meth:`waited_s` was when it began.
            allowed_s: how long the threads may have waited.
        """
        time.sleep(SETTLE_S)
        for thread in self._threads[1:]:
            with contextlib.suppress(OSError, IndexError):
                stat = Path(f"/proc/self/task/{thread}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] == "R":
                    return True
        return self.waited_s() - waited_s > allowed_s

    def clock_mhz(self) -> int:
        """The clock of the device now; 0: unknown."""
        return 0


class ReferenceClock(CpuClock):
    """Times a reference, which a definition may only run as one.

    Arguments:
        within: calls a function as a reference, which takes time: so each batch is one such call.
    """

    def __init__(self, within: Callable[[Callable[[], float]], float]) -> None:
        super().__init__()
        self._within = within

    def seconds(self, call: Call, calls: int) -> float:
        """See :meth:`CpuClock.seconds`."""
        return self._within(partial(super().seconds, call, calls))


class _Cpu:
    """The CPU as ``to_device`` takes a device."""

    def dlpack_device_type(self) -> Any:
        """The number of its kind."""
        return tvm_ffi.DLDeviceType.kDLCPU


COLD_CALLS = 25
"""Calls with cold caches in a batch at most: each needs the caches filled with something else before."""

LEAST_FLUSH = 64 << 20
"""Bytes that are written to put something else into the L2 cache, at least; otherwise twice as many as that has."""

L2_BYTES = 38
"""CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE of cuda.h."""

SPIN_UP_S = 0.5

CLOCK_SM = 1
"""NVML_CLOCK_SM of nvml.h."""


class CudaClock:
    """Times calls on a GPU, with events of the driver in its default stream.

    Before each call with a cold cache a buffer larger than the L2 cache is written. That also keeps the device busy
    until the call is in its queue, so that no launch is timed.

    Arguments:
        index: number of the device.

    Raises:
        WorkerError: the driver refuses it.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._driver = ctypes.CDLL(driver_library())
        device, context, l2 = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self._ask("cuInit", 0)
        self._ask("cuDeviceGet", ctypes.byref(device), index)
        self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._ask("cuCtxSetCurrent", context)
        self._driver.cuDeviceGetAttribute(ctypes.byref(l2), L2_BYTES, device)
        self._flush_bytes = max(LEAST_FLUSH, 2 * l2.value)
        self._flush = self._allocated(self._flush_bytes)
        self._events = [self._event() for _ in range(2 * COLD_CALLS)]
        self._nvml = _nvml(self._bus_id(device))
        self._spin_up()

    def _ask(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._driver, name)(*arguments):
            word = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(word))
            text = (word.value or str(status).encode()).decode()
            raise WorkerError(f"the CUDA driver failed in {name}: {text}")

    def _allocated(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        return pointer

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._ask("cuEventCreate", ctypes.byref(event), 0)
        return event

    def _bus_id(self, device: ctypes.c_int) -> bytes:
        text = ctypes.create_string_buffer(32)
        get = getattr(self._driver, "cuDeviceGetPCIBusId", None)
        return b"" if get is None or get(text, len(text), device) else text.value

    def tensor(self, array: NDArray[Any], argument: Argument) -> Any:
        """A tensor with the content of an array, for an argument."""
        pointer = self._allocated(array.nbytes)
        memory = _DeviceMemory(pointer.value, self._index, array.shape, argument.dtype, self._driver.cuMemFree_v2)
        tensor = tvm_ffi.from_dlpack(memory)
        self.write(tensor, array)
        return tensor

    def write(self, tensor: Any, array: NDArray[Any]) -> None:
        """Give a tensor the content of an array."""
        content = np.ascontiguousarray(array)
        address = ctypes.c_void_p(content.ctypes.data)
        self._ask("cuMemcpyHtoD_v2", _address(tensor), address, ctypes.c_size_t(content.nbytes))

    def values(self, tensor: Any) -> NDArray[Any]:
        """What a tensor has in it now."""

        content = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype)))
        address = ctypes.c_void_p(content.ctypes.data)
        self._ask("cuMemcpyDtoH_v2", address, _address(tensor), ctypes.c_size_t(content.nbytes))
        return content

    def first(self, call: Call) -> None:
        """Make the first call of a library, which loads its code."""
        call()
        self._ask("cuCtxSynchronize")

    def _timed(self, call: Call, calls: int, event: int) -> None:
        """Have the device note when it begins some calls and when it has done them."""
        start, end = self._events[event : event + 2]
        self._ask("cuEventRecord", start, None)
        for _ in range(calls):
            call()
        self._ask("cuEventRecord", end, None)

    def _between(self, event: int) -> float:
        milliseconds = ctypes.c_float()
        self._ask("cuEventElapsedTime", ctypes.byref(milliseconds), *self._events[event : event + 2])
        return milliseconds.value / 1000

    def seconds(self, call: Call, calls: int) -> float:
        """Seconds of so many calls, one behind the other, with the caches as they leave them."""
        self._fill()
        self._timed(call, calls, 0)
        self._ask("cuCtxSynchronize")
        return self._between(0)

    def _fill(self) -> None:
        self._ask("cuMemsetD8Async", self._flush, 0, ctypes.c_size_t(self._flush_bytes), None)

    def waited_s(self) -> float:
        """Nothing: the device's own clock stands still while the host waits."""
        return 0.0

    def is_disturbed(self, waited_s: float, allowed_s: float) -> bool:
        """Never, as far as we know."""
        return False

    def _spin_up(self) -> None:
        """Keep the device busy until it has left its sleep, in which its clock is low."""
        end = time.monotonic() + SPIN_UP_S
        while time.monotonic() < end:
            self._fill()
            self._ask("cuCtxSynchronize")

    def batch(self, call: Call, calls: int) -> tuple[float, float | None]:
        """Seconds of a call with a cold L2 cache, the median of a batch; and with a warm one."""
        cold = range(0, 2 * min(COLD_CALLS, max(3, calls)), 2)
        for event in cold:
            self._fill()
            self._timed(call, 1, event)
        self._ask("cuCtxSynchronize")
        return median(map(self._between, cold)), self.seconds(call, calls) / calls

    def clock_mhz(self) -> int:
        """The clock of the multiprocessors now; 0: NVML is not there, or does not say."""
        if self._nvml is None:
            return 0
        library, device = self._nvml
        clock = ctypes.c_uint()
        return 0 if library.nvmlDeviceGetClockInfo(device, CLOCK_SM, ctypes.byref(clock)) else clock.value


def _nvml(bus_id: bytes) -> tuple[Any, ctypes.c_void_p] | None:
    """NVML with the handle of a device; None if it is not there."""
    device = ctypes.c_void_p()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(device))
    except (OSError, AttributeError):
        return None
    return None if failed else (library, device)


def _address(tensor: Any) -> ctypes.c_uint64:
    """The address of a tensor's data."""
    return ctypes.c_uint64(tensor.data_ptr())


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DeviceMemory(Exported):
    """Memory of a GPU with DLPack's protocol; it is freed with the last tensor over it."""

    CUDA = 2
    _alive: ClassVar[dict[int, _DeviceMemory]] = {}

    def __init__(
        self, pointer: int, index: int, shape: Sequence[int], dtype: str, free: Callable[[ctypes.c_uint64], int]
    ) -> None:
        kind = tvm_ffi.dtype(dtype)
        super().__init__(pointer, (self.CUDA, index), (kind.type_code, kind.bits, kind.lanes), shape)
        self._delete = _DELETER(lambda _: self._end(pointer, free))
        self.deleter = ctypes.cast(self._delete, ctypes.c_void_p)
        self._alive[pointer] = self  # a tensor refers to memory of this object

    def _end(self, pointer: int, free: Callable[[ctypes.c_uint64], int]) -> None:
        free(ctypes.c_uint64(pointer))
        self._alive.pop(pointer, None)
