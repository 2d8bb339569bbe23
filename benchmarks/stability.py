"""How many answers of the tuning tables change when the library is tuned again, on the CPU."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .harness import ROOT, Bench, Result, Row, Target, run
from .projects import Project, library

KERNELS = ("decode_attention", "layer_norm", "softmax", "transpose")
"""Those of the library that were tuned twice from the beginning."""

LIMIT = 5.0
"""Percent of the answers that a run may change."""

Answers = Mapping[str, str]
"""Kernel, config and sizes -> the point."""


def measure(bench: Bench) -> Result:
    """Tune several times, each time anew and with the tables of the run before, and compare their answers."""
    project = library(replace(bench, small=False))
    shutil.copytree(ROOT / "tuning", project.folder / "tuning", dirs_exist_ok=True)
    runs = [_tuned(bench, project, number) for number in range(1 + bench.rounds_or(2))]
    pairs = list(itertools.pairwise(runs))
    rows = [_row(f"{name}: changed", pairs, name, None) for name in KERNELS if not bench.small]
    return Result([*rows, _row("all: changed", pairs, "", Target(LIMIT))], {"answers": runs})


def _tuned(bench: Bench, project: Project, number: int) -> Answers:
    """The answers of the tables after one more run."""
    bench.say(f"run {number + 1}")
    kernels = ("layer_norm", "--budget", "20s") if bench.small else KERNELS
    command = [sys.executable, "-m", "kernelwright", "tune", "--device", "cpu", "--again", *kernels]
    variables = {"PYTHONPATH": str(project.site_scons), "KERNELWRIGHT_CACHE_DIR": str(bench.work / "tuner")}
    printed = run(command, project.folder, variables).output
    paths = sorted({word for line in printed.splitlines() for word in line.split() if word.endswith(".json")})
    return {key: point for path in paths for key, point in _answers(json.loads((project.folder / path).read_text()))}


def _answers(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (f"{table['kernel']} {json.dumps([config['config'], row['sizes']], sort_keys=True)}", json.dumps(row["tune"]))
        for config in table["configs"]
        for row in config["evidence"]
    ]


def _row(what: str, pairs: Sequence[tuple[Answers, Answers]], kernel: str, target: Target | None) -> Row:
    """The part of the answers of a kernel, or of all, that are other ones than in the run before."""
    both = [(old[key], new[key]) for old, new in pairs for key in old.keys() & new.keys() if key.startswith(kernel)]
    changed = sum(old != new for old, new in both)
    return Row(what, "%", round(100 * changed / max(1, len(both)), 1), {}, target, f"{changed} of {len(both)} answers")
