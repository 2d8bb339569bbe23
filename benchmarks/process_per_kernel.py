"""What the workers save: lowering the library through the pool, against one Python process for each lowering.

The processes are what a compiler driver without workers needs. The bound for the pool is twice the lowerings' own times
plus one import of TVM for each worker.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .harness import Bench, Finished, Result, Row, Target, interleave, median
from .lowerings import Lowering, lowerings_of, write_requests
from .projects import Project, built_library


def measure(bench: Bench) -> Result:
    """Lower through pools and in a process each, and all in one process for the lowerings' own times."""
    project = built_library(bench)
    lowerings = lowerings_of(project)[: 2 if bench.small else None]
    folder = bench.work / "requests"
    folder.mkdir(exist_ok=True)
    everything = folder / "all.jsonl"
    write_requests(everything, [(lowering, None) for lowering in lowerings])
    single = [_single(folder / f"{number}.jsonl", lowering) for number, lowering in enumerate(lowerings)]
    bench.say(f"{len(lowerings)} lowerings through pools, and in a process each")
    runs = interleave(
        bench.rounds_or(3),
        {
            "alone": lambda: _said(bench.child("lower_alone", project.folder, everything)),
            "one": lambda: _said(bench.child("lower_pool", project.folder, everything, "1")),
            "jobs": lambda: _said(bench.child("lower_pool", project.folder, everything, str(bench.jobs))),
        },
    )
    return _result(bench, len(lowerings), runs, _process_each(bench, project, single))


def _single(path: Path, lowering: Lowering) -> Path:
    write_requests(path, [(lowering, None)])
    return path


def _said(done: Finished) -> dict[str, Any]:
    return dict(json.loads(done.output.splitlines()[-1]))


def _process_each(bench: Bench, project: Project, single: list[Path]) -> dict[str, float]:
    """Wall-clock seconds with as many processes at a time as there are jobs, and CPU seconds, of all lowerings."""
    start = time.perf_counter()
    with ThreadPoolExecutor(bench.jobs) as threads:
        done = list(threads.map(lambda path: bench.child("lower_alone", project.folder, path), single))
    return {"wall_s": time.perf_counter() - start, "cpu_s": sum(one.cpu_s for one in done)}


def _result(bench: Bench, count: int, runs: dict[str, list[dict[str, Any]]], each: dict[str, float]) -> Result:
    imported = median(run["import_s"] for run in runs["alone"])
    own = median(sum(run["lower_s"]) for run in runs["alone"])
    walls = {jobs: median(run["wall_s"] for run in runs[name]) for name, jobs in (("one", 1), ("jobs", bench.jobs))}
    rows = [
        Row(
            f"{count} lowerings, -j{jobs}",
            "s",
            wall,
            {"process each": each["wall_s"]} if jobs == bench.jobs else {},
            Target(2 * own + jobs * imported),
        )
        for jobs, wall in walls.items()
    ]
    details = {"runs": runs, "process_each": each, "tvm_import_s": imported, "own_s": own}
    return Result(rows, details)
