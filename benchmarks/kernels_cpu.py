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

THREADS = {"one thread": "1", "all threads": "0"}
"""What is shown -> the argument of the program that measures. With one thread a busy machine disturbs all alike; with
several, those that wait for each other at barriers suffer most from a core that others use."""

NOTE = "medians of interleaved samples of 4 ms; details have all samples and the fastest"


def measure(bench: Bench) -> Result:
    """Build the library for the CPU only, and time all kernels in one process."""
    if importlib.util.find_spec("torch") is None:
        raise Skip("PyTorch is not installed: pip install --group frameworks")
    project = _built(bench)
    found = {threads: _measured(bench, project, threads) for threads in THREADS}
    rows = [_row(one, threads) for threads, listed in found.items() for one in listed]
    details = [_details(one, threads) for threads, listed in found.items() for one in listed]
    return Result(rows, {"archs": ARCHS, "workloads": details})


def _measured(bench: Bench, project: Project, threads: str) -> list[dict[str, Any]]:
    """The samples of all workloads.

    Raises:
        BenchmarkError: a result of ours is not PyTorch's.
    """
    bench.say(f"measuring, {threads}")
    arguments = (str(bench.rounds_or(ROUNDS)), "tiny" if bench.small else "full", THREADS[threads])
    done = bench.child("kernels_cpu", project.folder / "build", *arguments)
    found = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    for one in found:
        if not one["is_right"]:
            raise BenchmarkError(f"results of {one['kernel']} {one['sizes']} are off by {one['error']:.3g}")
    return found


def _built(bench: Bench) -> Project:
    project = library(bench)
    bench.say("building the library for the CPU")
    project.scons(f"-j{bench.jobs}", "--cache-disable", "TARGETS=llvm", f"ARCHS={','.join(ARCHS)}")
    return project


def _row(found: dict[str, Any], threads: str) -> Row:
    """Microseconds; the first peer is the one that the target names: NumPy for a matrix product, else torch.compile."""
    times = {name: 1e6 * median(samples) for name, samples in found["seconds"].items()}
    ours = times.pop("ours")
    return Row(f"{found['kernel']} {found['sizes']}, {threads}", "us", ours, times, _target(found), NOTE)


def _target(found: dict[str, Any]) -> Target | None:
    if found["kernel"] in ROW_WISE:
        return Target(1.0, "ratio")
    if "NumPy" in found["seconds"] and int(found["sizes"].split("x")[0]) >= ENOUGH_ROWS:
        return Target(GEMM_LIMIT, "ratio")
    return None


def _details(found: dict[str, Any], threads: str) -> dict[str, Any]:
    """What a row leaves out: each sample in microseconds, the fastest, and how far apart the middle half is."""
    samples = {name: sorted(1e6 * s for s in seconds) for name, seconds in found["seconds"].items()}
    quarter = {name: len(one) // 4 for name, one in samples.items()}
    return {
        "what": f"{found['kernel']} {found['sizes']}, {threads}",
        "error": found["error"],
        "fastest_us": {name: one[0] for name, one in samples.items()},
        "spread": {name: (one[-1 - quarter[name]] - one[quarter[name]]) / median(one) for name, one in samples.items()},
        "us": {name: [round(value, 2) for value in one] for name, one in samples.items()},
    }
