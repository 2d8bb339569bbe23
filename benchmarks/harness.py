"""What all benchmarks share: running processes and what they used, interleaved rounds, results with their targets."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

ROOT = Path(__file__).resolve().parent.parent
CHILDREN = Path(__file__).resolve().parent / "children"
"""Programs that benchmarks run in processes of their own."""

DROPPED = ("KERNELWRIGHT_", "PYTHON", "TILELANG_", "SCONSFLAGS", "NINJA_STATUS")
"""Beginnings of the names of environment variables that no measured process sees."""

Value = TypeVar("Value")

Times = Mapping[str, tuple[tuple[str, ...], str, str]]
"""What was timed -> our actions, which count together, the peer's, and a note."""


class BenchmarkError(Exception):
    """A benchmark could not be run; the message has the command and its output."""


class Skip(Exception):
    """A benchmark, or a peer of one, is left out; the message is the reason."""


@dataclass(frozen=True)
class Finished:
    """How a process ended.

    Arguments:
        wall_s: seconds from its start to its end.
        cpu_s: seconds of CPU that it and all descendants that were waited for have used.
        output: what it printed on both streams.
    """

    wall_s: float
    cpu_s: float
    output: str


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None) -> Finished:
    """Run a process to its end and say what it used, by wait4(2).

    Raises:
        BenchmarkError: it ended with another status than 0.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=folder, env=environment(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if process.returncode != 0:
        raise BenchmarkError(f"{' '.join(words)}\nended with status {process.returncode} in {folder}\n{text[-4000:]}")
    return Finished(wall_s, usage.ru_utime + usage.ru_stime, text)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of measured processes: ours without what would change what they do, and with ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    return kept | dict(more or {})


_UNITS: dict[str, Callable[[Finished], float]] = {"wall": lambda done: done.wall_s, "CPU": lambda done: done.cpu_s}
"""The two times of a process."""


def interleave(rounds: int, actions: Mapping[str, Callable[[], Value]], warm_up: int = 0) -> dict[str, list[Value]]:
    """Do all actions in turn, round after round, so that a slow minute of the machine hits all of them.

    Arguments:
        rounds: how often each one is done.
        actions: by name.
        warm_up: further rounds before these, whose values are dropped.
    """
    values: dict[str, list[Value]] = {name: [] for name in actions}
    for number in range(-warm_up, rounds):
        for name, action in actions.items():
            value = action()
            if number >= 0:
                values[name].append(value)
    return values


def median(values: Iterable[float]) -> float:
    """The median."""
    return float(statistics.median(values))


def median_wall(runs: Iterable[Finished]) -> float:
    """The median of the wall-clock times."""
    return median(done.wall_s for done in runs)


def walls(runs: Mapping[str, Sequence[Finished]]) -> dict[str, list[float]]:
    """All wall-clock times, for the details of a result."""
    return {name: [round(done.wall_s, 4) for done in listed] for name, listed in runs.items()}


def phases(runs: Iterable[Finished]) -> dict[str, float]:
    """Medians of what programs have printed, as a JSON object in the last line."""
    said: list[dict[str, float]] = [json.loads(done.output.splitlines()[-1]) for done in runs]
    return {name: median(one[name] for one in said) for name in said[0]}


def timed_rows(runs: Mapping[str, Sequence[Finished]], times: Times, peer: str) -> list[Row]:
    """A row for the wall-clock time and one for the CPU time of everything that was timed."""
    return [
        Row(
            f"{what}: {unit} time", "s", _seconds(runs, ours, unit), {peer: _seconds(runs, (theirs,), unit)}, None, note
        )
        for what, (ours, theirs, note) in times.items()
        for unit in _UNITS
    ]


def samples(runs: Mapping[str, Sequence[Finished]]) -> dict[str, dict[str, list[float]]]:
    """All times, for the details of a result whose rows are of :func:`timed_rows`."""
    return {
        unit: {name: [round(second(done), 4) for done in listed] for name, listed in runs.items()}
        for unit, second in _UNITS.items()
    }


def _seconds(runs: Mapping[str, Sequence[Finished]], names: Iterable[str], unit: str) -> float:
    """The median of what some actions took together."""
    rounds = zip(*(runs[name] for name in names), strict=True)
    return median(sum(map(_UNITS[unit], one)) for one in rounds)


def edits(
    source: Path, old: str, new: str, actions: Mapping[str, Callable[[], Value]]
) -> dict[str, Callable[[], Value]]:
    """Actions that first edit a file; each edit has another number, so that nothing was ever built before.

    Arguments:
        source: the file.
        old: what is replaced in it.
        new: with what; ``{}`` in it becomes the number.
        actions: by name.

    Raises:
        BenchmarkError: ``old`` is not in the file.
    """
    numbers, text = count(1), source.read_text()
    if old not in text:
        raise BenchmarkError(f"{source.name} has no {old}")

    def edited(act: Callable[[], Value]) -> Callable[[], Value]:
        def action() -> Value:
            source.write_text(text.replace(old, new.format(next(numbers))))
            return act()

        return action

    return {name: edited(act) for name, act in actions.items()}


def kib(tops: Iterable[Path]) -> float:
    """Size of all files below some folders, not counting what the file system adds."""
    files = (file for top in tops for file in ([top] if top.is_file() else top.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1024


@dataclass(frozen=True)
class Target:
    """What a row is to reach.

    Arguments:
        bound: the largest, or the smallest, value.
        of: what is compared with it: our own value, or its ratio to the first peer's.
        at_least: the bound is the smallest value.
    """

    bound: float
    of: Literal["ours", "ratio"] = "ours"
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a value reaches it."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Arguments:
        what: what was measured.
        unit: of all values; may be empty.
        ours: our value.
        peers: the peers' values by name; the ratio is to the first.
        target: what is to be reached, or None where the number is for information.
        note: what one has to know to read it.
    """

    what: str
    unit: str
    ours: float
    peers: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours to the first peer's, if there is one."""
        first = next(iter(self.peers.values()), 0.0)
        return self.ours / first if first else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target, or without the peer that it needs."""
        value = self.ours if self.target and self.target.of == "ours" else self.ratio
        return None if self.target is None or value is None else self.target.met_by(value)


@dataclass(frozen=True)
class Result:
    """What a benchmark found.

    Arguments:
        rows: lines of the table.
        details: all samples, and what else explains the rows. JSON data.
        skipped: what was left out, and why.
    """

    rows: list[Row]
    details: dict[str, Any]
    skipped: list[str] = field(default_factory=list)

    def without_targets(self) -> Result:
        """The same with all numbers for information only."""
        return replace(self, rows=[replace(row, target=None) for row in self.rows])


@dataclass(frozen=True)
class Bench:
    """What a benchmark is told.

    Arguments:
        work: the folder for projects, kept until all benchmarks have run.
        site_scons: a copy of the measured code, so that an edit in between changes nothing.
        small: only see whether everything runs.
        rounds: how many, instead of the benchmark's own number.
        jobs: the N of ``-jN`` for us and for the peers.
        tilelang_python: an interpreter with TileLang; without it the benchmark installs one.
    """

    work: Path
    site_scons: Path
    small: bool
    rounds: int | None = None
    jobs: int = 2
    tilelang_python: Path | None = None

    def rounds_or(self, usual: int) -> int:
        """The rounds to do: those asked for, else one in small mode, else the usual number."""
        return self.rounds or (1 if self.small else usual)

    def say(self, text: str) -> None:
        """Tell on stderr what is being done."""
        sys.stderr.write(f"  {text}\n")
        sys.stderr.flush()

    def child(self, name: str, *arguments: str | Path, folder: Path | None = None) -> Finished:
        """Run one of the programs in ``children``, with the measured code on its path."""
        command = [sys.executable, CHILDREN / f"{name}.py", *arguments]
        return run(command, folder or self.work, {"PYTHONPATH": str(self.site_scons)})


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, one line about it, and what measures."""

    name: str
    about: str
    measure: Callable[[Bench], Result]
