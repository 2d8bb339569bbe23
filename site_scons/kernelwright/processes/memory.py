"""Memory for the compilers that run at once: what a run needs, as earlier builds measured it, and how much there is.

A template-heavy CUDA source takes gigabytes to compile, and a small kernel some megabytes. So the number of jobs alone
does not say whether they fit.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..core.pipeline import MEMORY_KIB
from ..core.quantity import parse_size
from ..core.sealed import read_sealed, write_sealed
from .protocol import Kib, Seconds

MOST_ENTRIES = 20_000
"""Measurements that are kept; those not seen for longest go first."""

SHARE = 0.8
"""How much of the available memory is for compilers."""


@dataclass(frozen=True)
class Measurement:
    """What one run of a tool took.

    Arguments:
        peak_kib: KiB of memory that the largest of its processes had.
        seconds: time that passed.
        cpu_seconds: time that its processes spent on a CPU, in user and system mode.
    """

    peak_kib: Kib
    seconds: Seconds
    cpu_seconds: Seconds


@dataclass(frozen=True)
class _Kept:
    """The measurements in a file, by kind and by subject."""

    runs: dict[str, dict[str, Measurement]] = field(default_factory=dict)


class Measurements:
    """The last measurement of each subject, kept in a file from build to build. Safe to use from several threads.

    Arguments:
        path: a sealed file. One that is missing, damaged or of another form counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._changed = False
        # In the order in which they were measured.
        kept = read_sealed(path, _Kept) or _Kept()
        self._runs = {(kind, subject): run for kind, runs in kept.runs.items() for subject, run in runs.items()}
        self._largest: dict[str, int] = {}
        for (kind, _), run in self._runs.items():
            self._largest[kind] = max(run.peak_kib, self._largest.get(kind, 0))

    def find(self, kind: str, subject: str) -> Measurement | None:
        """The last measurement of a subject, or None."""
        with self._lock:
            return self._runs.get((kind, subject))

    def largest_peak_kib(self, kind: str) -> int | None:
        """The largest peak of a kind of run, or None before the first of that kind."""
        return self._largest.get(kind)

    def learn(self, kind: str, subject: str, run: Measurement) -> None:
        """Note a measurement in place of the subject's last one."""
        with self._lock:
            self._runs.pop((kind, subject), None)
            self._runs[kind, subject] = run
            self._largest[kind] = max(run.peak_kib, self._largest.get(kind, 0))
            self._changed = True

    def save(self) -> None:
        """Write the file, if there is something new."""
        with self._lock:
            if not self._changed:
                return
            kept = _Kept()
            for (kind, subject), run in list(self._runs.items())[-MOST_ENTRIES:]:
                kept.runs.setdefault(kind, {})[subject] = run
            write_sealed(self._path, kept)
            self._changed = False


