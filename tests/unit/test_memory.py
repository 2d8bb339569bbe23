"""Memory: which runs may go on together, what is known about them, and how much there is."""

from __future__ import annotations

import json
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kernelwright.core.quantity import parse_size
from kernelwright.core.sealed import form_of
from kernelwright.processes import memory
from kernelwright.processes.memory import Measurement, Measurements, MemoryGovernor, default_budget_kib
from support.moments import HANGS_AFTER_S, wait_for
from support.sealed_lines import line_with

MIB = 1 << 10


@pytest.fixture
def measurements(tmp_path: Path) -> Measurements:
    return Measurements(tmp_path / "state/measurements.json")


@dataclass(eq=False)
class Job:
    """A thread that reserves memory, and holds it until it is told to let go."""

    subject: str
    thread: threading.Thread = field(init=False)
    began: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """Jobs of one governor, and which of them have begun."""

    def __init__(self, measurements: Measurements, budget_kib: int, **peaks: int) -> None:
        for subject, peak in peaks.items():
            measurements.learn("nvcc", subject, Measurement(peak, 1.0, 1.0))
        self.governor = MemoryGovernor(budget_kib, measurements)
        self._jobs: list[Job] = []

    def start(self, subject: str) -> Job:
        """One more, which runs or is in line."""
        job = Job(subject)
        job.thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        job.thread.start()
        self._jobs.append(job)
        assert len(self.running) + len(self.waiting) == len(self._jobs)
        return job

    def _run(self, job: Job) -> None:
        with self.governor.reserve("nvcc", job.subject):
            job.began.set()
            job.may_end.wait()

    def end(self, job: Job) -> None:
        self._jobs.remove(job)
        job.may_end.set()
        job.thread.join(HANGS_AFTER_S)
        assert job.began.is_set() and not job.thread.is_alive()

    @property
    def running(self) -> list[Job]:
        """Those that have begun, when each of the others has looked whether it may, and sleeps."""
        wait_for(self._is_settled, "a job neither begins nor waits")
        return [job for job in self._jobs if job.began.is_set()]

    @property
    def waiting(self) -> list[Job]:
        running = self.running
        return [job for job in self._jobs if job not in running]

    def _is_settled(self) -> bool:
        change = self.governor._change
        with change:  # a thread that was told of a change is no longer among the condition's waiters
            return sum(job.began.is_set() for job in self._jobs) + len(change._waiters) == len(self._jobs)


def test_what_runs_together_never_needs_more_than_the_budget(measurements: Measurements) -> None:
    peaks = {f"s{n}": 10 * n for n in range(1, 10)}
    jobs = Jobs(measurements, 100, **peaks)
    chance = random.Random(1)
    together = set()
    for _ in range(100):
        while len(jobs.waiting) < 3:
            jobs.start(chance.choice(list(peaks)))
        used = sum(peaks[job.subject] for job in jobs.running)
        assert used <= 100 < used + peaks[jobs.waiting[0].subject], "the first in line does not fit"
        together.add(len(jobs.running))
        jobs.end(chance.choice(jobs.running))
    assert max(together) > 2
    while jobs.running:
        jobs.end(jobs.running[0])


def test_a_run_larger_than_the_budget_runs_alone_and_no_small_one_overtakes_a_large_one(measurements):
    jobs = Jobs(measurements, 100, huge=500, small=1)
    huge, small = jobs.start("huge"), jobs.start("small")
    assert jobs.running == [huge]
    jobs.end(huge)
    assert jobs.running == [small]
    second = jobs.start("huge")
    assert jobs.running == [small]
    jobs.end(small)
    assert jobs.running == [second]
    jobs.end(second)
    jobs = Jobs(measurements, 100, large=90, small=20)
    first, large, second = jobs.start("small"), jobs.start("large"), jobs.start("small")
    assert jobs.running == [first], "the second small one would fit, but the large one was first"
    jobs.end(first)
    assert jobs.running == [large]
    jobs.end(large)
    assert jobs.running == [second]
    jobs.end(second)


