"""What the recipes of docs/ci.md cost: one machine, an empty and a full cache; shards and their merge; a cluster.

Each run is a checkout in a folder of its own. The compilers are stand-ins, so all seconds are those of Kernelwright and
of TVM: those of the compilers, which are the same in each recipe, come on top. The kernels of eight shards are built by
one machine, and the cache that it has filled is merged in place of theirs: the entries are the same. The cluster is on
this machine; what is measured is the job that uses it, without the scheduler and the worker.

All of it takes about 45 minutes on two cores that nobody else uses, most of it for 5000 kernels.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from .harness import ROOT, Bench, BenchmarkError, Finished, Result, Row
from .projects import Project, stand_in, write_generated

HAS_DASK = importlib.util.find_spec("distributed") is not None
COUNTS = (50, 1000, 5000)
SMALL = (4,)
SHARDS = 8
THREADS = 2
"""Of the worker of the cluster."""

NOTE = "one of eight shards, on its own machine"
CLUSTER = "a cluster, empty cache"
RECIPES = {
    "one machine, empty cache": "",
    "one machine, full cache": "",
    "one machine, full cache, one kernel edited": "",
    "one shard, empty cache": NOTE,
    "merge of all shards": "",
    CLUSTER: "the job, without scheduler and workers",
}
"""What is measured, in order, with a note."""


def measure(bench: Bench) -> Result:
    """Measure each number of kernels once: only proportions of minutes are of interest."""
    rows, details = [], {}
    for kernels in SMALL if bench.small else COUNTS:
        machine = _Machines(bench, kernels)
        runs = machine.runs()
        rows += [row for what, done in runs.items() for row in _rows(kernels, what, done)]
        walls = {what: {"wall_s": done.wall_s, "cpu_s": done.cpu_s} for what, done in runs.items()}
        details[str(kernels)] = {**walls, "cache_bytes": machine.sizes}
    return Result(rows, details, [] if HAS_DASK else [f"{CLUSTER}: it needs the extra fleet"])


def _rows(kernels: int, what: str, done: Finished) -> list[Row]:
    note = RECIPES[what]
    return [
        Row(f"{kernels} kernels, {what}: wall time", "s", done.wall_s, note=note),
        Row(f"{kernels} kernels, {what}: CPU time", "s", done.cpu_s, note=note),
    ]


class _Machines:
    """Checkouts of one project of generated kernels."""

    def __init__(self, bench: Bench, kernels: int) -> None:
        self._bench = bench
        self._kernels = kernels
        self._top = bench.work / f"ci-{kernels}"
        self._numbers = count()
        self.sizes: dict[str, int] = {}
        shutil.rmtree(self._top, ignore_errors=True)

    def runs(self) -> dict[str, Finished]:
        """Do what the recipes do."""
        whole, shard = self._top / "whole", self._top / "shard"
        self._bench.say(f"{self._kernels} kernels: one machine and an empty cache")
        runs = [self._checkout().scons(self._jobs, f"CACHE_DIR={whole}")]
        self.sizes["whole"] = _size(whole)
        self._bench.say(f"{self._kernels} kernels: a full cache, an eighth, and the merge")
        runs.append(self._checkout().scons(self._jobs, f"CACHE_DIR={whole}"))
        runs.append(self._edited().scons(self._jobs, f"CACHE_DIR={whole}"))
        runs.append(self._checkout().scons(self._jobs, f"--shard=1/{SHARDS}", f"CACHE_DIR={shard}"))
        self.sizes["shard"] = _size(shard)
        shutil.copy(shard / "shard.json", whole)
        runs.append(self._checkout().scons(self._jobs, f"--merge={whole}"))
        _require_cached(runs[1])
        _require_cached(runs[4])
        if HAS_DASK:
            self._bench.say(f"{self._kernels} kernels: a cluster and an empty cache")
            runs.append(self._on_cluster())
        return dict(zip(RECIPES, runs, strict=False))

    def _on_cluster(self) -> Finished:
        """Build with compilers on a cluster; as many runs are in flight as docs/cluster.md says."""
        from .cluster import cluster

        folder = self._top / "cluster"
        folder.mkdir()
        variables = {"PYTHONPATH": f"{self._bench.site_scons}:{ROOT}", "COMPILERS": str(stand_in(self._bench))}
        with cluster(1, THREADS, folder, "benchmarks.children.compilers_worker", **variables) as address:
            done = self._checkout().scons(f"-j{2 * THREADS}", f"--cluster={address}", f"CACHE_DIR={self._top}/other")
        if "running it here" in done.output or "going on without it" in done.output:
            raise BenchmarkError(f"the cluster did not do all runs\n{done.output[-2000:]}")
        return done

    @property
    def _jobs(self) -> str:
        return f"-j{self._bench.jobs}"

    def _checkout(self) -> Project:
        folder = self._top / str(next(self._numbers))
        write_generated(folder, self._kernels, stand_in(self._bench))
        return Project(folder, "many", self._bench.site_scons)

    def _edited(self) -> Project:
        project = self._checkout()
        file = project.folder / "kernels" / "k0000.py"
        file.write_text(file.read_text().replace("x[i] * 2.0", "x[i] * 3.0"))
        return project


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _require_cached(done: Finished) -> None:
    """Raise a BenchmarkError if more than the package was made anew."""
    counts: Any = re.search(r"(\d+) built \((\d+) from the cache\)", done.output)
    if counts is None or int(counts[1]) - int(counts[2]) != 1:
        raise BenchmarkError(f"stages ran whose outputs the cache should have\n{done.output[-2000:]}")
