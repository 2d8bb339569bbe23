"""Stand-ins for PyTorch and CuPy on machines with several GPUs: modules that print what they are asked for.

They behave as the real ones do where that matters: PyTorch takes the handles 1 and 3 for numbers of its own streams and
refuses them as external ones, and CuPy's current stream is that of the current device unless it is told which.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from .launcher_build import FakeTensor

STREAMS = {0: 0x500, 1: 0x510}
"""Device -> handle of the current stream of both."""

ADDRESSES = itertools.count(0x500000, 0x10000)


class TorchDtype:
    """``torch.dtype``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class TorchTensor:
    """``torch.Tensor``."""

    def __init__(self, shape: tuple[int, ...], dtype: TorchDtype, number: int | None) -> None:
        self.shape, self.dtype = shape, dtype
        self.device = SimpleNamespace(type="cpu" if number is None else "cuda", index=number)
        self._data = next(ADDRESSES)

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def stride(self) -> None:
        return None

    def data_ptr(self) -> int:
        return self._data

    def __index__(self) -> int:
        return 1

    def __del__(self) -> None:
        if self.dtype.name == "uint8":
            print("torch frees", self.dtype, list(self.shape))


def torch() -> Any:
    """Make ``torch`` a stand-in."""
    module: Any = ModuleType("torch")
    module.Tensor, module.dtype = TorchTensor, TorchDtype
    for name in ("float16", "float32", "uint8", "int32"):
        setattr(module, name, TorchDtype(name))
    module.device = lambda kind, index: SimpleNamespace(type=kind, index=index)
    current = dict(STREAMS)

    def external(handle: int, place: Any) -> Any:
        if handle & 1:
            raise RuntimeError("invalid StreamId")
        return SimpleNamespace(cuda_stream=handle, place=place)

    @contextmanager
    def use(stream: Any) -> Any:
        before, current[stream.place.index] = current[stream.place.index], stream.cuda_stream
        yield
        current[stream.place.index] = before

    def empty(shape: tuple[int, ...], dtype: TorchDtype, device: Any) -> TorchTensor:
        print(f"torch makes {dtype} {list(shape)} in {current[device.index]:#x} on cuda:{device.index}")
        return TorchTensor(tuple(shape), dtype, device.index)

    module.empty = empty
    module.cuda = SimpleNamespace(
        current_stream=lambda place: SimpleNamespace(cuda_stream=current[place.index], place=place),
        default_stream=lambda place: SimpleNamespace(cuda_stream=0, place=place),
        ExternalStream=external,
        stream=use,
    )
    sys.modules["torch"] = module
    return module


class CupyArray(FakeTensor):
    """``cupy.ndarray``."""

    def __init__(self, shape: tuple[int, ...], dtype: tuple[int, int, int], number: int) -> None:
        super().__init__(shape, dtype, device=(2, number), data=next(ADDRESSES))
        self.device = SimpleNamespace(id=number)
        self.data = SimpleNamespace(ptr=self._managed.data)


CupyArray.__module__ = "cupy"


class CupyStream:
    """``cupy.cuda.Stream``; ``current`` is the number of the current device, and the handle of its stream."""

    current: Any = (0, None)
    null: Any
    ptds: Any

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr = ptr

    def __enter__(self) -> None:
        self.before = CupyStream.current
        CupyStream.current = (self.before[0], self.ptr)

    def __exit__(self, *error: object) -> None:
        CupyStream.current = self.before


CupyStream.null, CupyStream.ptds = CupyStream(0), CupyStream(2)


def cupy() -> Any:
    """Make ``cupy`` a stand-in, whose current device is the first one."""
    module: Any = ModuleType("cupy")

    @contextmanager
    def device(number: int) -> Any:
        before, CupyStream.current = CupyStream.current, (number, None)
        yield
        CupyStream.current = before

    def current_stream(number: int = -1) -> CupyStream:
        return CupyStream(STREAMS[CupyStream.current[0] if number < 0 else number])

    def empty(shape: tuple[int, ...], dtype: str) -> CupyArray:
        number, handle = CupyStream.current
        print(f"cupy makes {dtype} {list(shape)} in {handle:#x} on cuda:{number}")
        return CupyArray(shape, {"float16": (2, 16, 1), "uint8": (1, 8, 1)}[dtype], number)

    module.empty = empty
    module.cuda = SimpleNamespace(
        Device=device, Stream=CupyStream, ExternalStream=CupyStream, get_current_stream=current_stream
    )
    sys.modules["cupy"] = module
    return module
