"""CUDA by way of cuda.core: devices, streams and errors, for kernels that have no host code of their own.

cuda.core is imported at the first call. Messages are those of the launcher in C, which does the same for kernels that
are called through a library.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, NoReturn

from .arch import version_text
from .interface import first_line
from .refusal import BY_KERNEL, refuse

LAST_DEFAULT_STREAM = 2
"""Handles of streams up to this one are defaults of the current context: 0 and 1 the legacy one, 2 the thread's."""

UNREADABLE = {
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
}
"""The driver could not read the device code. A driver refuses PTX of a newer compiler."""

STICKY = {
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "CUDA_ERROR_EXTERNAL_DEVICE",
}
"""Errors that leave the context unusable; any later call returns them (cuda.h, CUresult)."""

CORE = (
    "Device",
    "LEGACY_DEFAULT_STREAM",
    "LaunchConfig",
    "ObjectCode",
    "PER_THREAD_DEFAULT_STREAM",
    "Stream",
    "launch",
)
"""The names of cuda.core that are used."""


def import_core() -> Any:
    """The module ``cuda.core``, complete.

    While cuda.core 1.2.2 is imported, it takes over the import state of a finished module, so other threads can get it
    incomplete. This function waits until it has all names, for at most a minute.

    Raises:
        ImportError: it is not installed, or still lacks a name after that time.
    """
    core = import_module("cuda.core")
    deadline = time.monotonic() + 60
    while not all(hasattr(core, name) for name in CORE):
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in CORE if not hasattr(core, name))
            raise ImportError(f"{core.__file__}: has no {missing}\n  remedy: pip install --upgrade 'cuda-core>=1.2,<2'")
        time.sleep(0.001)
    return core


# ---- devices


@dataclass(frozen=True)
class Device:
    """A device that has been opened.

    Arguments:
        number: CUDA's number of it.
        capability: 10 * major + minor.
        shared_limit: bytes of shared memory that a block can have.
        memory_pools: whether memory can be allocated in streams.
        context: its primary context, where frameworks have their memory and their default stream.
        name, count: the driver's name for it and its number of multiprocessors, by which tuning tables know it; empty
            and 0 if the driver does not say.
    """

    number: int
    capability: int
    shared_limit: int
    memory_pools: bool
    context: Any = field(repr=False, compare=False)
    name: str = ""
    count: int = 0

    def __str__(self) -> str:
        return f"cuda:{self.number}"


