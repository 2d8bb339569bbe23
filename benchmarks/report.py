"""Shows results as one aligned table, and writes each as a JSON file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .harness import Bench, Result, Row, Target

SCHEMA = 1
"""Revision of the JSON files."""

HEAD = ("benchmark", "what", "ours", "peers", "ratio", "target", "met?")


def table(results: dict[str, Result]) -> str:
    """The rows of all results below one head, and their notes and what was skipped after it."""
    numbers: dict[str, int] = {}
    lines = [HEAD, tuple("-" * len(word) for word in HEAD)]
    for name, result in results.items():
        lines += [_cells(name, row, numbers) for row in result.rows]
    skipped = [f"skipped: {name}: {reason}" for name, result in results.items() for reason in result.skipped]
    notes = [f"[{number}] {note}" for note, number in numbers.items()]
    return "\n".join([*_aligned(lines), *([""] if notes else []), *notes, *skipped])


def write_json(path: Path, name: str, result: Result, bench: Bench, machine: dict[str, Any]) -> None:
    """Write a result with the machine that it is of."""
    document = {
        "schema": SCHEMA,
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "settings": {"small": bench.small, "jobs": bench.jobs, "rounds": bench.rounds or "usual"},
        "machine": machine,
        "rows": [_row(row) for row in result.rows],
        "skipped": result.skipped,
        "details": result.details,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def number(value: float, unit: str) -> str:
    """A value with three significant digits, and its unit."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def _cells(name: str, row: Row, numbers: dict[str, int]) -> tuple[str, ...]:
    mark = f" [{numbers.setdefault(row.note, len(numbers) + 1)}]" if row.note else ""
    peers = ", ".join(f"{peer} {number(value, row.unit)}" for peer, value in row.peers.items()) or "-"
    ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
    met = {True: "yes", False: "NO", None: "-"}[row.met]
    return (name, row.what + mark, number(row.ours, row.unit), peers, ratio, _target(row.target, row.unit), met)


def _target(target: Target | None, unit: str) -> str:
    if target is None:
        return "-"
    sign = ">=" if target.at_least else "<="
    return f"ratio {sign} {target.bound:g}" if target.of == "ratio" else f"{sign} {number(target.bound, unit)}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _rounded(value: Any) -> Any:
    """JSON data with five significant digits in each number, which is more than any measurement here has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _row(row: Row) -> dict[str, Any]:
    target = row.target and {"of": row.target.of, "at_least": row.target.at_least, "bound": row.target.bound}
    return {
        "what": row.what,
        "unit": row.unit,
        "ours": row.ours,
        "peers": dict(row.peers),
        "ratio": row.ratio,
        "target": target,
        "met": row.met,
        "note": row.note,
    }
