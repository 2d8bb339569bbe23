"""Times the first call and steady calls of saxpy: ``call_cost.py ours|raw|steady LIBRARY CALLS [without-torch]``.

``ours`` and ``raw`` print the seconds from before the import to the return of the first call, through the package or
through tvm-ffi alone. ``steady`` prints the ns of a call through each, in turn. NumPy is imported before.
With ``without-torch`` tvm-ffi does not find PyTorch, whose import would take most of the time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCHES = 41

if sys.argv[4:] == ["without-torch"]:
    sys.modules["torch"] = None  # type: ignore[assignment]


def ours() -> Any:
    """The kernel, as a user gets it."""
    from kw_kernels import saxpy

    return saxpy


def raw() -> Any:
    """The function of the library, without the package."""
    import tvm_ffi

    return tvm_ffi.load_module(sys.argv[2]).get_function("saxpy")


def first_call(load: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the import, of loading the library, and of the first call."""
    x, z = np.arange(8, dtype="float32"), np.zeros(8, dtype="float32")
    start = time.perf_counter()
    function = load()
    loaded = time.perf_counter()
    function(2.0, x, x, z)
    called = time.perf_counter()
    assert z[3] == 9.0, z
    return {"load_s": loaded - start, "call_s": called - loaded}


def steady(calls: int) -> dict[str, float]:
    """Nanoseconds of a call, batch by batch, in turn."""
    kernel = ours()
    functions = {"ours": kernel, "function": kernel.function, "raw": raw()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    x, z = np.arange(8, dtype="float32"), np.zeros(8, dtype="float32")
    for batch in range(-1, BATCHES):
        for name, function in functions.items():
            start = time.perf_counter_ns()
            for _ in range(calls):
                function(2.0, x, x, z)
            if batch >= 0:  # the first one warms up
                times[name].append((time.perf_counter_ns() - start) / calls)
    return {f"{name}_ns": statistics.median(listed) for name, listed in times.items()}


def main() -> None:
    """Do what the first argument says, and print it as JSON."""
    print(json.dumps(steady(int(sys.argv[3])) if sys.argv[1] == "steady" else first_call(globals()[sys.argv[1]])))


if __name__ == "__main__":
    main()
