"""How scons grows with the number of kernels: nodes, seconds and memory, with nothing to do and over the whole graph.

``scons`` leaves kernels that are finished out of the graph; ``scons build/kernels`` names all their files, and so makes
SCons look at each of them. The exponent is that of the time above the start-up floor, between the two largest projects.
"""

from __future__ import annotations

import math
from typing import Any

from .harness import ROOT, Bench, Finished, Result, Row, Skip, Target, interleave, median_wall
from .measured import Measured
from .plot import draw
from .projects import Project, generated

COUNTS = (10, 100, 1000, 5000)
SMALL = (3, 10)
LARGEST_EXPONENT = 1.1
WHOLE = "build/kernels"
MODES: dict[str, tuple[str, ...]] = {"nothing to do": (), "whole graph": (WHOLE,)}


def measure(bench: Bench) -> Result:
    """Measure each project with nothing to do and over the whole graph, and the floor."""
    counts = SMALL if bench.small else COUNTS
    projects = {count: generated(bench, count) for count in counts}
    floor_s = _floor(bench)
    points = {count: _measure(bench, project) for count, project in projects.items()}
    rows = [_row(count, mode, points[count][mode]) for mode in MODES for count in counts]
    exponents = {mode: _exponent(points, mode, floor_s) for mode in MODES}
    note = f"from {counts[-2]} to {counts[-1]} kernels, above the floor of {floor_s:.3f} s"
    rows += [
        Row(f"{mode}: exponent of the time", "", value, {}, Target(LARGEST_EXPONENT), note)
        for mode, value in exponents.items()
    ]
    skipped = []
    try:
        folder = bench.work if bench.small else ROOT / "docs" / "images"
        draw(folder / "scale", {mode: {count: points[count][mode]["wall_s"] for count in counts} for mode in MODES})
    except Skip as reason:
        skipped.append(str(reason))
    return Result(rows, {"floor_s": floor_s, "points": points, "exponents": exponents}, skipped)


def _measure(bench: Bench, project: Project) -> dict[str, dict[str, Any]]:
    bench.say(f"{project.folder.name}: with nothing to do, and over the whole graph")
    counted = {mode: project.measured_scons(*arguments, count=True) for mode, arguments in MODES.items()}
    actions = {mode: lambda arguments=arguments: project.scons(*arguments) for mode, arguments in MODES.items()}
    runs = interleave(bench.rounds_or(5), actions)
    return {mode: _point(runs[mode], counted[mode]) for mode in MODES}


def _point(runs: list[Finished], counted: Measured) -> dict[str, Any]:
    return {
        "wall_s": median_wall(runs),
        "peak_kib": counted.own_peak_kib,
        "nodes": counted.nodes,
        "walls": [round(done.wall_s, 4) for done in runs],
    }


def _row(count: int, mode: str, point: dict[str, Any]) -> Row:
    what = f"{count} kernels, {mode}: {point['nodes']:,} nodes, {point['peak_kib']:,} KiB"
    return Row(what, "s", point["wall_s"])


def _floor(bench: Bench) -> float:
    """Seconds of a run of scons with the tool loaded and without a package."""
    folder = bench.work / "empty"
    folder.mkdir(exist_ok=True)
    (folder / "SConstruct").write_text("from kernelwright.scons import generate\nEnvironment(tools=[generate])\n")
    project = Project(folder, "", bench.site_scons)
    return median_wall(interleave(bench.rounds_or(11), {"floor": lambda: project.scons()}, warm_up=1)["floor"])


def _exponent(points: dict[int, dict[str, dict[str, Any]]], mode: str, floor_s: float) -> float:
    """b of time = floor + a * count ** b, through the two largest projects."""
    small, large = sorted(points)[-2:]
    times = [max(1e-3, points[count][mode]["wall_s"] - floor_s) for count in (small, large)]
    return math.log(times[1] / times[0]) / math.log(large / small)