class Cuda:
    """CUDA for one kernel. Thread-safe; it raises an error in a process that was forked after CUDA was used.

    Arguments:
        kernel: the kernel's name, for messages.
        toolkit: the CUDA version of the compiler that made the device code, such as 13000; 0: it is not known.
    """

    def __init__(self, kernel: str, toolkit: int = 0) -> None:
        self.kernel = kernel
        self.lock = threading.RLock()
        self.core: Any = None
        self._toolkit = toolkit
        self._begun = False
        self._forked = False
        self._devices: dict[int, Device] = {}
        self._streams: dict[tuple[int, int], Any] = {}
        os.register_at_fork(after_in_child=self._note_fork)

    @cached_property
    def driver(self) -> Any:
        """The driver's functions, which are imported when CUDA is first used."""
        from cuda.bindings import driver

        return driver

    def _note_fork(self) -> None:
        self.lock = threading.RLock()  # a thread of the parent, which this child lacks, may have held it
        self._forked = self._begun
        self._streams.clear()

    # ---- errors

    def refuse(self, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
        """Raise an error that names the kernel, and tells programs why the call is refused."""
        refuse(self.kernel, kind, text, refusal)

    def call(self, doing: Callable[[], str], function: Callable[..., Any], *arguments: Any) -> Any:
        """Call cuda.core. If it raises, raise an error that says what the call was for."""
        try:
            return function(*arguments)
        except Exception as error:  # cuda.core's own exceptions have no public base class
            text = first_line(error)
            found = re.match(r"CUDA_ERROR_\w+", text)
            remedy = self._remedy(found[0]) if found else ""
            raise RuntimeError(f"kernel '{self.kernel}': {doing()} failed with {text}{remedy}") from error

    def checked(self, doing: Callable[[], str], result: tuple[Any, ...]) -> Any:
        """The first value that a driver function returned after its status; a RuntimeError if that is an error."""
        status, *values = result
        if status:
            name, (_, text) = getattr(status, "name", "an unknown error"), self.driver.cuGetErrorString(status)
            meaning = text.decode() if text else "no description"
            self.refuse(RuntimeError, f"{doing()} failed with {name} ({meaning}){self._remedy(name)}")
        return values[0] if values else None

    def _remedy(self, name: str) -> str:
        """What an error of the driver means here, and what to do about it."""
        if name in UNREADABLE:
            return self._compared_versions()
        if name in STICKY:
            return _traced_back()
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            return "\n  remedy: pass smaller arrays, or free memory of the device"
        if name == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":
            return (
                "\n  another stream that is not non-blocking is being captured, and the default stream would wait for "
                "it\n  remedy: use a stream of your own"
            )
        if name.startswith("CUDA_ERROR_STREAM_CAPTURE_") or name == "CUDA_ERROR_CAPTURED_EVENT":
            return (
                "\n  a graph is being captured, which does not allow this"
                "\n  remedy: call preload before the capture, pass the outputs, and use the captured stream"
            )
        return ""

    def _compared_versions(self) -> str:
        has, made = self.driver.cuDriverGetVersion()[1] or 0, self._toolkit
        own = f"the driver is for CUDA {version_text(has)}"
        if not made:
            return f"\n  {own}\n  remedy: install a newer NVIDIA driver, or compile it with an older CUDA"
        text = f"\n  its device code was made with CUDA {version_text(made)}, and {own}"
        if has >= made:
            return f"{text}, which is new enough\n  remedy: install the package again: its device code may be damaged"
        return text + newer_driver(made, has)

    # ---- devices and contexts

    def device(self, number: int) -> Device:
        """The device of that number, which is opened at the first use.

        Raises:
            RuntimeError: there is no driver, or it fails; or the process was forked after CUDA had been used.
            ValueError: there is no such device.
        """
        if self._forked:
            self.refuse(
                RuntimeError,
                "CUDA was used before this process was forked, and does not survive that\n"
                "  remedy: start the process with the spawn method, or fork before the first CUDA call",
            )
        known = self._devices.get(number)
        if known is not None:
            return known
        with self.lock:
            self._start()
            with self.relaxed():
                self._devices[number] = self._opened(number)
            return self._devices[number]

    def _start(self) -> None:
        self.core = import_core()
        try:
            result = self.driver.cuInit(0)
        except (RuntimeError, OSError) as error:  # what cuda.bindings raises where libcuda.so.1 is not found
            self.refuse(
                RuntimeError,
                f"there is no CUDA driver: {first_line(error)}\n"
                "  remedy: install the NVIDIA driver (580 or newer), or use a backend with code for the CPU",
            )
        self._begun = True
        self.checked(lambda: "initialising CUDA", result)

    def _opened(self, number: int) -> Device:
        count = self.checked(lambda: "counting CUDA devices", self.driver.cuDeviceGetCount())
        if not 0 <= number < count:
            self.refuse(ValueError, f"there is no cuda:{number}, the process sees {count} CUDA devices")

        def opening() -> str:
            return f"opening cuda:{number}"

        attributes = self.driver.CUdevice_attribute
        values = [
            self.checked(opening, self.driver.cuDeviceGetAttribute(attribute, number))
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                attributes.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            )
        ]
        context, identity = self.checked(opening, self.driver.cuDevicePrimaryCtxRetain(number)), self._identity(number)
        return Device(number, 10 * values[0] + values[1], values[2], bool(values[3]), context, *identity)

    def _identity(self, number: int) -> tuple[str, int]:
        """Name and count by which tuning tables know a device. No call needs them, so a failed query is no error."""
        status, name = self.driver.cuDeviceGetName(256, number)
        text = "" if status else name.split(b"\0")[0].decode(errors="replace")
        attribute = self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        status, count = self.driver.cuDeviceGetAttribute(attribute, number)
        return text, 0 if status else int(count)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread make calls that the driver refuses while any thread captures a graph.

        A first use needs such calls. They set things up for the whole process, and are no part of the graph.
        """
        status, before = self.driver.cuThreadExchangeStreamCaptureMode(
            self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )
        try:
            yield
        finally:
            if not status:
                self.driver.cuThreadExchangeStreamCaptureMode(before)

    @contextmanager
    def current(self, device: Device, stream: int) -> Iterator[None]:
        """Make a context of the device current for work in a stream. Afterwards the previous one is current again.

        A default stream means that of the primary context, even if the application has made another context of the
        device current. A stream of its own may belong to that other context, which then stays current.
        """

        def entering() -> str:
            return f"making the context of {device} current"

        before = self.checked(entering, self.driver.cuCtxGetCurrent())
        if int(before) == int(device.context) or (stream > LAST_DEFAULT_STREAM and self._is_on(device)):
            yield
            return
        self.checked(entering, self.driver.cuCtxSetCurrent(device.context))
        try:
            yield
        finally:
            self.driver.cuCtxSetCurrent(before)

    def _is_on(self, device: Device) -> bool:
        """Whether the current context is one of the device."""
        status, active = self.driver.cuCtxGetDevice()
        return not status and int(active) == device.number

    # ---- streams; a context of the device is current

    def stream(self, handle: int, device: Device) -> Any:
        """cuda.core's object for a stream's handle; 0 and 1 are the legacy default stream, 2 is the thread's."""
        if handle in (0, 1):
            return self.core.LEGACY_DEFAULT_STREAM
        if handle == 2:
            return self.core.PER_THREAD_DEFAULT_STREAM
        known = self._streams.get((device.number, handle))
        if known is None:
            if len(self._streams) > 64:
                self._streams.clear()
            known = self._streams[device.number, handle] = self.core.Stream.from_handle(handle)
        return known

    def order(self, device: Device, first: int, then: int) -> None:
        """Make stream ``then`` wait for the work that is on ``first`` now. If they are the same, nothing happens."""
        if (first or 1) != (then or 1):
            waiting = self.stream(then, device)
            self.call(
                lambda: f"making stream {then:#x} of {device} wait for stream {first:#x}",
                waiting.wait,
                self.stream(first, device),
            )

    def is_captured(self, device: Device, stream: int) -> bool:
        """Whether a stream is being captured into a graph."""

        def asking() -> str:
            return f"asking whether stream {stream:#x} of {device} is captured"

        state = self.checked(asking, self.driver.cuStreamIsCapturing(stream))
        return bool(state != self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def refuse_captured(self, device: Device, stream: int) -> None:
        """Raise if a stream is being captured into a graph: the host cannot wait for it then."""
        if self.is_captured(device, stream):
            self.refuse(
                RuntimeError,
                f"the call would have to wait for stream {stream:#x} of {device}, which is being captured into a graph"
                ": it waits where an input is an array of JAX, and where an output is taken by a library that names no "
                "stream\n  remedy: capture calls with arrays of PyTorch or CuPy, or pass the outputs",
            )

    def synchronize(self, device: Device, stream: int) -> None:
        """Wait for all work on a stream."""
        self.refuse_captured(device, stream)
        with self.relaxed():
            result = self.driver.cuStreamSynchronize(stream)
        self.checked(lambda: f"waiting for stream {stream:#x} of {device}", result)


def _traced_back() -> str:
    """What messages say about the source of an error that made the context unusable, and the remedy."""
    blocks = os.environ.get("CUDA_LAUNCH_BLOCKING", "0").strip() not in ("", "0")
    before = "" if blocks else "\n  it comes from earlier work on the device, of this kernel or of anything else"
    after = "; with CUDA_LAUNCH_BLOCKING=1 in its environment the launch at fault raises the error"
    remedy = "\n  remedy: restart the process, since CUDA cannot be used in it any more"
    return before + remedy + ("" if blocks else after)


def newer_driver(needed: int, has: int) -> str:
    """The remedy for a driver that is too old for some code. PTX needs one of its own CUDA version."""
    number = "" if needed % 1000 else f" ({_driver_for(needed)} or newer)"
    wanted = f"CUDA {version_text(needed)}{number}"
    return f"\n  remedy: install an NVIDIA driver for {wanted}, or compile it with CUDA {version_text(has)}"


def _driver_for(cuda: int) -> int:
    """The oldest driver that runs what a CUDA version compiles.

    Source: the CUDA toolkit's release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
    Compatibility".
    """
    return 525 if cuda < 13000 else 580
