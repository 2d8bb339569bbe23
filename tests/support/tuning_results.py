"""Results of tuning that nobody measured, for the report: spaces, sizes and times from formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.define.tuning import Rule, TableDevice
from kernelwright.state.tuning_result import (
    FOLDER,
    CandidateResult,
    ConfigResult,
    Failure,
    SizeResult,
    TuningResult,
    write_result,
)
from kernelwright.tune.decide import rules_of

GPU = TableDevice("cuda", "sm_90a", "NVIDIA H100 80GB HBM3", 132)
CPU = TableDevice("llvm", "x86-64-v3", "AMD EPYC 9B45", 2)
MEASURED = {"tvm": "0.27.0", "compiler": "nvcc 13.0.88", "driver": "580.1", "policy": "5 rounds"}

Cost = Callable[[Mapping[str, Any], Mapping[str, int]], float]


def grid(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """All combinations of some values, as points."""
    return tuple(dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))


def tuned_config(
    config: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    sizes: Sequence[Mapping[str, int]],
    cost: Cost,
    out: Mapping[int, str] | None = None,
    late: Sequence[int] = (),
    warm: bool = False,
) -> ConfigResult:
    """A config of which the fastest candidate was chosen at each combination of sizes.

    Arguments:
        cost: microseconds of a point at some sizes.
        out: the candidates that failed, and why.
        late: those that there was no time for.
        warm: whether there are times with warm caches, and clocks.
    """
    failed = out or {}
    alive = [number for number in range(len(points)) if number not in failed and number not in late]
    found = [_size(points, at, cost, alive, warm) for at in sizes]
    symbols = tuple(sizes[0])
    rules = rules_of([(size.sizes, size.chosen) for size in found])
    failures = [
        Failure(number, f"slug-{number}", message, f"build/tune/gemm/failed/slug-{number}")
        for number, message in failed.items()
    ]
    return ConfigResult(
        config,
        symbols,
        points[0],
        rules.by,
        tuple(Rule(points[number], upto) for upto, number in rules.ranges),
        tuple(points),
        tuple(found),
        tuple(failures),
        tuple(late),
    )


def _size(
    points: Sequence[Mapping[str, Any]], at: Mapping[str, int], cost: Cost, alive: Sequence[int], warm: bool
) -> SizeResult:
    default = cost(points[0], at)
    candidates = [_candidate(number, cost(points[number], at), default, warm) for number in alive]
    chosen = min(candidates, key=lambda candidate: (candidate.ratio, candidate.number))
    return SizeResult(dict(at), chosen.number, default, tuple(candidates))


def _candidate(number: int, us: float, default: float, warm: bool) -> CandidateResult:
    ratio = us / default
    rounds = 1 if ratio > 2 else 5
    extra = (us * 0.9, (1755, 1980)) if warm else (0.0, ())
    return CandidateResult(number, us, default, round(ratio, 4), 0.012, rounds, *extra)


def result(kernel: str, *configs: ConfigResult, device: TableDevice = GPU) -> TuningResult:
    """The result of a kernel."""
    return TuningResult(kernel, device, MEASURED, f"tuning/{kernel}.json", configs)


def add_result(top: Path, made: TuningResult, device: str = "sm_90a-132") -> Path:
    """Write a result where the tuner does; the path of the file."""
    folder = top / FOLDER / made.kernel / device
    folder.mkdir(parents=True)
    write_result(folder, made)
    return folder / "result.json"
