"""What came of tuning a kernel on a device: ``build/tune/<kernel>/<device>/result.json``, for programs and the report.

The tuner writes it at the end of a run. Its fields are those of :class:`TuningResult`, under the same names, and
``schema``. A device is an object with ``target``, ``arch``, ``name`` and ``count``, and a rule is one with ``upto``
(absent: there is no end) and ``tune``, both as in tuning tables. Each config also has ``default``, its first point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.converter import LARGEST
from ..core.files import pretty_json, read_record, write_atomically
from ..core.records import Record, damage_named, decoded
from ..define.space import Point
from ..define.tuning import Rule, TableDevice

SCHEMA = 1
"""Revision of the file's form."""

FOLDER = Path("build", "tune")
"""The folder, in the project's, that has timings, results and logs."""

FILE = "result.json"

FAILED = "failed"
"""The folder of a kernel's candidates that are out, beside those of its devices."""

DEFAULT = 0
"""The number of the candidate that runs if nobody says anything."""

REMEDY = "measure it again: kernelwright tune"

LARGEST_RESULT = 256 << 20
"""Bytes that such a file may have: a large space at many sizes takes some."""


@dataclass(frozen=True)
class CandidateResult:
    """What was measured of a candidate at one combination of sizes.

    Arguments:
        number: its place in the space.
        us: microseconds of a call, the median of its rounds.
        default_us: those of the default, in the same rounds.
        ratio: the median of the rounds' ratios to the default: less is faster.
        spread: how far apart these ratios are, as a part of their median.
        rounds: how many there were; less than the default has if it was dropped or the time was over.
        warm_us: with warm caches; 0 on the CPU, where they always are.
        clock_mhz: the lowest and the highest clock of the device that was seen; empty: unknown.
    """

    number: int
    us: float
    default_us: float
    ratio: float
    spread: float
    rounds: int
    warm_us: float = 0.0
    clock_mhz: tuple[int, ...] = ()


@dataclass(frozen=True)
class SizeResult:
    """One combination of sizes.

    Arguments:
        sizes: size symbol -> size.
        chosen: the number of the candidate that is to run.
        default_us: microseconds of a call of the default.
        candidates: those that were measured, by number.
    """

    sizes: Mapping[str, int]
    chosen: int
    default_us: float
    candidates: tuple[CandidateResult, ...]

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
    """A candidate that is out.

    Arguments:
        number, slug: the candidate.
        message: why.
        folder: where its sources and the log are, relative to the project's folder.
    """

    number: int
    slug: str
    message: str
    folder: str


@dataclass(frozen=True)
class ConfigResult:
    """One config of a caller.

    Arguments:
        config: the config.
        symbols: the names of its sizes.
        by, rules: as in the table.
        points: all points of the space, in order: a candidate's number is its place here. The first is the default.
        sizes: each combination of sizes that was measured.
        failures: the candidates that are out.
        unmeasured: the numbers of those that there was no time for.
    """

    config: Mapping[str, Any]
    symbols: tuple[str, ...]
    by: tuple[str, ...]
    rules: tuple[Rule, ...]
    points: tuple[Point, ...]
    sizes: tuple[SizeResult, ...]
    failures: tuple[Failure, ...] = ()
    unmeasured: tuple[int, ...] = ()


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

    kernel: str
    device: TableDevice
    measured: Mapping[str, str]
    table: str
    configs: tuple[ConfigResult, ...]


def write_result(folder: Path, result: TuningResult) -> None:
    """Write a result into the folder of its kernel and device."""
    write_atomically(folder / FILE, pretty_json(_json(result)))


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
        return _result(Record(decoded(content), ""))


def _json(result: TuningResult) -> dict[str, Any]:
    configs = [_config_json(config) for config in result.configs]
    return {"schema": SCHEMA, **vars(result), "device": vars(result.device), "configs": configs}


