"""The timeline of a run: lanes, the file's format, and what reading refuses."""

from __future__ import annotations

import getpass
import itertools
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.version import VERSION
from kernelwright.state.trace import RunSummary, Span, Trace, assign_lanes, read_trace

SUMMARY = RunSummary(jobs=2, cores=4, built=2, reused=5, cached=1, failed=1, seconds=3.5)


def intervals(seed: int) -> list[tuple[int, int]]:
    """Random intervals in the order of their starts; many touch, some are empty."""
    random_ = random.Random(seed)
    starts = [random_.randrange(60) for _ in range(random_.randrange(1, 80))]
    return sorted((start, start + random_.randrange(12)) for start in starts)


def test_intervals_of_one_lane_do_not_overlap_and_the_lowest_free_lane_is_used():
    for times in map(intervals, range(50)):
        lanes = assign_lanes(times)
        for index, (start, _) in enumerate(times):
            ends: dict[int, int] = {}
            for (_, end), lane in zip(times[:index], lanes[:index], strict=True):
                ends[lane] = end
            assert lanes[index] == min(lane for lane in range(len(times)) if ends.get(lane, -1) <= start)
        for lane in set(lanes):
            own = [interval for interval, other in zip(times, lanes, strict=True) if other == lane]
            assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(own))


def kept(trace: Trace, folder: Path) -> tuple[Span, ...]:
    """The steps of a trace that was written and read again."""
    trace.write(folder / "trace.json", SUMMARY)
    return read_trace(folder / "trace.json").spans


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "build" / "trace.json"
    trace = Trace(start=100.0)
    more = {"cpu_seconds": 1.125, "peak_kib": 2048, "kernel": "gemm", "variant": "a", "arch": "sm_80"}
    trace.span("CUBIN", "gemm/a sm_80", 101.25, 102.5, **more)
    trace.span("LOWER", "gemm/a cuda", 100.5, 101.25, kernel="gemm", variant="a")
    trace.span("PTX", "gemm/a compute_80", 101.0, 101.0, cached=True)
    trace.span("LINK", "gemm", 102.0, 103.5, failed=True)
    trace.write(path, SUMMARY)
    assert [found.name for found in path.parent.iterdir()] == ["trace.json"]
    return path


def test_what_is_written_is_read_again(written: Path):
    run = read_trace(written)
    assert (run.version, run.summary) == (VERSION, SUMMARY)
    found = [(span.label, span.start, span.end, span.lane, span.cached, span.failed) for span in run.spans]
    assert found == [
        ("LOWER", 0.5, 1.25, 0, False, False),
        ("PTX", 1.0, 1.0, 1, True, False),
        ("CUBIN", 1.25, 2.5, 0, False, False),
        ("LINK", 2.0, 3.5, 1, False, True),
    ]
    cubin = run.spans[2]
    assert (cubin.subject, cubin.cpu_seconds, cubin.peak_kib) == ("gemm/a sm_80", 1.125, 2048)
    assert (cubin.kernel, cubin.variant, cubin.arch, cubin.seconds) == ("gemm", "a", "sm_80", 1.25)
    assert (run.spans[3].cpu_seconds, run.spans[3].peak_kib, run.spans[3].kernel) == (None, None, None)


def test_the_file_is_what_chrome_reads_and_tells_nothing_about_who_built_where(written: Path) -> None:
    document = json.loads(written.read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] == "ms"
    first = next(event for event in document["traceEvents"] if event["ph"] == "X")
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("LOWER gemm/a cuda", "LOWER", 500_000, 750_000)
    assert (first["pid"], first["tid"]) == (1, 1)
    assert list(first) == ["name", "cat", "ph", "ts", "dur", "pid", "tid", "args"]
    names = {(event["name"], event["tid"]): event["args"] for event in document["traceEvents"] if event["ph"] == "M"}
    assert names == {
        ("process_name", 1): {"name": "scons"},
        ("thread_name", 1): {"name": "slot 1"},
        ("thread_sort_index", 1): {"sort_index": 1},
        ("thread_name", 2): {"name": "slot 2"},
        ("thread_sort_index", 2): {"sort_index": 2},
    }
    text = written.read_text()
    other = json.loads(text)["otherData"]
    known = {"schema", "kernelwright", "jobs", "cores", "built", "reused", "cached", "failed", "seconds", "caches"}
    assert set(other) == known
    words = {getpass.getuser(), socket.gethostname(), str(Path.home()), str(written.parent)}
    assert not [word for word in words if f'"{word}' in text or f"/{word.lstrip('/')}/" in text]


