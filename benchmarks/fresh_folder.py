"""``scons`` in a fresh folder with a full build cache, as in every job of CI, beside ``scons`` with nothing to do.

A fresh folder is a checkout in a new place, in which nothing was built. What one round has made stays until the end:
ext4 does not use the inodes of removed files again for minutes, and looks for others one by one. TileLang's peer is a
process that compiles one kernel with a full cache.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import count

from .against_tilelang import CONFIGS, products
from .harness import ROOT, Bench, BenchmarkError, Finished, Result, Row, Skip, Target, interleave, median, walls
from .projects import Project

LARGEST = 3.0
"""Null builds that a fresh folder may take."""

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("library", env.Glob("kernels/*.py")))
"""

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = [{archs}]
cache_dir = "{cache}"
"""

ONE = ("saxpy.py",)
ARCHS = {"one kernel": '"x86-64-v3", "sm_90a"', "library": '"x86-64-v3", "sm_80", "sm_90a", "compute_80"'}
"""What is built -> the archs that it is built for."""


class Checkouts:
    """Checkouts of one project that share a build cache, which the first of them has filled.

    Arguments:
        bench: what the benchmark was told.
        what: ``one kernel``, or the ``library`` of this repository.
    """

    def __init__(self, bench: Bench, what: str) -> None:
        self._bench = bench
        self._what = what
        self._top = bench.work / f"fresh-{what.replace(' ', '-')}"
        self._numbers = count()
        shutil.rmtree(self._top, ignore_errors=True)
        self.first = self._checkout()
        bench.say(f"filling the build cache: {what}")
        self.first.scons(f"-j{bench.jobs}")

    def null(self) -> Finished:
        """Nothing to do."""
        done = self.first.scons(f"-j{self._bench.jobs}")
        _require(done, "0 built")
        return done

    def fresh(self) -> Finished:
        """A new checkout, with the cache full."""
        done = self._checkout().scons(f"-j{self._bench.jobs}")
        built, cached = map(int, re.findall(r"(\d+) built \((\d+) from the cache\)", done.output)[-1])
        if built - cached != 1:  # the package is assembled
            raise BenchmarkError(f"{built - cached} stages ran in a fresh folder whose cache is full\n{done.output}")
        return done

    def _checkout(self) -> Project:
        folder = self._top / str(next(self._numbers))
        kernels = folder / "kernels"
        kernels.mkdir(parents=True)
        for path in sorted((ROOT / "kernels").glob("*.py")):
            if self._what == "library" or path.name in ONE:
                shutil.copy(path, kernels)
        (folder / "SConstruct").write_text(SCONSTRUCT)
        settings = SETTINGS.format(archs=ARCHS[self._what], cache=self._top / "cache")
        (folder / "pyproject.toml").write_text(settings)
        return Project(folder, "library", self._bench.site_scons)


def measure(bench: Bench) -> Result:
    """Measure both projects, and TileLang where it is installed."""
    rows, details, skipped = [], {}, []
    for what in ("one kernel",) if bench.small else ARCHS:
        checkouts = Checkouts(bench, what)
        runs = interleave(bench.rounds_or(7), {"fresh": checkouts.fresh, "null": checkouts.null}, warm_up=1)
        rows += _rows(what, runs)
        details[what] = {"wall_s": walls(runs), "cpu_s": {name: [done.cpu_s for done in runs[name]] for name in runs}}
    try:
        rows.append(_tilelang(bench))
    except Skip as reason:
        skipped.append(str(reason))
    return Result(rows, details, skipped)


def _rows(what: str, runs: dict[str, list[Finished]]) -> list[Row]:
    units: dict[str, Callable[[Finished], float]] = {"wall": lambda done: done.wall_s, "CPU": lambda done: done.cpu_s}
    return [
        Row(
            f"fresh folder, full cache, {what}: {unit} time",
            "s",
            median(map(value, runs["fresh"])),
            {"null build": median(map(value, runs["null"]))},
            Target(LARGEST, "ratio"),
        )
        for unit, value in units.items()
    ]


def _tilelang(bench: Bench) -> Row:
    """What a process of TileLang takes for one kernel that its cache has; its own fresh folder."""
    tilelang = products(bench, CONFIGS[:1])
    checkouts = Checkouts(bench, "one kernel")
    tilelang.run()
    runs = interleave(bench.rounds_or(5), {"ours": checkouts.fresh, "TileLang": tilelang.run}, warm_up=1)
    theirs = {"TileLang": median(done.wall_s for done in runs["TileLang"])}
    ours = median(done.wall_s for done in runs["ours"])
    return Row("fresh folder, full cache, one kernel", "s", ours, theirs, None, "a process that has it in its cache")


def _require(done: Finished, text: str) -> None:
    if text not in done.output:
        raise BenchmarkError(f"a build said nothing of {text!r}\n{done.output}")