def _config_json(config: ConfigResult) -> dict[str, Any]:
    return {
        "config": config.config,
        "symbols": config.symbols,
        "default": config.points[DEFAULT],
        "by": config.by,
        "rules": [({} if rule.upto is None else {"upto": rule.upto}) | {"tune": rule.tune} for rule in config.rules],
        "points": config.points,
        "sizes": [
            {
                "sizes": size.sizes,
                "chosen": size.chosen,
                "default_us": size.default_us,
                "candidates": [vars(candidate) for candidate in size.candidates],
            }
            for size in config.sizes
        ],
        "failures": [vars(failure) for failure in config.failures],
        "unmeasured": config.unmeasured,
    }


def _result(document: Record) -> TuningResult:
    if document.count("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.count('schema')}, expected {SCHEMA}")
    device = document.record("device")
    measured = document.record("measured")
    return TuningResult(
        document.file_name("kernel"),
        TableDevice(device.text("target"), device.text("arch"), device.text("name"), device.count("count")),
        {name: measured.text(name) for name in measured.raw},
        document.text("table"),
        tuple(map(_config, document.records("configs"))),
    )


def _config(record: Record) -> ConfigResult:
    points = tuple(map(_scalars, record.records("points")))
    symbols = tuple(record.texts("symbols"))
    by = tuple(record.texts("by"))
    if not points or not set(by) <= set(symbols):
        raise ValueError(f"{record.place} has no points, or by is not among its symbols")
    unmeasured = tuple(record.counts("unmeasured"))
    if unmeasured and max(unmeasured) >= len(points):
        raise ValueError(f"{record.place}.unmeasured has {max(unmeasured)}, but there are {len(points)} points")
    return ConfigResult(
        _scalars(record.record("config")),
        symbols,
        by,
        tuple(map(_rule, record.records("rules"))),
        points,
        tuple(_size(size, symbols, len(points)) for size in record.records("sizes")),
        tuple(_failure(failure, len(points)) for failure in record.records("failures")),
        unmeasured,
    )


def _rule(record: Record) -> Rule:
    return Rule(_scalars(record.record("tune")), record.optional(record.count, "upto"))


def _size(record: Record, symbols: tuple[str, ...], points: int) -> SizeResult:
    found = record.record("sizes")
    if sorted(found.raw) != sorted(symbols):
        raise ValueError(f"{found.place} has not exactly the symbols of its config")
    candidates = tuple(_candidate(candidate, points) for candidate in record.records("candidates"))
    numbers = [candidate.number for candidate in candidates]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{record.place}.candidates has a candidate twice")
    sizes = {name: int(_positive(found, found.count, name)) for name in symbols}
    chosen = record.count("chosen", points - 1)
    return SizeResult(sizes, chosen, _positive(record, record.number, "default_us"), candidates)


def _candidate(record: Record, points: int) -> CandidateResult:
    clocks = tuple(record.counts("clock_mhz"))
    if len(clocks) not in (0, 2):
        raise ValueError(f"{record.place}.clock_mhz has {len(clocks)} numbers, expected none or two")
    us, default_us, ratio = (_positive(record, record.number, name) for name in ("us", "default_us", "ratio"))
    return CandidateResult(
        record.count("number", points - 1),
        us,
        default_us,
        ratio,
        record.number("spread"),
        record.count("rounds"),
        record.number("warm_us"),
        clocks,
    )


def _failure(record: Record, points: int) -> Failure:
    number = record.count("number", points - 1)
    return Failure(number, record.text("slug"), record.text("message"), record.text("folder"))


def _positive(record: Record, read: Callable[[str], float], name: str) -> float:
    """A number that can be drawn on a logarithmic axis."""
    value = float(read(name))
    if value < 1 / LARGEST:
        raise ValueError(f"{record.place}.{name} is {value:g}, expected more than nothing")
    return value


def _scalars(record: Record) -> dict[str, Any]:
    """An object with numbers, texts, true and false."""
    return dict(_checked(record))


def _checked(record: Record) -> Iterator[tuple[str, Any]]:
    for name, value in record.raw.items():
        if not isinstance(value, (bool, int, float, str)) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{record.place}.{name} is no number, text, true or false")
        yield name, value
