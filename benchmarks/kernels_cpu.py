"""The kernels of the library on the CPU, beside NumPy's OpenBLAS and PyTorch, with and without torch.compile."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from .harness import Bench, BenchmarkError, Result, Row, Skip, Target, median
from .projects import Project, library

ROUNDS = 15

ARCHS = ("x86-64-v3", "x86-64-v4")
"""What the library is built for: a call runs the best that the CPU has."""

GEMM_LIMIT = 1.25
"""Of OpenBLAS's time for a matrix product: 0.8 of its speed."""

ENOUGH_ROWS = 64
"""From so many rows on a matrix product has that limit."""

ROW_WISE = ("cumsum", "layer_norm", "quantize_int8", "rms_norm", "row_argmax", "row_sum", "softmax", "swiglu")
"""Kernels that are to be as fast as compiled PyTorch."""

NOTE = "medians of interleaved samples of 4 ms; details have all samples and the fastest"


def measure(bench: Bench) -> Result:
    """Build the library for the CPU only, and time all kernels in one process."""
    if importlib.util.find_spec("torch") is None:
        raise Skip("PyTorch is not installed: pip install -e '.[bench,frameworks]'")
    project = _built(bench)
    bench.say("measuring")
    size = "tiny" if bench.small else "full"
    done = bench.child("kernels_cpu", project.folder / "build", str(bench.rounds_or(ROUNDS)), size)
    found = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    wrong = [one for one in found if not one["is_right"]]
    if wrong:
        raise BenchmarkError(f"results of {wrong[0]['kernel']} {wrong[0]['sizes']} are off by {wrong[0]['error']:.3g}")
    return Result([_row(one) for one in found], {"archs": ARCHS, "workloads": [_details(one) for one in found]})


def _built(bench: Bench) -> Project:
    project = library(bench)
    bench.say("building the library for the CPU")
    project.scons(f"-j{bench.jobs}", "--cache-disable", "TARGETS=llvm", f"ARCHS={','.join(ARCHS)}")
    return project


def _row(found: dict[str, Any]) -> Row:
    """Microseconds; the first peer is the one that the target names: NumPy for a matrix product, else torch.compile."""
    times = {name: 1e6 * median(samples) for name, samples in found["seconds"].items()}
    ours = times.pop("ours")
    return Row(f"{found['kernel']} {found['sizes']}", "us", ours, times, _target(found), NOTE)


def _target(found: dict[str, Any]) -> Target | None:
    if found["kernel"] in ROW_WISE:
        return Target(1.0, "ratio")
    if "NumPy" in found["seconds"] and int(found["sizes"].split("x")[0]) >= ENOUGH_ROWS:
        return Target(GEMM_LIMIT, "ratio")
    return None


def _details(found: dict[str, Any]) -> dict[str, Any]:
    """What a row leaves out: each sample in microseconds, the fastest, and how far apart the middle half is."""
    samples = {name: sorted(1e6 * s for s in seconds) for name, seconds in found["seconds"].items()}
    quarter = {name: len(one) // 4 for name, one in samples.items()}
    return {
        "what": f"{found['kernel']} {found['sizes']}",
        "error": found["error"],
        "fastest_us": {name: one[0] for name, one in samples.items()},
        "spread": {name: (one[-1 - quarter[name]] - one[quarter[name]]) / median(one) for name, one in samples.items()},
        "us": {name: [round(value, 2) for value in one] for name, one in samples.items()},
    }