def test_a_run_that_fails_gives_its_memory_back(measurements: Measurements) -> None:
    governor = Jobs(measurements, 100, large=90).governor
    for _ in range(3):
        with pytest.raises(KeyError), governor.reserve("nvcc", "large"):
            governor.learn("nvcc", "large", 95, 1.0, 1.0)
            raise KeyError
    assert (governor._running, governor._used_kib) == (0, 0), "whatever was learnt meanwhile"


def test_a_run_that_waits_begins_when_runs_of_its_kind_turn_out_to_need_less(measurements: Measurements) -> None:
    jobs = Jobs(measurements, memory.MEMORY_KIB["nvcc"] + 10 * MIB)
    first, second = jobs.start("new 0"), jobs.start("new 1")
    assert jobs.running == [first]
    jobs.governor.learn("nvcc", "new 2", 10 * MIB, 0.1, 0.1)
    assert jobs.running == [first, second]
    jobs.end(first)
    jobs.end(second)


def test_an_estimate_is_the_override_the_last_peak_the_largest_of_the_kind_or_a_default(measurements):
    governor = MemoryGovernor(1, measurements)
    assert governor.estimate_kib("nvcc", "a") == 512 * MIB
    assert governor.estimate_kib("link", "a") == 256 * MIB
    governor.learn("nvcc", "a", 90 * MIB, 1.0, 1.0)
    governor.learn("nvcc", "b", 700 * MIB, 1.0, 1.0)
    assert governor.estimate_kib("nvcc", "a") == 90 * MIB
    assert governor.estimate_kib("nvcc", "c") == 700 * MIB
    assert governor.estimate_kib("link", "c") == 256 * MIB
    governor.learn("nvcc", "b", 600 * MIB, 1.0, 1.0)
    assert governor.estimate_kib("nvcc", "b") == 600 * MIB, "the last one counts"
    assert governor.estimate_kib("another", "a") == max(memory.MEMORY_KIB.values()) == 512 * MIB
    fixed = MemoryGovernor(1, measurements, {"nvcc": 2048 * MIB})
    assert fixed.estimate_kib("nvcc", "a") == 2048 * MIB
    assert fixed.estimate_kib("link", "a") == 256 * MIB


def test_the_file_is_written_only_if_something_was_measured(measurements: Measurements, tmp_path: Path) -> None:
    path = tmp_path / "state/measurements.json"
    measurements.save()
    assert not path.exists()
    measurements.learn("nvcc", "a", Measurement(1, 1.0, 1.0))
    measurements.save()
    before = path.stat()
    for again in (measurements, Measurements(path)):
        again.save()
    assert path.stat().st_ino == before.st_ino, "an atomic write makes a new file"


RUN = {"peak_kib": 1, "seconds": 0.5, "cpu_seconds": 0.5}
GOOD = {"runs": {"nvcc": {"a": RUN}}}
FORM = form_of(memory._Kept)


def with_run(**change: object) -> bytes:
    """A file with the good run and another one."""
    return line_with(FORM, {"runs": {"nvcc": {"a": RUN, "b": RUN | change}}})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        json.dumps(GOOD).encode(),
        line_with("measurements 1", GOOD),
        line_with(FORM, {"runs": {"nvcc": {"a": RUN, "b": {"peak_kib": 1, "seconds": 0.5}}}}),
        with_run(peak_kib=-1),
        with_run(peak_kib=True),
        with_run(seconds=float("nan")),
        with_run(peak_kib=1 << 50),
        line_with(FORM, GOOD).replace(b"0.5", b"1.5"),
    ],
)
def test_a_file_of_another_form_is_empty_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "measurements.json"
    path.write_bytes(with_run(peak_kib=(1 << 50) - 1))
    assert Measurements(path).find("nvcc", "a") == Measurement(1, 0.5, 0.5)
    path.write_bytes(content)
    damaged = Measurements(path)
    assert damaged.find("nvcc", "a") is None and damaged.largest_peak_kib("nvcc") is None
    damaged.learn("nvcc", "b", Measurement(2, 1.0, 1.0))
    damaged.save()
    assert Measurements(path).find("nvcc", "b") == Measurement(2, 1.0, 1.0)