class MemoryGovernor:
    """Lets a run of a tool begin when its memory fits beside what the others need.

    Runs begin in the order in which they asked, so that small ones do not keep a large one waiting for ever. A run that
    does not fit into the whole budget runs alone. Safe to use from several threads.

    Arguments:
        budget_kib: KiB for all runs together.
        measurements: what runs needed in earlier builds; what this build measures is added.
        override_kib: KiB that a run is taken to need, for some kinds of run, whatever was measured.
    """

    def __init__(
        self, budget_kib: int, measurements: Measurements, override_kib: Mapping[str, int] | None = None
    ) -> None:
        self.budget_kib = budget_kib
        self._measurements = measurements
        self._override_kib = dict(override_kib or {})
        self._change = threading.Condition()
        self._waiting: deque[object] = deque()
        self._running = 0
        self._used_kib = 0

    def estimate_kib(self, kind: str, subject: str) -> int:
        """KiB that a run is taken to need: the override, what it needed last time, or the most of its kind so far."""
        if kind in self._override_kib:
            return self._override_kib[kind]
        last = self._measurements.find(kind, subject)
        if last is not None:
            return last.peak_kib
        return self._measurements.largest_peak_kib(kind) or MEMORY_KIB.get(kind, max(MEMORY_KIB.values()))

    @contextmanager
    def reserve(self, kind: str, subject: str) -> Iterator[int]:
        """Wait until a run may begin, and count its memory as used for the time of the ``with`` block.

        Arguments:
            kind: one of :data:`MEMORY_KIB`.
            subject: what is compiled; the same in every build.

        Returns:
            KiB that are reserved.
        """
        needed = self._enter(kind, subject)
        try:
            yield needed
        finally:
            with self._change:
                self._running -= 1
                self._used_kib -= needed
                self._change.notify_all()

    def learn(self, kind: str, subject: str, peak_kib: int, seconds: float, cpu_seconds: float) -> None:
        """Note what a run took, for the runs after it and for the next build."""
        self._measurements.learn(kind, subject, Measurement(peak_kib, seconds, cpu_seconds))
        with self._change:
            self._change.notify_all()

    def save(self) -> None:
        """Write what was measured, for the next build."""
        self._measurements.save()

    def _enter(self, kind: str, subject: str) -> int:
        ticket = object()
        with self._change:
            self._waiting.append(ticket)
            try:
                # The estimate is made anew each time: what was learnt in between may be better than a default.
                while self._waiting[0] is not ticket or not self._fits(needed := self.estimate_kib(kind, subject)):
                    self._change.wait()
                self._running += 1
                self._used_kib += needed
            finally:
                self._waiting.remove(ticket)
                self._change.notify_all()
        return needed

    def _fits(self, needed_kib: int) -> bool:
        return self._running == 0 or self._used_kib + needed_kib <= self.budget_kib


def governor_of(memory_limit: str, nvcc_memory: str, measurements: Path) -> MemoryGovernor:
    """The governor of the compilers, as the settings want it.

    Arguments:
        memory_limit: for all compilers together, such as ``8G``; empty: see :func:`default_budget_kib`.
        nvcc_memory: what each run of nvcc and NVRTC is taken to need; empty: what earlier runs needed.
        measurements: the file of :class:`Measurements`.
    """
    budget = parse_size(memory_limit) if memory_limit else default_budget_kib()
    fixed = dict.fromkeys(("nvcc", "nvrtc"), parse_size(nvcc_memory)) if nvcc_memory else {}
    return MemoryGovernor(budget, Measurements(measurements), fixed)


def default_budget_kib(root: Path = Path("/")) -> int:
    """KiB that compilers may use: 80 % of the memory that is available, and no more than the control group has left.

    Arguments:
        root: the folder that has ``proc`` and ``sys``.
    """
    available = int(SHARE * _available_kib(root / "proc/meminfo"))
    return max(1, min([available, *_group_left_kib(root)]))


def _available_kib(meminfo: Path) -> int:
    """The kernel's estimate of what programs can get without swapping; without it, half of the machine's memory."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.M)
    except OSError:
        match = None
    if match:
        return int(match[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024 // 2


def _group_left_kib(root: Path) -> Iterator[int]:
    """KiB that each control group that this process is in leaves, for version 2 and for version 1 (memory).

    The formats are those of Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst in Linux.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            tops, names = [mounts, mounts / "unified"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            tops, names = [mounts / "memory"], v1
        else:
            continue
        for top in tops:
            yield from _left_kib(top, path, names)


def _left_kib(top: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """KiB that a group, and each one around it, leaves. In a container, the path may not exist below ``top``."""
    limit_name, usage_name, cache_name = names
    group = top / path.strip("/")
    for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
        limit, usage = _text(folder / limit_name).strip(), _text(folder / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            # Files that were read and are not in use count as usage, but make room when it is needed.
            cache = re.search(rf"^{cache_name} (\d+)$", _text(folder / "memory.stat"), re.M)
            yield max(0, int(limit) - int(usage) + (int(cache[1]) if cache else 0)) // 1024


def _text(path: Path) -> str:
    """Content of a small file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
