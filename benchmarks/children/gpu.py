"""Times every kernel of the library beside PyTorch's operators: ``gpu.py DEVICE PACKAGES tiny|full``; prints JSON.

The device is ``cuda``, or ``cpu`` to see whether everything runs. All times are in seconds.
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

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "gpu")]

import torch  # noqa: E402
from devices import Device, device_of  # noqa: E402
from gpu_workloads import Maker, Workload  # noqa: E402

PEAKS = {
    "H200": {"bytes": 4.8e12, "float16": 989e12, "float32": 67e12},
    "H100 80GB HBM3": {"bytes": 3.35e12, "float16": 989e12, "float32": 67e12},
    "A100-SXM4-80GB": {"bytes": 2.039e12, "float16": 312e12, "float32": 19.5e12},
}
"""Part of a GPU's name -> bytes and operations in a second, without sparsity, by NVIDIA's data sheets."""

WARM_CALLS = 20
"""Calls one behind the other between two events."""

SHORT_SLEEP = 20_000_000
"""Cycles in which the host gets ahead of the device, so that the time of a launch is not in what is measured."""

BACKENDS = ("tvm_ffi", "cython", "cuda_core", "torch")


class Timer:
    """Measures how long a device works.

    Arguments:
        device: where.
        rounds: how often.
    """

    def __init__(self, device: Device, rounds: int) -> None:
        self._device = device
        self._rounds = rounds

    def both(self, call: Callable[[], Any]) -> dict[str, float]:
        """Seconds of a call whose data is in no cache, and of one that follows another like it."""
        for _ in range(3):
            call()
        self._device.wait()
        cold, warm = self._timed(call, 1), self._timed(call, WARM_CALLS)
        return {"cold": statistics.median(cold), "warm": statistics.median(warm) / WARM_CALLS}

    def _timed(self, call: Callable[[], Any], calls: int) -> list[float]:
        marks = []
        self._device.sleep(None, SHORT_SLEEP)
        for _ in range(self._rounds if calls == 1 else 3):
            self._device.flush()
            start = self._mark()
            for _ in range(calls):
                call()
            marks.append((start, self._mark()))
        self._device.wait()
        return [self._between(start, end) for start, end in marks]

    def _mark(self) -> Any:
        if self._device.kind == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(end - start) if self._device.kind == "cpu" else float(start.elapsed_time(end)) / 1000


def measured(package: Any, workload: Workload, timer: Timer) -> dict[str, Any]:
    """Times of a workload, by us and by its peers, and how far our result is from the first peer's."""
    arguments = (*workload.inputs, *workload.outputs)
    kernel = getattr(package, workload.kernel)
    config = kernel.choice(*arguments).config
    if not workload.config.items() <= config.items():
        raise ValueError(f"the variant {config} is chosen, expected is one of {workload.config}")
    found: dict[str, Any] = {"kernel": workload.kernel, "sizes": workload.sizes, "config": config}
    found |= {"bytes": workload.bytes, "operations": workload.operations, "error": None}
    if workload.exact:
        kernel(*arguments)
        peer = next(iter(workload.peers.values()))()
        found["error"] = difference(workload.outputs[0], peer)
        found["is_right"] = bool(found["error"] <= workload.tolerance)
    found["ours"] = timer.both(lambda: kernel(*arguments))
    found["peers"] = {name: timer.both(call) for name, call in workload.peers.items()}
    return found


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest error, as ``kernelwright.worker.compare`` defines it, computed where the data is: there is much."""
    expected, got = theirs.double(), ours.double()
    scale = expected.square().mean().sqrt()
    return float(((got - expected).abs() / (scale + expected.abs())).max())


def launches(device: Device, package: Any, calls: int) -> dict[str, float]:
    """Seconds of the host for a call of saxpy with eight elements, through each backend and through peers."""
    import tvm_ffi

    x, y, z = (torch.ones(8, device=device.kind) for _ in range(3))
    folder = Path(package.__file__).parent
    raw = tvm_ffi.load_module(str(folder / "_lib" / "saxpy.so")).get_function("saxpy")
    ways: dict[str, Callable[..., Any]] = {"tvm-ffi alone": lambda: raw(2.0, x, y, z)}
    ways["torch.add(out=)"] = lambda: torch.add(y, x, alpha=2.0, out=z)
    for name in package.backends.__all__:
        if name not in BACKENDS or (name == "cuda_core" and device.kind == "cpu"):
            continue
        kernel = getattr(package.backends, name).saxpy
        ways[name] = lambda kernel=kernel: kernel(2.0, x, y, z)
        ways[f"{name}, new output"] = lambda kernel=kernel: kernel(2.0, x, y)
    ways["tvm_ffi's .function"] = lambda: package.backends.tvm_ffi.saxpy.function(2.0, x, y, z)
    if "jax" in package.backends.__all__:
        ways |= in_jax(device, package.backends.jax.saxpy)
    return {name: host_time(device, call, calls) for name, call in ways.items()}


def in_jax(device: Device, kernel: Any) -> dict[str, Callable[[], Any]]:
    """Calls of jitted programs: the kernel, and JAX's own operations."""
    import jax
    import numpy as np

    x = device.make("jax", np.ones(8, np.float32))
    ours, theirs = jax.jit(lambda a: kernel(2.0, a, a)), jax.jit(lambda a: 2.0 * a + a)
    return {"jax, jitted": lambda: ours(x), "jitted JAX without a kernel": lambda: theirs(x)}


def host_time(device: Device, call: Callable[[], Any], calls: int) -> float:
    """The median of the seconds of a call on the host; between batches it waits, so that no queue is ever full."""
    times = []
    for batch in range(-2, 21):
        device.wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if batch >= 0:
            times.append((time.perf_counter() - start) / calls)
    device.wait()
    return statistics.median(times)


def peaks(device: Device, timer: Timer, tiny: bool) -> dict[str, Any]:
    """What the device can do: by its name, and what a copy reaches."""
    name = torch.cuda.get_device_name() if device.kind == "cuda" else "the CPU"
    source = torch.ones(1 << (12 if tiny else 30), dtype=torch.uint8, device=device.kind)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / timer.both(lambda: target.copy_(source))["cold"]
    known = next((peak for part, peak in PEAKS.items() if part in name), None)
    return {"name": name, "copy": copied, "peak": known or {"bytes": copied}, "is_listed": known is not None}


def main() -> None:
    """Measure, and print after each kernel what there is, so that an early end leaves the rest."""
    kind, folder, tiny = sys.argv[1], sys.argv[2], sys.argv[3] == "tiny"
    sys.path.insert(0, folder)
    package = importlib.import_module("kw_kernels")
    device = device_of(kind)
    timer = Timer(device, 2 if tiny else 15)
    names = set(package.manifest()["kernels"])
    print(json.dumps({"device": peaks(device, timer, tiny)}), flush=True)
    print(json.dumps({"launches": launches(device, package, 5 if tiny else 100)}), flush=True)
    for workload in Maker(kind, tiny).all(names):
        try:
            found = measured(package.backends.tvm_ffi, workload, timer)
        except (RuntimeError, ValueError, TypeError) as error:
            found = {"kernel": workload.kernel, "sizes": workload.sizes, "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps({"workload": found}), flush=True)
    missing = sorted(names - {name for name in names if hasattr(Maker, name)})
    print(json.dumps({"without a workload": missing}), flush=True)


if __name__ == "__main__":
    main()