def test_the_largest_peak_is_that_of_all_runs_that_are_known_whatever_their_order(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    known = Measurements(path)
    for subject, peak in (("a", 2), ("b", 3), ("c", 1)):
        known.learn("nvcc", subject, Measurement(peak, 1.0, 1.0))
    known.save()
    assert known.largest_peak_kib("nvcc") == Measurements(path).largest_peak_kib("nvcc") == 3


def test_measurements_not_seen_for_longest_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_ENTRIES", 3)
    path = tmp_path / "measurements.json"
    measurements = Measurements(path)
    for subject in ("a", "b", "c", "a", "d"):
        measurements.learn("nvcc", subject, Measurement(1, 1.0, 1.0))
    measurements.save()
    again = Measurements(path)
    assert again.find("nvcc", "b") is None
    assert all(again.find("nvcc", subject) for subject in "acd")
    again.learn("nvcc", "e", Measurement(1, 1.0, 1.0))
    again.save()
    assert [s for s in "acde" if Measurements(path).find("nvcc", s)] == ["a", "d", "e"], "the order is kept in the file"


@pytest.mark.parametrize(
    ("text", "kib"),
    [("16G", 16 << 20), ("512M", 512 << 10), ("1K", 1), ("2T", 2 << 30), ("1.5g", 3 << 19), ("8GiB", 8 << 20)],
)
def test_sizes(text: str, kib: int) -> None:
    assert parse_size(text) == kib


@pytest.mark.parametrize("text", ["12x", "-1G", "0", "0G", "0.1K", "", "G", "16", "1 G", "1e3G", "1G2M", "nanG"])
def test_what_is_no_size_says_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match="such as 16G"):
        parse_size(text)


MEMINFO = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   10000000 kB\n"


def group(path: str, limit: object, used: int = 0, cache: int = 0) -> dict[str, str]:
    """The files of a control group of version 2."""
    files = {"max": limit, "current": used, "stat": f"anon 1\ninactive_file {cache}\nactive_file 7"}
    return {f"sys/fs/cgroup/{path}memory.{name}": f"{text}\n" for name, text in files.items()}


def old_group(path: str, limit: int, used: int, cache: int = 0) -> dict[str, str]:
    """Those of version 1."""
    files = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": f"cache 5\ntotal_inactive_file {cache}"}
    return {f"sys/fs/cgroup/memory/{path}memory.{name}": f"{text}\n" for name, text in files.items()}


OWN, GIB = "user.slice/build.scope/", 1 << 30
PLACE = "0::/user.slice/build.scope"
AROUND = group(OWN, "max", GIB) | group("user.slice/", 3 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("place", "groups", "kib"),
    [
        pytest.param(PLACE, group(OWN, 5 * GIB, GIB, 1 << 28), (4 << 20) + (1 << 18), id="without cache"),
        pytest.param(PLACE, AROUND, 1 << 20, id="the limit of the group around it"),
        pytest.param("0::/../../docker/abc", group("", 2 * GIB), 2 << 20, id="a container sees its group as the top"),
        pytest.param(
            "9:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/",
            old_group("docker/abc/", 4 * GIB, 2 * GIB, GIB) | old_group("", 9223372036854771712, 1),
            3 << 20,
            id="version 1 and both at once",
        ),
        pytest.param("0::/", group("", 1_000_000, 1_000_001), 1, id="a full group lets one run begin after the other"),
        pytest.param("nonsense\n0::/", {"sys/fs/cgroup/memory.max": "x"}, 8_000_000, id="four fifths of the memory"),
    ],
)
def test_the_budget_is_no_more_than_the_control_group_leaves(tmp_path, place, groups, kib):
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": f"{place}\n", **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_budget_kib(tmp_path) == kib
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    assert 0.3 * total < default_budget_kib(tmp_path / "without proc") < 0.5 * total
