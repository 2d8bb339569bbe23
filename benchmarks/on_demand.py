"""Kernels compiled on demand, warm and cold: against a built package, ``import tvm`` and TileLang.

The kernels that are called are the library's saxpy and softmax, on the CPU. The eight matrix products are those of the
benchmark ``tilelang``: for sm_90a, compiled and loaded, and not called, because without a GPU TileLang cannot call one.
Cold is an empty cache, but for what is known of the tools; so it is with TileLang's. Nothing of a build is near.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .against_tilelang import CONFIGS, DEFINITION, TileLang, products
from .harness import CHILDREN, ROOT, Bench, BenchmarkError, Finished, Result, Row, Skip, Target, interleave, median, run
from .projects import Project, tool_path

LARGEST_WARM_MS = 60.0
"""What a first call may take, warm, beyond that of a built package."""

PROCESSES = 8
"""How many processes begin at once."""

KEPT = ("toolchain.json", "CACHEDIR.TAG")
"""What an empty cache still has: the tools, probed."""

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_90a"]
host_compiler = "{compiler}"
"""

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("library", ["kernels/saxpy.py"], targets=["llvm"]))
"""

COMPILER = """\
#!/bin/sh
echo "$*" >> {log}
exec {compiler} "$@"
"""
"""A C compiler that lists its runs."""

WARM = "NumPy is imported before"
FIRST_NOTE = "from the start of the process"

FIRST = ["saxpy", {}]
SECOND = ["softmax", {"columns": 1000, "dtype": "float32"}]
THIRD = ["softmax", {"columns": 4096, "dtype": "float32"}]


@dataclass(frozen=True)
class OnDemand:
    """A project without a build, with a cache of its own.

    Arguments:
        bench: what the benchmark was told.
        folder: the project; its cache is beside it.
    """

    bench: Bench
    folder: Path

    @property
    def cache(self) -> Path:
        """The cache folder."""
        return self.folder.with_name(f"{self.folder.name}-cache")

    @property
    def log(self) -> Path:
        """Where the C compiler lists its runs."""
        return self.folder.with_name(f"{self.folder.name}-compiles.txt")

    def write(self) -> None:
        """Write the project, and the C compiler."""
        kernels = self.folder / "kernels"
        shutil.rmtree(self.folder, ignore_errors=True)
        kernels.mkdir(parents=True)
        for name in ("saxpy.py", "softmax.py", "_common.py", "_rows_on_cuda.py"):
            shutil.copy(ROOT / "kernels" / name, kernels)
        shutil.copy(ROOT / "kernels" / "gemm.py", kernels / "_gemm.py")
        (kernels / "products.py").write_text(DEFINITION.format(configs=CONFIGS))
        compiler = self.folder / "cc"
        compiler.write_text(COMPILER.format(log=self.log, compiler=tool_path(self.bench.site_scons, "cc")))
        compiler.chmod(0o755)
        (self.folder / "pyproject.toml").write_text(SETTINGS.format(compiler=compiler))

    def empty(self) -> None:
        """Remove all from the cache but what is known of the tools."""
        self.log.unlink(missing_ok=True)
        for path in self.cache.iterdir() if self.cache.exists() else ():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in KEPT:
                path.unlink()

    def call(self, *jobs: list[Any]) -> Finished:
        """Find, load and call kernels in a new process."""
        return self._child("load", self.folder / "kernels", list(jobs))

    def products(self, configs: list[dict[str, int]]) -> Finished:
        """Compile matrix products in a new process."""
        return self._child("products", self.folder / "kernels" / "products.py", [self.bench.jobs, configs])

    def cold(self, act: Callable[[], Finished]) -> Finished:
        """Do something with an empty cache."""
        self.empty()
        return act()

    def at_once(self, count: int) -> dict[str, Any]:
        """Start processes that call the same kernel, with an empty cache: their time, and how often it was compiled."""
        self.empty()
        with ThreadPoolExecutor(count) as threads:
            start = time.perf_counter()
            runs = list(threads.map(lambda _: self.call(SECOND), range(count)))
            wall_s = time.perf_counter() - start
        made = sum(cached is False for done in runs for cached in said(done)["cached"])
        compiles = self.log.read_text().count("softmax/wrapper.c")
        return {"wall_s": wall_s, "made": made, "compiles": compiles, "cpu_s": sum(done.cpu_s for done in runs)}

    def _child(self, way: str, place: Path, jobs: list[Any]) -> Finished:
        env = {"PYTHONPATH": str(self.bench.site_scons), "KERNELWRIGHT_CACHE_DIR": str(self.cache)}
        return child(self.bench, env, self.folder, way, place, jobs)


def child(bench: Bench, env: Mapping[str, str], folder: Path, way: str, place: Path | str, jobs: list[Any]) -> Finished:
    """Run the program in ``children``; see there."""
    command = [sys.executable, CHILDREN / "on_demand.py", way, str(time.monotonic()), place, json.dumps(jobs)]
    return run([*command, *without_torch(bench)], folder, env)


def without_torch(bench: Bench) -> list[str]:
    """In small mode PyTorch is not imported, if it is installed, because that takes long."""
    return ["without-torch"] if bench.small else []


def said(done: Finished) -> dict[str, Any]:
    """What the program has printed."""
    return dict(json.loads(done.output.splitlines()[-1]))


def measure(bench: Bench) -> Result:
    """Measure each line of the table."""
    project = OnDemand(bench, bench.work / "on-demand")
    project.write()
    package = _package(bench, project)
    bench.say("the first kernel of each kind, which also probes the tools")
    project.call(FIRST, SECOND)
    project.products(CONFIGS[:1])
    rows, details, skipped = [], {}, []
    for part in (_warm, _cold, _at_once, _calls):
        more, found = part(bench, project, package)
        rows += more
        details |= found
    try:
        tilelang = [products(bench, configs) for configs in (_configs(bench), CONFIGS[:1])]
    except Skip as reason:
        tilelang = []
        skipped.append(str(reason))
    more, found = _products(bench, project, tilelang)
    return Result([*rows, *more], {**details, **found}, skipped)


def _configs(bench: Bench) -> list[dict[str, int]]:
    return CONFIGS[:1] if bench.small else CONFIGS


def _package(bench: Bench, project: OnDemand) -> Project:
    """The package with saxpy, built elsewhere, so that nothing compiled on demand comes from the build's cache."""
    folder = bench.work / "on-demand-built"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(project.folder / "kernels", folder / "kernels")
    shutil.copy(project.folder / "pyproject.toml", folder)
    (folder / "SConstruct").write_text(SCONSTRUCT)
    package = Project(folder, "library", bench.site_scons)
    bench.say("building the package")
    package.build(bench.jobs)
    return package


