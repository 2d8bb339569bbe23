"""The timeline of a run: ``build/trace.json`` in the format of chrome://tracing and of Perfetto.

The format is the "JSON Object Format" of "Trace Event Format" (Duca and Sinclair, 2016,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events (``X``) and metadata
events (``M``), times in microseconds. It names no person, no machine and no absolute path, so that it can be passed on.
"""

from __future__ import annotations

import heapq
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from ..core.converter import Amount, Count, that, to_json
from ..core.files import write_atomically
from ..core.records import Record, read_json
from ..core.version import VERSION
from .counts import Counts

SCHEMA = 1
"""Revision of what ``otherData`` and the events' ``args`` hold."""

PROCESS = 1
"""The one process of a trace; its real number would differ from run to run and tell nothing."""

REMEDY = "remove it; the next run of scons that builds something writes it again"
CACHES = ("local", "remote")
"""What caches a summary may have."""


@dataclass(frozen=True)
class Span:
    """One step of a run.

    Arguments:
        label: the stage, such as ``CUBIN``.
        subject: what it worked on, such as ``gemm/block_m-64 sm_90a``.
        start, end: seconds since the start of the run.
        lane: the slot of ``-j`` that it ran in, from 0; spans of one lane do not overlap.
        cached: its outputs came out of the build cache.
        failed: it ended with an error.
        cpu_seconds: processor time of all processes of the step, or None where it was not measured.
        peak_kib: memory of its largest process at its peak, in KiB, or None.
        kernel, variant, arch: what it belongs to; None: it does not belong to a single one.
    """

    label: str
    subject: str
    start: float
    end: float
    lane: int = 0
    cached: bool = False
    failed: bool = False
    cpu_seconds: float | None = None
    peak_kib: int | None = None
    kernel: str | None = None
    variant: str | None = None
    arch: str | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class RunSummary:
    """What a run did, in numbers.

    Arguments:
        jobs: how many steps could run at once (``-j``).
        cores: processor cores that the run could use.
        built: steps that ran and ended well.
        reused: steps that were up to date.
        cached: steps whose outputs came out of the build cache.
        failed: steps that ended with an error.
        seconds: duration of the whole run.
        caches: what the build cache, ``local``, and the one behind it on a network, ``remote``, have done.
    """

    jobs: Count
    cores: Count
    built: Count
    reused: Count
    cached: Count
    failed: Count
    seconds: Amount
    caches: Mapping[Annotated[str, that("a cache", CACHES.__contains__)], Counts] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedRun:
    """The content of a trace.json; the spans are in the order of their start."""

    version: str
    summary: RunSummary
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class _Args:
    """Further fields of the event of a span; those that are not known are left out."""

    subject: str
    cached: bool
    failed: bool
    cpu_seconds: Amount | None = None
    peak_kib: Count | None = None
    kernel: str | None = None
    variant: str | None = None
    arch: str | None = None


@dataclass(frozen=True)
class _Event:
    """The event of a span, with the names that the format has. Times are in microseconds."""

    name: str
    cat: str
    ph: Annotated[str, that("'X' or 'M'", lambda phase: phase == "X")]
    ts: Count
    dur: Count
    pid: int
    tid: Count
    args: _Args


class Trace:
    """Collects the spans of one run. Called from several threads.

    Arguments:
        start: when the run began, by ``time.monotonic()``; None: now.
    """

    def __init__(self, start: float | None = None) -> None:
        self._start = time.monotonic() if start is None else start
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def span(self, label: str, subject: str, start: float, end: float, **about: Any) -> None:
        """Add a step that has ended; ``start`` and ``end`` are by ``time.monotonic()``, the rest as in :class:`Span`.

        Raises:
            ValueError: the step ends before it starts, or a time is not finite.
        """
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ValueError(f"{label} {subject} runs from {start} to {end}")
        span = Span(label, subject, start, end, **about)
        with self._lock:
            self._spans.append(span)

    def write(self, path: Path, summary: RunSummary) -> None:
        """Write all spans that were added so far."""
        with self._lock:
            spans = list(self._spans)
        # What began before the run, such as reading the build file, moves the origin: a time is never negative.
        origin = min([self._start, *(span.start for span in spans)])
        spans = [replace(span, start=span.start - origin, end=span.end - origin) for span in spans]
        write_atomically(path, trace_text(spans, summary))


