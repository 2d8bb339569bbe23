"""Where the tests, experiments and benchmarks of GPUs run, and the libraries whose arrays they pass.

All of them are written for a device with streams. The CPU plays one whose streams do everything at once, so that their
code runs, and is tested, on a machine without a GPU; NumPy plays CuPy there, whose functions have the same names. With
the driver that stands in (``tests/standin``) calls for CUDA go through too, and nothing is computed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
SITE_SCONS = ROOT / "site_scons"
if str(SITE_SCONS) not in sys.path:
    sys.path.append(str(SITE_SCONS))  # where Kernelwright itself is not installed

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the device

SLEEP = 500_000_000
"""Cycles that a sleeping kernel takes: a quarter of a second or more."""

NEEDS: dict[str, tuple[str, ...]] = {"tvm_ffi": ("tvm_ffi",), "cython": ("tvm_ffi",), "torch": ("torch", "tvm_ffi")}
NEEDS |= {"jax": ("jax", "jax_tvm_ffi"), "cuda_core": ("cuda.core", "cuda.bindings")}
"""Backend -> the modules that it imports where it runs."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "tvm_ffi": ("torch", "jax", "cupy"),
    "cython": ("torch", "jax", "cupy"),
    "cuda_core": ("torch", "jax", "cupy"),
}
LIBRARIES |= {"torch": ("torch",), "jax": ("jax",)}
"""Backend -> the libraries whose arrays are passed to it."""

MODULES = {"torch": "torch", "jax": "jax", "cupy": "cupy", "plain": "torch"}
"""Library -> the module that it needs."""


def packages() -> Path:
    """The folder that holds the built packages."""
    return Path(os.environ.get("KERNELWRIGHT_TEST_PACKAGES", ROOT / "build"))


def named() -> str:
    """The device of this process: ``cuda``, ``cpu`` or ``standin``."""
    return os.environ.get("KERNELWRIGHT_TEST_DEVICE", "cuda")


def backends(*names: str) -> list[str]:
    """Those of some backends that are to be tried in this process, and have code for its device."""
    wanted = os.environ.get("KERNELWRIGHT_TEST_BACKENDS", ",".join(LIBRARIES)).split(",")
    return [name for name in names if name in wanted and (name, named()) != ("cuda_core", "cpu")]


def device_of(kind: str) -> Device:
    """The device of that name."""
    return {"cuda": Cuda, "cpu": Device, "standin": StandIn}[kind]()


