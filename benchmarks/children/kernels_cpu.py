"""Times the kernels of the library on the CPU beside NumPy and PyTorch, a JSON object for each workload:
``kernels_cpu.py PACKAGES ROUNDS tiny|full THREADS [KERNEL ...]``, where 0 threads are as many as each takes by itself.

In each round all ways of a workload are measured in turn. All get the same tensors, and each makes a new result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

if sys.argv[4] != "0":  # before anything is imported that reads them
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KERNELWRIGHT_NUM_THREADS"), sys.argv[4])

import torch
from cpu_workloads import Workload, workloads

SAMPLE_S = 0.004
"""Seconds of calls that make one sample."""

WARM_UP_S = 0.025
"""Seconds of calls before each sample. Threads of another way's pool wait for work in a loop for some 6 ms, and the
system may take 20 ms to give threads that were asleep a core each."""


def samples(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call of each way, in each round."""
    counts = {name: max(1, int(SAMPLE_S / _seconds(way, 3))) for name, way in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            _warm_up(way)
            found[name].append(_seconds(way, counts[name]))
    return found


def _warm_up(way: Callable[[], Any]) -> None:
    end = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < end:
        way()


def _seconds(way: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        way()
    return max((time.perf_counter() - start) / calls, 1e-9)


def ways_of(workload: Workload, kernel: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """How the workload is computed: by us, by NumPy where that has one function for it, and by PyTorch twice."""
    inputs = workload.inputs
    torch._dynamo.reset()
    compiled = torch.compile(workload.torch, dynamic=False)
    ways: dict[str, Callable[[], Any]] = {"ours": lambda: kernel(*inputs)}
    if workload.numpy is not None:
        function, arrays = workload.numpy, [value.numpy() for value in inputs]
        ways["NumPy"] = lambda: function(*arrays)
    ways["torch.compile"] = lambda: compiled(*inputs)
    ways["PyTorch"] = lambda: workload.torch(*inputs)
    return ways


def error_of(ours: Any, theirs: torch.Tensor) -> float:
    """The largest error, as ``kernelwright.worker.compare`` defines it."""
    first = ours[0] if isinstance(ours, (tuple, list)) else ours
    got, expected = torch.from_dlpack(first).double(), theirs.double()
    scale = expected.square().mean().sqrt()
    return float(((got - expected).abs() / (scale + expected.abs() + 1e-30)).max())


def measured(workload: Workload, kernel: Callable[..., Any], rounds: int) -> dict[str, Any]:
    """All samples of a workload, and how far our result is from PyTorch's."""
    ways = ways_of(workload, kernel)
    error = error_of(ways["ours"](), ways["PyTorch"]()) if workload.exact else 0.0
    for way in ways.values():
        way()
    found = samples(ways, rounds)
    return {
        "kernel": workload.kernel,
        "sizes": workload.sizes,
        "error": error,
        "is_right": error <= workload.tolerance,
        "seconds": found,
    }


def main() -> None:
    """Measure one workload after the other."""
    sys.path.insert(0, sys.argv[1])
    rounds, tiny, wanted = int(sys.argv[2]), sys.argv[3] == "tiny", sys.argv[5:]
    package = importlib.import_module("kw_kernels")
    names = set(package.manifest()["kernels"]) & set(wanted or package.manifest()["kernels"])
    with torch.inference_mode():
        for workload in workloads(names, tiny):
            print(json.dumps(measured(workload, getattr(package, workload.kernel), rounds)), flush=True)


if __name__ == "__main__":
    main()
