"""What every backend for CUDA promises of its launches: a function for each promise, which needs no GPU.

A fork of the process that asks has a library in place of NVIDIA's driver. It runs nothing and notes what it is asked
for, so a call goes all the way to the launch, with arrays whose data need not exist.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .calls import Caller

DRIVER = Path(__file__).with_name("cuda.c")
"""The source of the library; what it notes, and what machine it plays, is at its top."""

SIZE, STREAM = 1000, 0x50
X, BIAS, Y = 0x10000, 0x20000, 0x30000
"""Addresses on the device."""


class DeviceArray:
    """Something with DLPack's protocol, whose device, shape and data need not exist.

    Arguments:
        shape, dtype: as DLPack has them; dtype is (code, bits, lanes).
        device: (device type, index); 2 is CUDA.
        strides: in elements, or None for compact.
        data: the address.
        byte_offset: of the first element from there.
    """

    _alive: ClassVar[list[DeviceArray]] = []

    def __init__(
        self,
        shape: Sequence[int],
        dtype: tuple[int, int, int] = (2, 32, 1),
        *,
        device: tuple[int, int] = (1, 0),
        strides: Sequence[int] | None = None,
        data: int = 0x10000,
        byte_offset: int = 0,
    ) -> None:
        self._device = device
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        pointer = ctypes.addressof(self._strides) if self._strides else None
        sizes = (len(shape), *dtype, ctypes.addressof(self._shape), pointer)
        self._managed = _ManagedTensor(data, *device, *sizes, byte_offset, None, None)
        # Whoever takes the capsule refers to our memory, and there is no deleter that would tell us when it is done.
        self._alive.append(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int)),
        *(("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)),
        *(("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
    )


def asked_of_driver(call: Callable[[], object]) -> list[str]:
    """What a driver is asked for by a call, a line each. The call is made in a fork of this process.

    Raises:
        AssertionError: the call has raised something, which its message has.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "libcuda.so.1"
        command = ["gcc", "-shared", "-fPIC", str(DRIVER), "-Wl,-soname,libcuda.so.1", "-o", str(library)]
        subprocess.run(command, check=True)
        process = multiprocessing.get_context("fork").Process(target=_with_driver, args=(library, call))
        process.start()
        process.join()
        said, log = folder / "error", folder / "log"
        assert process.exitcode == 0, said.read_text() if said.exists() else f"it ended with {process.exitcode}"
        assert log.exists(), "it asked no driver that stands in for NVIDIA's; was there another one before?"
        return log.read_text().splitlines()


def _with_driver(library: Path, call: Callable[[], object]) -> None:
    os.environ |= {"KERNELWRIGHT_CUDA_DRIVER": str(library), "STANDIN_LOG": str(library.with_name("log"))}
    os.environ |= {"STANDIN_CAPABILITY": "80", "STANDIN_PARAMETERS": "ppfpi"}
    ctypes.CDLL(str(library))  # whoever loads libcuda.so.1 later gets this one
    try:
        call()
    except BaseException:
        library.with_name("error").write_text(traceback.format_exc())
        raise SystemExit(1) from None


def _launches(caller: Caller, call: Callable[[Any], object]) -> list[tuple[list[str], str]]:
    """The launches of calls with arrays: the parameters of each, as the driver notes them, and stream and device."""
    made = caller.device_array
    assert made, f"{caller.backend} takes no arrays of a device that does not exist"
    lines = asked_of_driver(lambda: call(lambda data: made(DeviceArray((SIZE,), device=(2, 0), data=data))))
    noted = [re.search(r"^launch .* (stream \S+ on \S+) .*parameters (.*)", line) for line in lines]
    return [(match[2].split(), match[1]) for match in noted if match]


def an_argument_may_be_left_out(caller: Caller, kernels: Any) -> None:
    """An optional array is a null pointer if a call passes None or leaves it out, and a number has its default."""

    def call(array: Callable[[int], Any]) -> None:
        x, bias, y = array(X), array(BIAS), array(Y)
        if caller.writes:
            kernels.add(x, bias, 3.0, y)
            kernels.add(x, None, None, y)
        kernels.add(x, bias)
        kernels.add(x)
        kernels.add(alpha=3.0, x=x)

    launched = [passed for passed, _ in _launches(caller, call)]
    given, none = hex(BIAS), "0"
    expected = [(given, "3"), (none, "2")] * caller.writes + [(given, "2"), (none, "2"), (none, "3")]
    assert [(passed[0], *passed[1:3], passed[4]) for passed in launched] == [
        (hex(X), bias, alpha, str(SIZE)) for bias, alpha in expected
    ], launched
    assert [passed[3] for passed in launched[:2]] == [hex(Y)] * 2 or not caller.writes, launched


def a_launch_is_in_the_callers_stream(caller: Caller, kernels: Any) -> None:
    """It is in the stream that the caller says, with new outputs, too, and in the default stream before and after."""

    def call(array: Callable[[int], Any]) -> None:
        x, bias, y = array(X), array(BIAS), array(Y)
        passed = (x, bias, 3.0, y) if caller.writes else (x, bias)
        kernels.add(*passed)
        caller.in_stream(kernels.add, STREAM, *passed)
        caller.in_stream(kernels.add, STREAM, x)
        kernels.add(*passed)

    streams = [stream for _, stream in _launches(caller, call)]
    mine, default = f"stream {STREAM:#x} on cuda:0", ("stream 0 on cuda:0", "stream 0x1 on cuda:0")
    assert streams[1:3] == [mine, mine] and streams[0] in default and streams[3] in default and len(streams) == 4, (
        streams
    )


def a_wrong_array_is_not_launched(caller: Caller, kernels: Any) -> None:
    """None for an array that is not optional is an error that names the kernel, and so is a call without it."""

    def call(array: Callable[[int], Any]) -> None:
        bias, y = array(BIAS), array(Y)
        kernels.add(bias)
        for arguments in ((None, bias, 3.0, y), (None, bias), ()):
            try:
                kernels.add(*arguments)
            except (TypeError, ValueError, RuntimeError) as error:
                assert "add" in str(error), f"{arguments}: {error}"
            else:
                raise AssertionError(f"{arguments} is launched")

    assert len(_launches(caller, call)) == 1


LAUNCHES: tuple[Callable[[Caller, Any], None], ...] = (
    an_argument_may_be_left_out,
    a_launch_is_in_the_callers_stream,
    a_wrong_array_is_not_launched,
)
"""What every backend for CUDA promises of its launches. Each takes the caller, and what ``Caller.launched`` gives."""