def _warm(bench: Bench, project: OnDemand, package: Project) -> tuple[list[Row], dict[str, Any]]:
    """The first call in a new process, which finds its kernel compiled."""
    build = str(package.folder / "build")

    def from_package() -> Finished:
        return child(bench, {"PYTHONPATH": build}, package.folder, "package", package.package, [FIRST])

    actions = {"on demand": lambda: project.call(FIRST), "package": from_package}
    bench.say("warm first calls")
    runs = interleave(bench.rounds_or(21), actions, warm_up=0 if bench.small else 2)
    if not all(said(done)["cached"] == [True] for done in runs["on demand"]):
        raise BenchmarkError("a kernel was compiled that should have been in the cache")
    ms = {name: [1e3 * said(done)["seconds"][0] for done in listed] for name, listed in runs.items()}
    ours, theirs = median(ms["on demand"]), median(ms["package"])
    over = median(a - b for a, b in zip(ms["on demand"], ms["package"], strict=True))
    rows = [
        Row(
            "warm first call: import, find, load, call", "ms", ours, {"package": theirs}, None, "NumPy is there before"
        ),
        Row("the same, over the package's", "ms", over, {}, Target(LARGEST_WARM_MS)),
    ]
    return rows, {"warm_ms": ms}


def _cold(bench: Bench, project: OnDemand, package: Project) -> tuple[list[Row], dict[str, Any]]:
    """The first kernels of a process with an empty cache."""
    actions = {
        "on demand": lambda: project.cold(lambda: project.call(FIRST, SECOND, THIRD)),
        "import tvm": lambda: run([sys.executable, "-c", "import tvm"], bench.work),
    }
    bench.say("cold kernels for the CPU")
    runs = interleave(bench.rounds_or(7), actions, warm_up=0 if bench.small else 1)
    times = [said(done) for done in runs["on demand"]]
    if any(any(one["cached"]) for one in times):
        raise BenchmarkError("a kernel that should have been compiled was in the cache")
    tvm = {"import tvm": median(done.wall_s for done in runs["import tvm"])}
    first = [one["begin_s"] + one["seconds"][0] for one in times]
    others = [[one["seconds"][number] for one in times] for number in (1, 2)]
    rows = [
        Row(
            "cold, first CPU kernel, until it has run",
            "s",
            median(first),
            tvm,
            Target(1.8, "ratio"),
            "the whole process",
        ),
        Row("cold, the next in the process, of another file", "s", median(others[0]), tvm, Target(0.5, "ratio")),
        Row("cold, the next, another config of that", "s", median(others[1]), tvm, Target(0.5, "ratio")),
    ]
    details = {"first": first, "another_file": others[0], "another_config": others[1]}
    return rows, {"cold_s": {**details, "import_tvm": [done.wall_s for done in runs["import tvm"]]}}


