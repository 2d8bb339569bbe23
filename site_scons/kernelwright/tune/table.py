"""From what was measured to files: the tuning table, which is kept with the sources, and the result of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..core.errors import SettingsError, Where
from ..core.files import write_atomically
from ..define.space import Point
from ..define.tuning import (
    Evidence,
    Rule,
    Source,
    TableDevice,
    TableFile,
    TunedConfig,
    file_name,
    path_of_table,
    read_table,
    same,
    table_text,
)
from ..discover.tables import tables_in
from ..state.tuning_result import (
    DEFAULT,
    FOLDER,
    CandidateResult,
    ConfigResult,
    Failure,
    SizeResult,
    TuningResult,
    write_result,
)
from .kept import Entry
from .sizes import size_text
from .tuner import Tuned, Tuner

DIGITS = 4
"""Significant digits of times in tables: more would change with every run and say nothing."""


def folder_of(tuner: Tuner) -> Path:
    """The folder with what is known of a kernel on a device: ``build/tune/<kernel>/<device>``."""
    return tuner.root / FOLDER / tuner.request.kernel / device_slug(tuner.device)


def device_slug(device: TableDevice) -> str:
    """A device in the name of a folder: as in the names of tables."""
    return file_name("k", device).removeprefix("k.").removesuffix(".json")


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


def config_in(table: TableFile | None, config: Mapping[str, Any]) -> TunedConfig | None:
    """What a table says of a config."""
    return next((found for found in table.configs if same(found.config, config)), None) if table else None


def answer_in(table: TableFile | None, config: Mapping[str, Any], sizes: Mapping[str, int]) -> Point | None:
    """The point that a table has for a config and sizes; None: it has none."""
    found = config_in(table, config)
    if found is None or not set(found.by) <= sizes.keys():
        return None
    product = math.prod(sizes[name] for name in found.by)
    return next(rule.tune for rule in found.rules if rule.upto is None or product <= rule.upto)


def write_files(tuner: Tuner, tuned: Sequence[Tuned], before: TableFile | None) -> str:
    """Write table and result; where the table is, relative to the project's folder.

    What the table says of configs that are declared and were not measured now stays.
    """
    new = [_tuned_config(one) for one in tuned]
    declared = [choice.config for choice in tuner.origin.record.choices]
    kept = [
        old
        for old in (before.configs if before else ())
        if any(same(old.config, config) for config in declared) and not any(same(old.config, n.config) for n in new)
    ]
    name = table_name(tuner)
    table = TableFile(tuner.request.kernel, tuner.device, tuner.measured, (*kept, *new))
    found = tuple(_result_of(one, tuner) for one in tuned)
    write_result(folder_of(tuner), TuningResult(tuner.request.kernel, tuner.device, tuner.measured, name, found))
    write_atomically(tuner.root / name, table_text(table))
    return name


def no_longer_measured(before: TableFile | None, tuned: Sequence[Tuned]) -> str:
    """What a run says if the table had answers for sizes that were not measured now; empty: it had none."""
    gone = []
    for one in tuned:
        old = config_in(before, one.config)
        gone += [row.sizes for row in (old.evidence if old else ()) if row.sizes not in one.sizes]
    if not gone:
        return ""
    return f"{size_text(gone[0])} had an answer in the table, and was not measured now: the new rules are without it"


def times_of(tuned: Tuned, place: int, number: int) -> tuple[float, float, float]:
    """Microseconds of a candidate and of the default, and the spread, at one of the combinations of sizes."""
    entry, us = tuned.entries[place][number], median(tuned.entries[place][number].us)
    spread = entry.timing.spread if number != DEFAULT else (max(entry.us) - min(entry.us)) / us
    return _rounded(us), _rounded(median(entry.default_us)), round(spread, 3)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _tuned_config(tuned: Tuned) -> TunedConfig:
    points = [candidate.tune for candidate in tuned.candidates]
    evidence = tuple(
        Evidence(at, points[answer], *times_of(tuned, place, answer))
        for place, (at, answer) in enumerate(zip(tuned.sizes, tuned.answers, strict=True))
    )
    used = sorted({DEFAULT, *(one.answer for one in tuned.ranges), *tuned.answers})
    rules = tuple(Rule(points[one.answer], one.upto) for one in tuned.ranges)
    sources = tuple(Source(points[number], tuned.digests[number]) for number in used)
    return TunedConfig(tuned.config, tuned.by, rules, evidence, sources)


def _result_of(tuned: Tuned, tuner: Tuner) -> ConfigResult:
    points = [dict(candidate.tune) for candidate in tuned.candidates]
    measured = {number for known in tuned.entries for number in known}
    workshop = tuner.workshop()
    failures = [
        Failure(
            number,
            tuned.candidates[number].slug,
            message,
            workshop.folder(tuned.candidates[number]).relative_to(tuner.root).as_posix(),
        )
        for number, message in sorted(tuned.failed.items())
    ]
    return ConfigResult(
        dict(tuned.config),
        tuple(tuned.sizes[0]),
        tuned.by,
        tuple(Rule(points[one.answer], one.upto) for one in tuned.ranges),
        tuple(points),
        tuple(_size_result(tuned, place) for place in range(len(tuned.sizes))),
        tuple(failures),
        tuple(sorted(set(range(len(points))) - measured - tuned.failed.keys())),
    )


def _size_result(tuned: Tuned, place: int) -> SizeResult:
    known = {n: entry for n, entry in sorted(tuned.entries[place].items()) if entry.us and n not in tuned.failed}
    candidates = tuple(_candidate_result(tuned, place, number, entry) for number, entry in known.items())
    default_us = times_of(tuned, place, DEFAULT)[1]
    return SizeResult(dict(tuned.sizes[place]), tuned.answers[place], default_us, candidates)


def _candidate_result(tuned: Tuned, place: int, number: int, entry: Entry) -> CandidateResult:
    us, default_us, spread = times_of(tuned, place, number)
    warm_us = _rounded(median(entry.warm_us)) if entry.warm_us else 0.0
    ratio = round(entry.timing.ratio, 4)
    return CandidateResult(number, us, default_us, ratio, spread, len(entry.us), warm_us, entry.clock_mhz)