class Plain:
    """An array of a library that offers DLPack only, over a tensor of PyTorch."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


class Device:
    """The CPU, whose streams do everything at once."""

    kind = "cpu"
    spin = 1000
    """Rounds of the kernel ``late``."""

    @property
    def capability(self) -> int | None:
        """The compute capability of a real GPU, 10 * major + minor."""
        return None

    def stream(self) -> Any:
        """A new stream, which waits for no other one; what kernels take as ``stream``."""
        return None

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """A block in which that stream is PyTorch's current one."""
        return contextlib.nullcontext()

    def sleep(self, stream: Any = None, cycles: int = SLEEP) -> None:
        """Keep a stream busy for a while: the default one, or that which is given."""

    def wait(self, stream: Any = None) -> None:
        """Wait for a stream, or for everything."""

    def flush(self) -> None:
        """Put something else into the cache of the device."""

    def tensor(self, values: np.ndarray, dtype: str = "") -> Any:
        """A tensor of PyTorch with these values; those of bfloat16 are given by their bits."""
        import torch

        made = torch.from_numpy(np.ascontiguousarray(values).copy())
        return (made.view(torch.bfloat16) if dtype == "bfloat16" else made).to(self.kind)

    def make(self, library: str, values: np.ndarray, dtype: str = "") -> Any:
        """An array of a library with these values, ready to be used by any stream."""
        if library in ("torch", "plain"):
            made = self.tensor(values, dtype)
            self.wait()
            return Plain(made) if library == "plain" else made
        return self._jax_array(values, dtype) if library == "jax" else self._cupy_array(values)

    def make_now(self, library: str, values: np.ndarray) -> Any:
        """An array of a library, made without waiting for the work that other streams still have to do."""
        return self.make(library, values)

    def _jax_array(self, values: np.ndarray, dtype: str) -> Any:
        import jax
        import ml_dtypes

        jax.config.update("jax_enable_x64", True)
        typed = values.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else values
        # What is computed has memory of JAX's own; on the CPU an array that is only put there may be NumPy's memory.
        return jax.block_until_ready(jax.numpy.array(typed, copy=True))

    def _cupy_array(self, values: np.ndarray) -> Any:
        return values.copy()

    def values(self, array: Any) -> np.ndarray:
        """The values of an array of any library, once all work is done; those of bfloat16 as their bits."""
        self.wait()
        if type(array).__module__.startswith("jax"):
            found = np.asarray(array)
            return found.view(np.uint16) if found.dtype.name == "bfloat16" else found
        import torch

        tensor = array.tensor if isinstance(array, Plain) else torch.from_dlpack(array)
        return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()

    def read(self, consumer: str, array: Any) -> np.ndarray:
        """What another library sees in an array that it takes at once, on a stream of its own."""
        return {"torch": self._read_by_torch, "jax": self._read_by_jax, "cupy": self._read_by_cupy}[consumer](array)

    def _read_by_torch(self, array: Any) -> np.ndarray:
        import torch

        stream = self.stream()
        with self.on(stream):
            copy = torch.from_dlpack(array).clone()
        self.wait(stream)
        return copy.cpu().numpy()

    def _read_by_jax(self, array: Any) -> np.ndarray:
        import jax

        return np.asarray(jax.numpy.from_dlpack(array) + 0)

    def _read_by_cupy(self, array: Any) -> np.ndarray:
        return np.from_dlpack(array).copy()

    @contextlib.contextmanager
    def cupy_stream(self) -> Iterator[Any]:
        """A block in which a new stream is CuPy's current one; None on the CPU."""
        yield None

    def refuse(self, code: int) -> None:
        """Say that the driver is going to refuse the next device code, with an error of this number."""

    def captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture what some work launches in a graph: what replays it, and what the work returned."""
        kept = [work()]

        def replay() -> None:
            again = work()
            if again is not None:  # a graph writes into the arrays of its capture
                kept[0].copy_(again)

        return replay, kept[0]


class Cuda(Device):
    """The current GPU, by way of PyTorch."""

    kind = "cuda"
    spin = 300_000_000

    @property
    def capability(self) -> int | None:
        import torch

        major, minor = torch.cuda.get_device_capability()
        return 10 * int(major) + int(minor)

    def stream(self) -> Any:
        import torch

        return torch.cuda.Stream()

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        import torch

        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def sleep(self, stream: Any = None, cycles: int = SLEEP) -> None:
        import torch

        if isinstance(stream, int):
            stream = torch.cuda.ExternalStream(stream)
        with torch.cuda.stream(stream or torch.cuda.default_stream()):
            torch.cuda._sleep(cycles)

    def wait(self, stream: Any = None) -> None:
        import torch

        if stream is None:
            torch.cuda.synchronize()
        else:
            stream.synchronize()

    def flush(self) -> None:
        """Write more bytes than any cache holds."""
        import torch

        global _LARGE
        if _LARGE is None:
            _LARGE = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
        _LARGE.zero_()

    def make_now(self, library: str, values: np.ndarray) -> Any:
        """An array of a library that is filled on the device, in the library's own current stream."""
        if library == "torch":
            import torch

            return torch.full(values.shape, float(values.flat[0]), device="cuda")
        if library == "jax":
            import jax

            return jax.block_until_ready(jax.numpy.full(values.shape, float(values.flat[0]), jax.numpy.float32))
        import cupy

        return cupy.full(values.shape, values.flat[0], values.dtype)

    def _cupy_array(self, values: np.ndarray) -> Any:
        import cupy

        made = cupy.asarray(values)
        self.wait()
        return made

    def _read_by_cupy(self, array: Any) -> np.ndarray:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            copy = cupy.from_dlpack(array).copy()
            stream.synchronize()
            found: np.ndarray = cupy.asnumpy(copy)
        return found

    @contextlib.contextmanager
    def cupy_stream(self) -> Iterator[Any]:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            yield stream.ptr

    def captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture what some work launches in a graph: what replays it, and what the work returned."""
        import torch

        graph, failures, returned = torch.cuda.CUDAGraph(), [], None
        try:
            with torch.cuda.graph(graph):
                try:
                    returned = work()
                except Exception as error:  # the end of the capture fails then, too, and would hide it
                    failures.append(error)
        except Exception as error:
            failures.append(error)
        if failures:
            raise failures[0]
        return graph.replay, returned


_LARGE: Any = None


class OnCuda:
    """An array of NumPy that says that it is on the first GPU; the driver that stands in does not look at its data."""

    def __init__(self, values: np.ndarray, dtype: str = "") -> None:
        self.array = values.copy()
        self.shape = values.shape
        self.is_bfloat = dtype == "bfloat16"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.array.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # A DLTensor begins with the address of the data; the kind and the number of its device follow.
        address = pointer_of(capsule, b"dltensor")
        ctypes.c_int32.from_address(address + 8).value = 2
        if self.is_bfloat:  # behind the number of dimensions is the kind of the elements: 4 is that of bfloat16
            ctypes.c_uint8.from_address(address + 20).value = 4
        return capsule

    def mul_(self, factor: float) -> None:
        """Multiply in place."""
        self.array = (self.array * factor).astype(self.array.dtype)

    def copy_(self, other: OnCuda) -> None:
        """Take the values of another one."""
        self.array[...] = other.array

    def stride(self, axis: int) -> int:
        """Elements from one to the next along an axis."""
        return self.array.strides[axis] // self.array.itemsize

    def cpu(self) -> OnCuda:
        """The same."""
        return self

    def numpy(self) -> np.ndarray:
        """The values."""
        return self.array


class Unseen(np.ndarray):
    """Values that nobody has computed."""


class StandIn(Device):
    """A GPU whose driver only writes down what it is asked for."""

    kind = "cuda"

    def tensor(self, values: np.ndarray, dtype: str = "") -> Any:
        """An array that says that it is on a GPU."""
        return OnCuda(values, dtype)

    def values(self, array: Any) -> np.ndarray:
        """There are none."""
        return np.zeros(1).view(Unseen)

    def refuse(self, code: int) -> None:
        """Let the driver refuse device code."""
        os.environ["STANDIN_FAIL"] = f"cuLibraryLoadData={code}"

    def captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """There are no graphs: what is replayed is called."""
        return lambda: (work(), None)[1], work()