def _at_once(bench: Bench, project: OnDemand, package: Project) -> tuple[list[Row], dict[str, Any]]:
    """Many processes that want the same kernel, which nobody has compiled."""
    count = 2 if bench.small else PROCESSES
    bench.say(f"{count} processes at once, cold")
    actions = {"all": lambda: project.at_once(count), "one": lambda: project.at_once(1)}
    found = interleave(bench.rounds_or(5), actions, warm_up=0 if bench.small else 1)
    walls = {name: median(one["wall_s"] for one in listed) for name, listed in found.items()}
    compiles = max(max(one["made"], one["compiles"]) for one in found["all"])
    what = f"{count} processes at once, cold, the same kernel"
    rows = [
        Row(what, "s", walls["all"], {"one process": walls["one"]}, Target(1.3, "ratio")),
        Row("compiles of that kernel, at most in a round", "", compiles, {}, Target(1.0)),
    ]
    return rows, {"at_once": found}


def _calls(bench: Bench, project: OnDemand, package: Project) -> tuple[list[Row], dict[str, Any]]:
    """Calls again and again."""
    command = [sys.executable, CHILDREN / "on_demand_calls.py", project.folder / "kernels", package.folder / "build"]
    command += [str(100 if bench.small else 20000), *without_torch(bench)]
    env = {"PYTHONPATH": str(bench.site_scons), "KERNELWRIGHT_CACHE_DIR": str(project.cache)}
    bench.say("repeated calls")
    found = interleave(bench.rounds_or(5), {"calls": lambda: run(command, project.folder, env)})["calls"]
    ns = [said(done) for done in found]
    peer = {"package": median(one["package"] for one in ns)}
    what = "call of saxpy, 8 elements, NumPy"
    rows = [
        Row(f"{what}, compiled", "ns", median(one["compiled"] for one in ns), peer, Target(1.05, "ratio")),
        Row(f"{what}, eager", "ns", median(one["eager"] for one in ns), peer),
    ]
    return rows, {"calls_ns": ns}


def _products(bench: Bench, project: OnDemand, tilelang: list[TileLang]) -> tuple[list[Row], dict[str, Any]]:
    """Matrix products for a GPU that need not be there."""
    configs = _configs(bench)
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.cold(lambda: project.products(configs)),
        "warm": lambda: project.products(configs),
        "one, warm": lambda: project.products(CONFIGS[:1]),
    }
    if tilelang:
        all_of_them, one = tilelang
        peers = {"cold": all_of_them.cold, "warm": all_of_them.run, "one, warm": one.run}
        actions |= {f"TileLang {name}": act for name, act in peers.items()}
    bench.say(f"matrix products, {len(configs)}: {', '.join(actions)}")
    runs = interleave(bench.rounds_or(5), actions, warm_up=0 if bench.small else 1)
    walls = {name: [done.wall_s for done in listed] for name, listed in runs.items()}
    note = "compiled and loaded, not called; whole processes, with their imports"
    names = {
        "cold": (f"matrix products for sm_90a, {len(configs)}, cold", 1 / 3),
        "warm": ("the same, warm", 1 / 5),
        "one, warm": ("the first of them alone, warm", 1 / 5),
    }
    rows = [
        Row(what, "s", median(walls[name]), _peer(walls, name), Target(bound, "ratio"), note)
        for name, (what, bound) in names.items()
    ]
    return rows, {"products_s": walls}


def _peer(walls: Mapping[str, list[float]], name: str) -> dict[str, float]:
    theirs = walls.get(f"TileLang {name}")
    return {"TileLang": median(theirs)} if theirs else {}
