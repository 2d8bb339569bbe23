"""Every kernel on a GPU, beside PyTorch's operators and cuBLAS, and what a launch costs through each backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .harness import CHILDREN, ROOT, Bench, Result, Row, Skip, environment

LIMIT_S = 240
"""Seconds after which the measurement ends with what it has."""

COLD = "by events on the device, after other data has filled its caches"


def measure(bench: Bench) -> Result:
    """Measure in a process of its own, and make rows of what it printed, also if it did not come to its end."""
    device = os.environ.get("KERNELWRIGHT_TEST_DEVICE", "cuda")
    packages = Path(os.environ.get("KERNELWRIGHT_TEST_PACKAGES", ROOT / "build")).resolve()
    if device == "cuda" and not Path("/dev/nvidiactl").exists():
        raise Skip("no NVIDIA GPU here")
    if not (packages / "kw_kernels").is_dir():
        raise Skip(f"no package kw_kernels in {packages}: run scons, or set KERNELWRIGHT_TEST_PACKAGES")
    found, problems = _read(*_run(bench, device, packages))
    rows = [row for workload in found["workloads"] for row in _rows_of(workload, found["device"])]
    return Result([*_launch_rows(found["launches"]), *rows], {**found, "problems": problems}, problems)


def _run(bench: Bench, device: str, packages: Path) -> tuple[str, str]:
    """What the child printed, and how it ended if that was not well."""
    paths = [str(bench.site_scons), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    command = [sys.executable, str(CHILDREN / "gpu.py"), device, str(packages), "tiny" if bench.small else "full"]
    variables = environment({"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    with (bench.work / "gpu.log").open("w+") as output, (bench.work / "gpu.err").open("w+") as errors:
        process = subprocess.Popen(command, cwd=bench.work, env=variables, stdout=output, stderr=errors)
        try:
            process.wait(LIMIT_S)
            ended = "" if not process.returncode else f"it ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"it was still running after {LIMIT_S} s"
        errors.seek(0)
        output.seek(0)
        return output.read(), f"{ended}: {errors.read()[-2000:]}" if ended else ""


def _read(output: str, ended: str) -> tuple[dict[str, Any], list[str]]:
    """What was found, and what went wrong."""
    found: dict[str, Any] = {"device": {}, "launches": {}, "workloads": []}
    problems = [ended] if ended else []
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        for key, value in json.loads(line).items():
            if key != "workload":
                found[key] = value
            elif "failed" in value:
                problems.append(f"{value['kernel']} {value['sizes']}: {value['failed']}")
            else:
                found["workloads"].append(value)
                if value.get("is_right") is False:
                    problems.append(f"{value['kernel']} {value['sizes']}: the result is off by {value['error']:.3g}")
    problems += [f"{name}: has no workload" for name in found.get("without a workload", ())]
    return found, problems


def _rows_of(workload: dict[str, Any], device: dict[str, Any]) -> list[Row]:
    """The time of a workload, and how near it is to what the device can do."""
    what = f"{workload['kernel']} {workload['sizes']}"
    ours, peers = workload["ours"], workload["peers"]
    cold = {name: 1e6 * times["cold"] for name, times in peers.items()}
    warm = {name: 1e6 * times["warm"] for name, times in peers.items()}
    rows = [Row(what, "us", 1e6 * ours["cold"], cold, note=COLD)]
    rows.append(Row(f"{what}, again and again", "us", 1e6 * ours["warm"], warm))
    peak = device["peak"]
    speed = peak.get(workload["config"].get("dtype", ""))
    if workload["operations"] and speed:
        amount, limit, of = workload["operations"], speed, "operations"
    else:
        amount, limit, of = workload["bytes"], peak["bytes"], "bandwidth"
    parts = {name: 100 * amount / times["cold"] / limit for name, times in peers.items()}
    note = f"of {limit:.3g} a second" + ("" if device["is_listed"] else ", which a copy reaches here")
    rows.append(Row(f"{what}, {of} of the device's peak", "%", 100 * amount / ours["cold"] / limit, parts, note=note))
    return rows


def _launch_rows(times: dict[str, float]) -> list[Row]:
    if not times:
        return []
    peers = {name: 1e9 * times[name] for name in ("tvm-ffi alone", "torch.add(out=)")}
    jax = {"jitted JAX": 1e9 * times.get("jitted JAX without a kernel", 0)}
    return [
        Row(f"a launch of three arrays, {name}", "ns", 1e9 * value, jax if name.startswith("jax") else peers)
        for name, value in times.items()
        if name not in ("tvm-ffi alone", "torch.add(out=)", "jitted JAX without a kernel")
    ]
