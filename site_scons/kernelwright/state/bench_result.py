"""What ``kernelwright bench --json`` writes: the times of kernels, and of what they were measured beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from ..core.converter import LARGEST, from_json, that
from ..core.files import read_record
from ..core.records import damage_named, decoded
from ..define.space import Plain
from ..define.tuning import TableDevice
from .tuning_result import DRAWN, Positive

SCHEMA = 1
"""Revision of the form of results."""

LARGEST_FILE = 64 << 20
"""Bytes that a file of results may have."""

Rate = Annotated[float, that(f"0, or {DRAWN}", lambda value: not value or 1 / LARGEST <= value <= LARGEST)]
"""A number that is not known, or that can be drawn on a logarithmic axis."""

REMEDY = "write it with: kernelwright bench --json FILE"


@dataclass(frozen=True)
class Row:
    """What was measured of one way to do the work of a kernel, at one combination of sizes.

    Arguments:
        kernel, config, sizes: the work.
        what: who did it: the variant's tuning parameters, ``reference``, a function, or what it was compared with.
        rounds: microseconds of a call in each round: the median of its batches.
        gb_s: 10^9 bytes per second, of those that a call reads and writes at least.
        gflop_s: 10^9 floating-point operations per second; 0: the definition does not declare them.
    """

    kernel: str
    config: Mapping[str, Plain]
    sizes: Mapping[str, int]
    what: str
    rounds: tuple[Positive, ...]
    gb_s: Rate
    gflop_s: Rate

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ValueError("a row has no times")

    @property
    def us(self) -> float:
        """Microseconds of a call: the median of the rounds."""
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """How far apart the rounds are, as a part of their median."""
        return (max(self.rounds) - min(self.rounds)) / self.us

    @property
    def work(self) -> tuple[str, ...]:
        """What is compared with other rows of the same."""
        return work_of(self.kernel, self.config, self.sizes)

    @property
    def key(self) -> tuple[str, ...]:
        """What a row of an earlier run has as well, if it is about the same."""
        return *self.work, self.what

    def slower_than(self, before: Row, most: float) -> bool:
        """Whether it takes longer, by a part of the time, and each round longer than each of the other: no noise."""
        return self.us > before.us * (1 + most) and min(self.rounds) > max(before.rounds)


@dataclass(frozen=True)
class Limits:
    """What the device can do at most, as two kernels of ours have measured it in the same run.

    Arguments:
        gb_s: 10^9 bytes per second that a copy reads and writes.
        gflop_s: 10^9 floating-point operations per second of multiplications and additions in float32.
    """

    gb_s: Positive
    gflop_s: Positive


@dataclass(frozen=True)
class Results:
    """What a run has measured.

    Arguments:
        schema: 1.
        device: the device.
        measured: what it was measured with, as in tuning tables.
        rows: what was measured.
        limits: those of the device; None: they could not be measured.
    """

    schema: int
    device: TableDevice
    measured: Mapping[str, str]
    rows: tuple[Row, ...]
    limits: Limits | None = None


def read_results(path: Path) -> Results:
    """The results in a file.

    Raises:
        KernelwrightError: it is no such file; the error names it.
    """
    with damage_named(path, REMEDY):
        results: Results = from_json(Results, decoded(read_record(path, LARGEST_FILE)))
        if results.schema != SCHEMA:
            raise ValueError(f"its schema is {results.schema}, expected {SCHEMA}")
        return results


def work_of(kernel: str, config: Mapping[str, Plain], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """A work in words: the kernel, its config and its sizes."""
    return kernel, _words(config, " ") or "-", _words(sizes, ", ") or "its fixed sizes"


def _words(values: Mapping[str, object], between: str) -> str:
    return between.join(f"{name}={value}" for name, value in values.items())
