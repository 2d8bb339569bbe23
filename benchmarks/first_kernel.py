"""The first kernel: ``scons`` with an empty build folder, one kernel for the CPU and sm_90a, beside TileLang's first.

The tools were probed before, and their headers read, as they are on a machine where something was built. Whole
processes are measured, of ours and of TileLang with an empty cache, and ``python -c "import tvm"`` as if PyTorch were
not installed. Rows without a bound are of builds that read the headers, too.
"""

from __future__ import annotations

import shutil
import sys
from itertools import count
from pathlib import Path

from .against_tilelang import CONFIGS, products
from .fresh_folder import ONE, SCONSTRUCT
from .harness import ROOT, Bench, BenchmarkError, Finished, Result, Row, Skip, Target, interleave, median, run, walls
from .projects import Project

OF_TILELANG, OF_IMPORT = 0.35, 2.0
"""What it may take, of TileLang's first kernel and of the import of TVM."""

IMPORT = "import sys; sys.modules['torch'] = None; import tvm"
"""TVM imports PyTorch where that is installed, which takes several times as long as the rest."""

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_90a"]
"""


STATE = Path("build", ".kernelwright")

KNOWN = ("toolchain.json", "headers")
"""What a build finds out of the tools."""


class FirstKernel:
    """Empty projects with one kernel, in which nothing but the tools is known."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._top = bench.work / "first-kernel"
        self._numbers = count()
        shutil.rmtree(self._top, ignore_errors=True)
        self._probed = self._project(())
        bench.say("probing the tools")
        self._scons(self._probed)

    def build(self) -> Finished:
        """Build one kernel in a new folder."""
        return self._scons(self._project(KNOWN))

    def build_without_headers(self) -> Finished:
        """The same where only the answers of the tools are known."""
        return self._scons(self._project(KNOWN[:1]))

    def _scons(self, project: Project) -> Finished:
        done = project.scons(f"-j{self._bench.jobs}")
        if "from the cache" in done.output:
            raise BenchmarkError(f"a first kernel came out of a cache\n{done.output}")
        return done

    def _project(self, known: tuple[str, ...]) -> Project:
        folder = self._top / str(next(self._numbers))
        (folder / "kernels").mkdir(parents=True)
        for name in ONE:
            shutil.copy(ROOT / "kernels" / name, folder / "kernels")
        (folder / "SConstruct").write_text(SCONSTRUCT)
        (folder / "pyproject.toml").write_text(SETTINGS)
        (folder / STATE).mkdir(parents=True)
        for path in (self._probed.folder / STATE / name for name in known):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / STATE / path.name)
        return Project(folder, "library", self._bench.site_scons)


def measure(bench: Bench) -> Result:
    """Measure the first kernel and its peers."""
    first, skipped = FirstKernel(bench), []
    actions = {
        "ours": first.build,
        "ours, reading headers": first.build_without_headers,
        "import tvm": lambda: run([sys.executable, "-c", IMPORT], bench.work),
    }
    try:
        actions["TileLang"] = products(bench, CONFIGS[:1]).cold
    except Skip as reason:
        skipped.append(str(reason))
    bench.say(f"first kernels: {', '.join(actions)}")
    runs = interleave(bench.rounds_or(7), actions, warm_up=1)
    peers = {"TileLang": Target(OF_TILELANG, "ratio"), "import tvm": Target(OF_IMPORT, "ratio")}
    rows = [_row(runs, "ours", peer, target) for peer, target in peers.items()]
    rows += [_row(runs, "ours, reading headers", peer, None) for peer in peers]
    cpu = {name: [round(done.cpu_s, 4) for done in listed] for name, listed in runs.items()}
    return Result([row for row in rows if row], {"wall_s": walls(runs), "cpu_s": cpu}, skipped)


def _row(runs: dict[str, list[Finished]], ours: str, peer: str, target: Target | None) -> Row | None:
    if peer not in runs:
        return None
    our_s, their_s = (median(done.wall_s for done in runs[name]) for name in (ours, peer))
    what = f"first kernel, CPU and sm_90a, against {peer}" + ours.removeprefix("ours")
    note = "the whole process; nothing is cached but what is known of the tools"
    return Row(what, "s", our_s, {peer: their_s}, target, note)
