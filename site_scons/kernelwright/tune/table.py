"""From what was measured to files: the tuning table, which is kept with the sources, and the result of the run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.files import write_atomically
from ..define.tables import tables_in
from ..define.tuning import (
    Evidence,
    Rule,
    Source,
    TableFile,
    TunedConfig,
    file_name,
    path_of_table,
    read_table,
    table_text,
)
from ..state.tuning_result import (
    DEFAULT,
    FAILED,
    FILE,
    FOLDER,
    CandidateResult,
    ConfigResult,
    Failure,
    SizeResult,
    TuningResult,
    read_result,
    write_result,
)
from .kept import Entry
from .tuner import Tuned, Tuner

DIGITS = 4
"""Significant digits of times in tables: more would change with every run and say nothing."""


def folder_of(tuner: Tuner) -> Path:
    """The folder with what is known of a kernel on a device: ``build/tune/<kernel>/<device>``."""
    device = file_name("", tuner.device).removeprefix(".").removesuffix(".json")  # as in the names of tables
    return tuner.root / FOLDER / tuner.request.kernel / device


def table_of(tuner: Tuner) -> TableFile | None:
    """The table of the kernel and the device, if there is one.

    Raises:
        TuningError: it is damaged.
    """
    name = table_name(tuner)
    return read_table(tuner.root, name) if (tuner.root / name).exists() else None


def table_name(tuner: Tuner) -> str:
    """Where the table belongs, relative to the project's folder.

    Raises:
        SettingsError: the project has no folder for tables.
    """
    folder = tuner.origin.settings.tuning
    if not folder:
        where = Where(tuner.request.kernel, stage="settings", location="tuning")
        raise SettingsError("it is empty, so no table would count", where, 'set tuning = "tuning" in pyproject.toml')
    tables_in(tuner.root, folder)  # an error, if what has the name is no folder
    return path_of_table(tuner.root, folder, tuner.request.kernel, tuner.device)


def write_files(tuner: Tuner, tuned: Sequence[Tuned]) -> str:
    """Write table and result; where the table is, relative to the project's folder."""
    name = table_name(tuner)
    table = TableFile(tuner.request.kernel, tuner.device, tuner.measured, tuple(map(_tuned_config, tuned)))
    results = tuple(_result_of(one, tuner) for one in tuned)
    write_result(folder_of(tuner), TuningResult(tuner.request.kernel, tuner.device, tuner.measured, name, results))
    write_atomically(tuner.root / name, table_text(table))
    _sweep(tuner)
    return name


def _sweep(tuner: Tuner) -> None:
    """Remove what is left of candidates that are in no result any more: of this device, or of another one."""
    top = tuner.root / FOLDER / tuner.request.kernel
    named: set[str] = set()
    for path in top.glob(f"*/{FILE}"):
        with contextlib.suppress(KernelwrightError):  # what a damaged result names is not known
            configs = read_result(tuner.root, path.relative_to(tuner.root).as_posix()).configs
            named |= {failure.folder for config in configs for failure in config.failures}
    for folder in (top / FAILED).glob("*"):
        if folder.relative_to(tuner.root).as_posix() not in named:
            shutil.rmtree(folder, ignore_errors=True)


def times_of(tuned: Tuned, place: int, number: int) -> tuple[float, float, float]:
    """Microseconds of a candidate and of the default, and the spread, at one of the combinations of sizes."""
    entry, us = tuned.entries[place][number], median(tuned.entries[place][number].us)
    spread = entry.spread if number != DEFAULT else (max(entry.us) - min(entry.us)) / us
    return _rounded(us), _rounded(median(entry.default_us)), round(spread, 3)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _tuned_config(tuned: Tuned) -> TunedConfig:
    points = [candidate.tune for candidate in tuned.candidates]
    evidence = [
        Evidence(at, points[answer], *times_of(tuned, place, answer))
        for place, (at, answer) in enumerate(zip(tuned.sizes, tuned.answers, strict=True))
    ]
    carried = [row for row, _ in tuned.carried]
    used = sorted({DEFAULT, *(number for _, number in (*tuned.rules.ranges, *tuned.carried)), *tuned.answers})
    sources = tuple(Source(points[number], tuned.digests[number]) for number in used)
    return TunedConfig(tuned.config, tuned.rules.by, _rules(tuned), (*evidence, *carried), sources)


def _rules(tuned: Tuned) -> tuple[Rule, ...]:
    return tuple(Rule(tuned.candidates[number].tune, upto) for upto, number in tuned.rules.ranges)


def _result_of(tuned: Tuned, tuner: Tuner) -> ConfigResult:
    candidates, workshop = tuned.candidates, tuner.workshop()
    points = tuple(dict(candidate.tune) for candidate in candidates)
    measured = {number for known in tuned.entries for number in known}

    def failure(number: int, why: str) -> Failure:
        folder = workshop.folder(candidates[number]).relative_to(tuner.root).as_posix()
        return Failure(number, candidates[number].slug, why, folder)

    return ConfigResult(
        config=dict(tuned.config),
        symbols=tuple(tuned.sizes[0]),
        default=points[DEFAULT],
        by=tuned.rules.by,
        rules=_rules(tuned),
        points=points,
        sizes=tuple(_size_result(tuned, place) for place in range(len(tuned.sizes))),
        failures=tuple(failure(*pair) for pair in sorted(tuned.failed.items())),
        unmeasured=tuple(sorted(set(range(len(points))) - measured - tuned.failed.keys())),
    )


def _size_result(tuned: Tuned, place: int) -> SizeResult:
    known = {n: entry for n, entry in sorted(tuned.entries[place].items()) if entry.us and n not in tuned.failed}
    candidates = tuple(_candidate_result(tuned, place, number, entry) for number, entry in known.items())
    default_us = times_of(tuned, place, DEFAULT)[1]
    return SizeResult(dict(tuned.sizes[place]), tuned.answers[place], default_us, candidates)


def _candidate_result(tuned: Tuned, place: int, number: int, entry: Entry) -> CandidateResult:
    us, default_us, spread = times_of(tuned, place, number)
    warm_us = _rounded(median(entry.warm_us)) if entry.warm_us else 0.0
    times = (us, default_us, round(entry.ratio, 4), spread)
    return CandidateResult(number, *times, rounds=len(entry.us), warm_us=warm_us, clock_mhz=entry.clock_mhz)
