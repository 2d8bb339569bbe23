"""A run of scons with what the process used itself, what its children used, and what the timeline says."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import CHILDREN, Finished, run

TOOLS = ("PROBE", "LOWER", "CUBIN", "PTX", "GLIBC", "CC", "LINK")
"""Stages that run a compiler, or TVM in a worker."""


@dataclass(frozen=True)
class Measured:
    """How a run of scons went.

    Arguments:
        done: the process.
        own_cpu_s: seconds of CPU of scons itself.
        children_cpu_s: seconds of CPU of all processes below it.
        own_peak_kib: memory of scons itself in KiB at its peak.
        nodes: SCons nodes that it made, or None where they were not counted.
        events: the steps in ``build/trace.json``, if this run wrote one.
    """

    done: Finished
    own_cpu_s: float
    children_cpu_s: float
    own_peak_kib: int
    nodes: int | None
    events: tuple[dict[str, Any], ...]

    @property
    def tools_cpu_s(self) -> float | None:
        """Seconds of CPU in compilers and lowerings; None if the run's timeline does not have it for each of them."""
        seconds = [event["args"].get("cpu_seconds") for event in self.events if event["cat"] in TOOLS]
        return sum(seconds) if seconds and None not in seconds else None


def run_scons(folder: Path, site_scons: Path, arguments: Sequence[str], count: bool) -> Measured:
    """Run scons in a folder, and say what it used."""
    trace = folder / "build" / "trace.json"
    before = _time_of(trace)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, CHILDREN / "run_scons.py", report, "count" if count else "", "-Q", *arguments]
        done = run(command, folder, {"PYTHONPATH": str(site_scons)})
        said = json.loads(report.read_text())
    events = _events(trace) if _time_of(trace) != before else ()
    return Measured(done, **said, events=events)


def union_s(events: Sequence[dict[str, Any]]) -> float:
    """Seconds in which at least one of some steps ran."""
    total, end = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        last = event["ts"] + event["dur"]
        total += max(0.0, last - max(end, event["ts"]))
        end = max(end, last)
    return total / 1e6


def _time_of(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _events(trace: Path) -> tuple[dict[str, Any], ...]:
    """The complete events of a file in Chrome's Trace Event Format."""
    return tuple(event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X")
