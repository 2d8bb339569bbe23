"""Times calls through each backend: ``call_overhead.py PACKAGE_FOLDER CALLS``; prints ns of a call as JSON.

The key of a time is ``KERNEL ARRAYS WHO``: a kernel, ``numpy`` or ``torch`` arrays, and a backend or a peer.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = 41
BACKENDS = ("tvm_ffi", "cython", "torch")
SIZE = 8
"""Elements of each array: so few that the call is all that takes time."""

Calls = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def of_package(package: Any, folder: Path) -> Calls:
    """Calls of the kernels through each backend, and of their libraries through tvm-ffi alone."""
    import tvm_ffi

    found: Calls = {}
    for kernel, count in (("touch", 1), ("add", 3)):
        raw = tvm_ffi.load_module(str(folder / "calls" / "_lib" / f"{kernel}.so")).get_function(kernel)
        for kind, make in makers().items():
            arrays = tuple(make() for _ in range(count))
            found[f"{kernel} {kind} raw"] = raw, arrays
            for name in BACKENDS:
                if name != "torch" or kind == "torch":
                    found[f"{kernel} {kind} {name}"] = getattr(getattr(package.backends, name), kernel), arrays
            function = package.backends.tvm_ffi
            found[f"{kernel} {kind} tvm_ffi.function"] = getattr(function, kernel).function, arrays
    return found


def makers() -> dict[str, Callable[[], Any]]:
    """What makes arrays, by kind."""
    import torch

    return {"numpy": lambda: np.ones(SIZE, np.float32), "torch": lambda: torch.ones(SIZE)}


def of_torch() -> Calls:
    """What PyTorch itself takes: an addition, and operators that do nothing."""
    import torch

    library: Any = torch.library.Library  # which has no types
    operators = library("call_overhead", "DEF")
    one, three = torch.ones(SIZE), tuple(torch.ones(SIZE) for _ in range(3))
    operators.define("touch(Tensor(a!) x) -> ()")
    operators.define("add(Tensor x, Tensor y, Tensor(a!) z) -> ()")
    operators.impl("touch", lambda x: None, "CPU")
    operators.impl("add", lambda x, y, z: None, "CPU")
    of_torch.kept = operators  # type: ignore[attr-defined] # they are gone when the object is
    namespace = torch.ops.call_overhead
    return {
        "touch torch dispatch": (namespace.touch.default, (one,)),
        "add torch dispatch": (namespace.add.default, three),
        "add torch torch.add": (lambda x, y, z: torch.add(x, y, out=z), three),
    }


def measure(calls: Calls, count: int) -> dict[str, float]:
    """Nanoseconds of each call, batch by batch, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for batch in range(-1, BATCHES):
        for name, (function, arguments) in calls.items():
            start = time.perf_counter_ns()
            for _ in range(count):
                function(*arguments)
            if batch >= 0:  # the first one warms up
                times[name].append((time.perf_counter_ns() - start) / count)
    return {name: statistics.median(listed) for name, listed in times.items()}


def main() -> None:
    """Measure, and print the result."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    package = importlib.import_module("calls")
    print(json.dumps(measure({**of_package(package, folder), **of_torch()}, int(sys.argv[2]))))


if __name__ == "__main__":
    main()
