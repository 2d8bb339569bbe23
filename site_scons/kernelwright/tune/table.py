"""From what was measured to files: the tuning table, which is kept with the sources, and ``result.json``.

``build/tune/<kernel>/<device>/result.json`` is the last run, for programs and for the report. Its fields:

- ``schema``: 1. ``kernel``, ``device`` and ``measured``: as in the table. ``table``: path of the table in the project.
- ``configs``: a list with a dict for each config of a caller:

  - ``config``; ``symbols``, the names of its sizes; ``default``, the point that runs if nobody says anything; ``by``
    and ``rules``, as in the table.
  - ``points``: all points of the space, in order. A candidate's ``number`` is its place there.
  - ``sizes``: a list with a dict for each combination of sizes that was measured: ``sizes``; ``chosen``, the number of
    the candidate that is to run; ``default_us``; and ``candidates``, a list of dicts with ``number``, ``us``,
    ``default_us`` (medians, in the same rounds), ``ratio`` (the median of the rounds' ratios to the default),
    ``spread``, ``rounds``, ``warm_us`` (0 on the CPU, where the caches are always warm) and ``clock_mhz`` (a list of
    the lowest and the highest; empty: unknown).
  - ``failures``: a list of dicts with ``number``, ``slug``, ``message`` and ``folder``, where the sources and the log
    are.
  - ``unmeasured``: the numbers of candidates that there was no time for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..core.files import pretty_json, write_atomically
from ..define.tuning import (
    Evidence,
    Point,
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
from .decide import DEFAULT
from .kept import Entry
from .tuner import FOLDER, Tuned, Tuner

RESULT = "result.json"

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
    """Where the table belongs, relative to the project's folder."""
    return path_of_table(tuner.root, tuner.origin.settings.tuning or "tuning", tuner.request.kernel, tuner.device)


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
    result = {
        "schema": 1,
        "kernel": tuner.request.kernel,
        "device": vars(tuner.device),
        "measured": tuner.measured,
        "table": name,
        "configs": [_result_of(one, tuner) for one in tuned],
    }
    write_atomically(folder_of(tuner) / RESULT, pretty_json(result))
    write_atomically(tuner.root / name, table_text(table))
    return name


def times_of(tuned: Tuned, place: int, number: int) -> tuple[float, float, float]:
    """Microseconds of a candidate and of the default, and the spread, at one of the combinations of sizes."""
    entry = tuned.entries[place][number]
    return _rounded(median(entry.us)), _rounded(median(entry.default_us)), round(entry.timing.spread, 3)


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


def _result_of(tuned: Tuned, tuner: Tuner) -> dict[str, Any]:
    points = [dict(candidate.tune) for candidate in tuned.candidates]
    workshop = tuner.workshop()
    measured = {number for known in tuned.entries for number in known}
    failures = [
        {
            "number": number,
            "slug": tuned.candidates[number].slug,
            "message": message,
            "folder": workshop.folder(tuned.candidates[number]).relative_to(tuner.root).as_posix(),
        }
        for number, message in sorted(tuned.failed.items())
    ]
    return {
        "config": dict(tuned.config),
        "symbols": list(tuned.sizes[0]),
        "default": points[DEFAULT],
        "by": list(tuned.by),
        "rules": [{"upto": one.upto, "tune": points[one.answer]} for one in tuned.ranges],
        "points": points,
        "sizes": [_size_result(tuned, place) for place in range(len(tuned.sizes))],
        "failures": failures,
        "unmeasured": sorted(set(range(len(points))) - measured - tuned.failed.keys()),
    }


def _size_result(tuned: Tuned, place: int) -> dict[str, Any]:
    known = {n: entry for n, entry in sorted(tuned.entries[place].items()) if entry.us and n not in tuned.failed}
    return {
        "sizes": dict(tuned.sizes[place]),
        "chosen": tuned.answers[place],
        "default_us": times_of(tuned, place, DEFAULT)[1],
        "candidates": [_candidate_result(tuned, place, number, entry) for number, entry in known.items()],
    }


def _candidate_result(tuned: Tuned, place: int, number: int, entry: Entry) -> dict[str, Any]:
    us, default_us, spread = times_of(tuned, place, number)
    return {
        "number": number,
        "us": us,
        "default_us": default_us,
        "ratio": round(entry.timing.ratio, 4),
        "spread": spread,
        "rounds": len(entry.us),
        "warm_us": _rounded(median(entry.warm_us)) if entry.warm_us else 0.0,
        "clock_mhz": list(entry.clock_mhz),
    }
