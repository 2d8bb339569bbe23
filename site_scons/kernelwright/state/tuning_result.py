"""The result of tuning a kernel on a device: ``build/tune/<kernel>/<device>/result.json``, for programs and the report.

The tuner writes it at the end of a run. Its fields are those of :class:`TuningResult`, under the same names, and
``schema``. A device is an object with ``target``, ``arch``, ``name`` and ``count``, and a rule is one with ``upto``
(absent: there is no end) and ``tune``, both as in tuning tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from ..core.converter import LARGEST, Amount, Count, that, to_json
from ..core.files import pretty_json, read_record, write_atomically
from ..core.records import Record, damage_named, decoded, is_file_name
from ..define.space import Plain, Point
from ..define.tuning import Rule, TableDevice

SCHEMA = 1
"""Revision of the file's form."""

FOLDER = Path("build", "tune")
"""The folder, in the project's, that has timings, results and logs."""

FILE = "result.json"

FAILED = "failed"
"""The folder of a kernel's candidates that failed, beside the folders of its devices."""

DEFAULT = 0
"""The number of the candidate that runs where no table chooses one."""

REMEDY = "measure it again: kernelwright tune"

LARGEST_RESULT = 256 << 20
"""Bytes that such a file may have: a large space at many sizes needs many."""

DRAWN = f"a number from {1 / LARGEST:.0e} to {LARGEST:.0e}"
Positive = Annotated[float, that(DRAWN, lambda value: 1 / LARGEST <= value <= LARGEST)]
"""A number that can be drawn on a logarithmic axis."""

Size = Annotated[int, that(f"an integer from 1 to {LARGEST}", lambda value: 1 <= value <= LARGEST)]

Clocks = Annotated[tuple[Count, ...], that("no numbers or two", lambda clocks: len(clocks) in (0, 2))]


@dataclass(frozen=True)
class CandidateResult:
    """What was measured of a candidate at one combination of sizes.

    Arguments:
        number: its place in the space.
        us: microseconds of a call, the median of its rounds.
        default_us: those of the default, in the same rounds.
        ratio: the median of the rounds' ratios to the default: less is faster.
        spread: how far apart these ratios are, as a part of their median.
        rounds: how many there were; fewer than the default has if the candidate was dropped or the time was over.
        warm_us: microseconds of a call with warm caches; 0 on the CPU, where caches are always warm.
        clock_mhz: the lowest and the highest clock of the device that was seen; empty: unknown.
    """

    number: Count
    us: Positive
    default_us: Positive
    ratio: Positive
    spread: Amount
    rounds: Count
    warm_us: Amount
    clock_mhz: Clocks


@dataclass(frozen=True)
class SizeResult:
    """One combination of sizes.

    Arguments:
        sizes: size symbol -> size.
        chosen: the number of the candidate that is to run.
        default_us: microseconds of a call of the default.
        candidates: those that were measured, by number.
    """

    sizes: Mapping[str, Size]
    chosen: Count
    default_us: Positive
    candidates: tuple[CandidateResult, ...]

    def __post_init__(self) -> None:
        if len(self.of_number) < len(self.candidates):
            raise ValueError("a candidate is there twice")

    @cached_property
    def of_number(self) -> Mapping[int, CandidateResult]:
        """Number -> candidate."""
        return {candidate.number: candidate for candidate in self.candidates}

    @cached_property
    def complete(self) -> tuple[CandidateResult, ...]:
        """The candidates that had all their rounds, of which the fastest was chosen."""
        rounds = self.of_number[DEFAULT].rounds if DEFAULT in self.of_number else 0
        return tuple(candidate for candidate in self.candidates if candidate.rounds >= rounds)

    @property
    def best_ratio(self) -> float | None:
        """The ratio of the fastest candidate; None: none was measured to the end."""
        return min((candidate.ratio for candidate in self.complete), default=None)


@dataclass(frozen=True)
class Failure:
    """A candidate that failed.

    Arguments:
        number, slug: the candidate.
        message: why.
        folder: where its sources and the log are, relative to the project's folder.
    """

    number: Count
    slug: str
    message: str
    folder: str


@dataclass(frozen=True)
class ConfigResult:
    """One config of a caller.

    Arguments:
        config: the config.
        symbols: the names of its sizes.
        default: its first point.
        by, rules: as in the table.
        points: all points of the space, in order: a candidate's number is its place here.
        sizes: each combination of sizes that was measured.
        failures: the candidates that failed.
        unmeasured: the numbers of the candidates that there was no time to measure.
    """

    config: Mapping[str, Plain]
    symbols: tuple[str, ...]
    default: Point
    by: tuple[str, ...]
    rules: tuple[Rule, ...]
    points: tuple[Point, ...]
    sizes: tuple[SizeResult, ...]
    failures: tuple[Failure, ...]
    unmeasured: tuple[Count, ...]

    def __post_init__(self) -> None:
        if self.points[:1] != (self.default,) or not {*self.by} <= {*self.symbols}:
            raise ValueError("its default is not its first point, or by is not among its symbols")
        numbers = {*self.unmeasured, *(failure.number for failure in self.failures)}
        for size in self.sizes:
            numbers |= {size.chosen, *size.of_number}
            if size.sizes.keys() != {*self.symbols}:
                raise ValueError(f"sizes {dict(size.sizes)} has not exactly the symbols of its config")
        if numbers and max(numbers) >= len(self.points):
            raise ValueError(f"it has a candidate {max(numbers)}, but there are {len(self.points)} points")


@dataclass(frozen=True)
class TuningResult:
    """The last run for a kernel on a device.

    Arguments:
        kernel: its name.
        device: the device.
        measured: what it was measured with, as in the table.
        table: path of the table, relative to the project's folder.
        configs: what came of each config of a caller.
    """

    kernel: Annotated[str, that("a name", is_file_name)]
    device: TableDevice
    measured: Mapping[str, str]
    table: str
    configs: tuple[ConfigResult, ...]


def write_result(folder: Path, result: TuningResult) -> None:
    """Write a result into the folder of its kernel and device."""
    write_atomically(folder / FILE, pretty_json({"schema": SCHEMA, **to_json(result)}))


def read_result(top: Path, name: str) -> TuningResult:
    """The result in a file.

    Arguments:
        top: the project's folder.
        name: the file, relative to it.

    Raises:
        KernelwrightError: it cannot be read, or does not fit; the message names it.
    """
    with damage_named(Path(name), REMEDY):
        try:
            content = read_record(top / name, LARGEST_RESULT)
        except OSError as error:
            raise OSError(error.errno, error.strerror) from error
        document = Record(decoded(content), "")
        if document.count("schema") != SCHEMA:
            raise ValueError(f"its schema is {document.count('schema')}, expected {SCHEMA}")
        return document.all_but(TuningResult, "schema")