def trace_text(spans: Sequence[Span], summary: RunSummary) -> str:
    """The text of a trace.json, one event per line; spans get their lanes here."""
    ordered = sorted(spans, key=lambda span: (_microseconds(span.start), _microseconds(span.end)))
    times = [(_microseconds(span.start), _microseconds(span.end)) for span in ordered]
    lanes = assign_lanes(times)
    events = [*_names(max(lanes, default=-1) + 1), *map(_event, ordered, times, lanes)]
    # ASCII only: a subject may hold bytes of a file name that are not UTF-8.
    lines = ",\n".join(json.dumps(event) for event in events)
    other = {"schema": SCHEMA, "kernelwright": VERSION, **asdict(summary)}
    return f'{{"traceEvents": [\n{lines}\n],\n"displayTimeUnit": "ms",\n"otherData": {json.dumps(other)}}}\n'


def assign_lanes(times: Sequence[tuple[int, int]]) -> list[int]:
    """Give each interval the lowest lane that is free when it starts; no other choice needs fewer lanes.

    Arguments:
        times: start and end of each interval, in the order of their starts. An end is not part of the interval.
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    for start, end in times:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def read_trace(path: Path) -> RecordedRun:
    """Read a trace.json that :meth:`Trace.write` wrote.

    Raises:
        KernelwrightError: it is missing, damaged, or of another schema; the message names it and the remedy.
    """
    return read_json(path, _recorded_run, REMEDY)


def _microseconds(seconds: float) -> int:
    """Whole microseconds: two times that are equal in seconds are equal in the file, so rounding makes no overlap."""
    return round(seconds * 1e6)


def _names(lanes: int) -> Iterator[dict[str, Any]]:
    """Metadata events: names of the process and of its lanes, and the order of the lanes."""
    yield _metadata("process_name", 1, {"name": "scons"})
    for thread in range(1, lanes + 1):
        yield _metadata("thread_name", thread, {"name": f"slot {thread}"})
        yield _metadata("thread_sort_index", thread, {"sort_index": thread})


def _metadata(name: str, thread: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": PROCESS, "tid": thread, "args": args}


def _event(span: Span, times: tuple[int, int], lane: int) -> Any:
    name, duration = f"{span.label} {span.subject}", times[1] - times[0]
    args = _Args(**{each.name: getattr(span, each.name) for each in fields(_Args)})
    # From 1 on: Perfetto takes thread 0 for the idle thread of Linux.
    event = _Event(name, cat=span.label, ph="X", ts=times[0], dur=duration, pid=PROCESS, tid=lane + 1, args=args)
    return to_json(event)


def _recorded_run(document: Record) -> RecordedRun:
    other = document.record("otherData")
    if other.count("schema") != SCHEMA:
        raise ValueError(f"it has schema {other.count('schema')}, expected {SCHEMA}")
    summary = other.all_but(RunSummary, "schema", "kernelwright")
    events = [event.all_but(_Event) for event in document.records("traceEvents") if event.text("ph") != "M"]
    if lanes := [event.tid for event in events if not 1 <= event.tid <= len(events)]:
        # So many spans never need more lanes.
        raise ValueError(f"tid is {lanes[0]}, expected one from 1 to the {len(events)} of the spans")
    spans = map(_span, events)
    return RecordedRun(other.text("kernelwright"), summary, tuple(sorted(spans, key=lambda span: span.start)))


def _span(event: _Event) -> Span:
    start, end, lane = event.ts / 1e6, (event.ts + event.dur) / 1e6, event.tid - 1
    return Span(event.cat, start=start, end=end, lane=lane, **vars(event.args))
