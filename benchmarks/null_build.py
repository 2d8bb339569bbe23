"""``scons`` with nothing to do, for 10, 100 and 1000 kernels, against plain SCons and ninja with the same graph."""

from __future__ import annotations

from collections.abc import Callable

from .harness import Bench, Finished, Result, Row, Skip, Target, interleave, median_wall, walls
from .plain import plain_ninja, plain_scons, scons
from .projects import generated

TARGETS = {10: 0.20, 100: 0.22, 1000: 0.40}
"""Seconds on the reference machine, whose plain SCons takes those of REFERENCE."""
REFERENCE = {10: 0.13, 100: 0.24, 1000: 1.47}

NOTE = "the target is for a machine on which plain SCons takes {reference:.2f} s; in proportion, {scaled:.2f} s here"


def measure(bench: Bench) -> Result:
    """Measure each number of kernels."""
    rows, details, skipped = [], {}, []
    for count in (2,) if bench.small else TARGETS:
        row, runs, reasons = _measure(bench, count)
        rows.append(row)
        details[str(count)] = walls(runs)
        skipped += [reason for reason in reasons if reason not in skipped]
    return Result(rows, details, skipped)


def _measure(bench: Bench, count: int) -> tuple[Row, dict[str, list[Finished]], list[str]]:
    project = generated(bench, count)
    bench.say(f"builds of {count} kernels with nothing to do")
    folder = plain_scons(bench, count)
    actions: dict[str, Callable[[], Finished]] = {"ours": lambda: project.scons(), "SCons": lambda: scons(folder)}
    skipped = []
    try:
        ninja = plain_ninja(bench, count)
        actions["ninja"] = lambda: ninja.build(bench.jobs)
    except Skip as reason:
        skipped.append(str(reason))
    runs = interleave(bench.rounds_or(11), actions, warm_up=1)
    medians = {name: median_wall(done) for name, done in runs.items()}
    ours = medians.pop("ours")
    known = max(count, min(TARGETS))
    scaled = TARGETS[known] / REFERENCE[known] * medians["SCons"]
    note = NOTE.format(reference=REFERENCE[known], scaled=scaled)
    return Row(f"{count} kernels, nothing to do", "s", ours, medians, Target(TARGETS[known]), note), runs, skipped