def test_steps_before_the_start_move_the_origin_and_subjects_and_times_may_be_odd(tmp_path: Path):
    trace, subject = (
        Trace(start=10.0),
        b"kernels/\xff\xe4.py".decode("utf-8", "surrogateescape") + ' ü "quoted" </script>',
    )
    trace.span("DISCOVER", subject, 9.0, 9.5)
    trace.span("LOWER", "a/default cuda", 10.0, 11.0)
    for start, end in ((2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(ValueError, match="LINK gemm runs from"):
            trace.span("LINK", "gemm", start, end)
    found = kept(trace, tmp_path)
    assert [(span.start, span.end) for span in found] == [(0, 0.5), (1, 2)] and found[0].subject == subject


def test_times_that_touch_in_seconds_do_not_overlap_in_microseconds(tmp_path: Path):
    trace = Trace(start=0.0)
    for number in range(50):  # 0.1 + 0.2 != 0.3
        trace.span("LOWER", str(number), number * 0.1, number * 0.1 + 0.1)
    assert {span.lane for span in kept(trace, tmp_path)} == {0}


def change(**places: Any) -> Callable[[dict[str, Any]], object]:
    """Set values of the first step, of its arguments, or of the head; the events before it are metadata."""

    def apply(document: dict[str, Any]) -> None:
        event = document["traceEvents"][5]
        for name, value in places.items():
            inner = event["args"] if name in event["args"] else event if name in event else document["otherData"]
            inner[name] = value

    return apply


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no events": (lambda document: document.pop("traceEvents"), "traceEvents is missing, expected a list"),
    "unknown phase": (change(ph="B"), "expected 'X' or 'M'"),
    "time is a truth": (change(ts=True), "ts is True"),
    "time is negative": (change(ts=-1), "ts is -1"),
    "duration is huge": (change(dur=10**40), "dur is 1000.*, expected an integer"),
    "lane is huge": (change(tid=10**9), "tid is 1000000000, expected one from 1 to the 4 of"),
    "processor time is huge": (lambda d: d["traceEvents"][5]["args"].update(cpu_seconds=10**400), "expected a number"),
    "another schema": (change(schema=2), "it has schema 2, expected 1"),
    "version is a number": (change(kernelwright=1), "otherData.kernelwright is 1"),
}

TEXTS = {
    "cut off": (b'{"traceEvents": [', "is damaged"),
    "not UTF-8": (b'{"traceEvents": "\xff"}', "is damaged"),
    "NaN": (b'{"traceEvents": [], "otherData": {"seconds": NaN}}', "NaN is not a number"),
    "too large": (b'{"traceEvents": [], "otherData": {"schema": 1, "seconds": 1e999}}', "otherData"),
    "nested": (b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", [*DAMAGES, *TEXTS, "a folder", "absent"])
def test_what_is_damaged_is_refused_in_one_line_with_the_file_and_a_remedy(written: Path, name: str):
    text, expected = TEXTS.get(name, (b"", "cannot be read"))
    if name in DAMAGES:
        document = json.loads(written.read_text())
        damage, expected = DAMAGES[name]
        damage(document)
        text = json.dumps(document).encode()
    written.unlink()
    if name == "a folder":
        written.mkdir()
    elif name != "absent":
        written.write_bytes(text)
    with pytest.raises(KernelwrightError, match=expected) as caught:
        read_trace(written)
    assert caught.value.message.startswith(f"{written}: ")
    assert "\n" not in caught.value.message and len(caught.value.message) < 400
    assert "scons" in (caught.value.remedy or "")
