"""Launches the four kernels of ``examples/cutile`` once: ``cutile.py package`` or ``cutile.py cutile``."""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
import warnings
from typing import Any

from kernelwright.testing.launches import DeviceArray

KINDS = {"<f4": (2, 32), "<f2": (2, 16)}


class Array:
    """An array at a made-up place on a GPU."""

    def __init__(self, number: int, kind: str, *shape: int, strides: tuple[int, ...] = ()) -> None:
        self._kind, self._shape, self._data = kind, shape, number << 20
        self._strides = strides or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = tuple(step * KINDS[self._kind][1] // 8 for step in self._strides)
        said = {"shape": self._shape, "typestr": self._kind, "data": (self._data, False)}
        return {**said, "version": 3, "strides": strides}

    @property
    def ours(self) -> DeviceArray:
        """The same with DLPack's protocol."""
        dtype = (*KINDS[self._kind], 1)
        return DeviceArray(self._shape, dtype, device=(2, 0), strides=self._strides, data=self._data)


def arguments() -> dict[str, list[Any]]:
    """What the package's kernels are called with."""
    half = [Array(number, "<f2", 6, 160) for number in (3, 4)]
    w, b = Array(5, "<f2", 160), Array(6, "<f2", 160)
    a, c, d = (Array(n, "<f2", *shape) for n, shape in enumerate([(100, 72), (72, 200), (100, 200)], 7))
    q, k, v, out = (Array(n, "<f2", 3, length, 64) for n, length in enumerate([70, 130, 130, 70], 10))
    return {
        "softmax": [Array(1, "<f4", 5, 300, strides=(320, 1)), Array(2, "<f4", 5, 300)],
        "layer_norm": [half[0], w, b, half[1], 1e-5],
        "matmul": [a, c, d],
        "attention": [q, k, v, out, 0.5, Array(14, "<f4", 3, 130)],
    }


def through_package() -> None:
    """Call the package's kernels."""
    import tvm_ffi

    package = importlib.import_module("tile_kernels")
    for name, passed in arguments().items():
        getattr(package, name)(*[tvm_ffi.from_dlpack(one.ours) if isinstance(one, Array) else one for one in passed])


def through_cutile() -> None:
    """Launch the functions of the definitions."""
    import cuda.tile as ct

    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    more: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
        "softmax": ((5,), (1024,)),
        "layer_norm": ((6,), (160, 1024)),
        "matmul": ((1, 2), (128, 128, 64)),
        "attention": ((2, 3), (True, 64, 64)),
    }
    for name, passed in arguments().items():
        grid, constants = more[name]
        if name == "attention":
            passed.insert(5, 130)
        ct.launch(0x510, grid, getattr(importlib.import_module(name), f"{name}_kernel"), (*passed, *constants))


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm-ffi imports it where it is, and nothing here needs it
    warnings.simplefilter("ignore")  # cuTile says that it takes tileiras from PATH
    {"package": through_package, "cutile": through_cutile}[sys.argv[1]]()
