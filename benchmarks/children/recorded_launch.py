"""Times launches through Triton, and through a package of recorded functions: ``recorded_launch.py WHAT LIBRARY``.

``launches`` prints the ns of a launch through each, ``package`` and ``triton`` the ms from the first import to the
return of the first launch. PyTorch is imported before that. Paths have the package ``launches``, and its program.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

BATCHES, CALLS = 60, 200
NAME = b"dlpack_exchange_api"
NUMBERS = {"eight": (0.5, 2.0, 1000, 1024, 7), "twelve": (0.5, 2.0, 1000, 1024, 7, 5, 6, 64)}
TENSORS = {"eight": 3, "twelve": 4}
GRID = (4,)


def on_gpu(library: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes a tensor one that says that it is on a GPU."""
    api = ctypes.CDLL(library).on_gpu
    api.restype, api.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    own: Any = torch.Tensor
    changed = new(api(get(own.__dlpack_c_exchange_api__, NAME)), NAME, None)
    kind = type("OnGpu", (torch.Tensor,), {"__dlpack_c_exchange_api__": changed})
    return lambda tensor: own.as_subclass(tensor, kind)


def start_triton() -> Any:
    """The program's functions, with a driver that needs no GPU of PyTorch."""
    import triton
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils

    class Driver(CudaDriver):  # type: ignore[misc]  # Triton has no types
        def __init__(self) -> None:
            self.utils, self.launcher_cls = CudaUtils(), CudaLauncher
            self.get_current_device = lambda: 0
            self.get_current_stream = lambda device: 0
            self.get_device_capability = lambda device: (9, 0)

    triton.runtime.driver.set_active(Driver())
    return importlib.import_module("launched")


def start_package() -> Any:
    """The package."""
    return importlib.import_module("launches")


def first_launch(start: Callable[[], Any], tensors: list[torch.Tensor]) -> float:
    """The ms from the import to the return of the first launch."""
    begin = time.perf_counter_ns()
    start().eight[GRID](*tensors[:3], *NUMBERS["eight"], BLOCK=256)
    return (time.perf_counter_ns() - begin) / 1e6


def launches(plain: list[torch.Tensor], gpu: list[torch.Tensor]) -> dict[str, float]:
    """The ns of a launch: the fastest batch of each, in turn, as other processes only make a batch slower."""
    triton, package = start_triton(), start_package()
    calls: dict[str, Callable[[], Any]] = {}
    for name, numbers in NUMBERS.items():
        theirs, ours = (*plain[: TENSORS[name]], *numbers), (*gpu[: TENSORS[name]], *numbers)
        function, kernel, raw = getattr(triton, name), getattr(package, name), getattr(package, name).function
        calls[f"{name} triton"] = _launching(function, theirs)
        calls[f"{name} package"] = _launching(kernel, ours)
        calls[f"{name} library"] = partial(raw, 4, 1, 1, *ours, 256)
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(BATCHES):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            times[name] = min(times[name], (time.perf_counter_ns() - begin) / CALLS)
    return times


def _launching(function: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function[GRID](*arguments, BLOCK=256)


def main() -> None:
    """Measure what is asked for."""
    what, library = sys.argv[1:]
    plain = [torch.zeros(1024) for _ in range(4)]
    gpu = list(map(on_gpu(library), plain))
    if what == "launches":
        print(json.dumps(launches(plain, gpu)))
    else:
        is_triton = what == "triton"
        print(json.dumps(first_launch(start_triton, plain) if is_triton else first_launch(start_package, gpu)))


if __name__ == "__main__":
    main()
