"""Eight configs of a matrix product for sm_90a: TileLang's parallel compilation and cache against our build.

Both make tiles of block_m x 128 x 32 in float16 on the tensor cores, with the same nvcc and no GPU. Cold is a process
that starts with empty caches, its imports included. Warm is a second one: for TileLang the same program again; for us a
build with nothing to do, and then a process that imports the package and gets hold of all eight variants.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import (
    CHILDREN,
    ROOT,
    Bench,
    BenchmarkError,
    Finished,
    Result,
    Row,
    Skip,
    Target,
    interleave,
    kib,
    median,
    median_wall,
    phases,
    run,
    walls,
)
from .projects import Project, tool_path

PINNED = "tilelang==0.1.15"
VARIABLES = ("n", "k", "block_m")
CONFIGS = [{"n": n, "k": k, "block_m": block_m} for n in (1024, 2048) for k in (1024, 2048) for block_m in (64, 128)]

DEFINITION = '''\
from _gemm import _tensor_cores
from kernelwright import kernel


@kernel(configs={configs}, targets=["cuda"], outputs=["c"])
def products(n: int, k: int, block_m: int):
    """c = a @ b for float16, accumulated in float32"""
    return _tensor_cores(n, k, block_m)
'''

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("gemms", env.Glob("kernels/*.py"), targets=["cuda"], archs=["sm_90a"]))
"""


def measure(bench: Bench) -> Result:
    """Compile cold and warm with both, in turn."""
    configs = CONFIGS[:2] if bench.small else CONFIGS
    project = _project(bench, configs)
    skipped = []
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.build_anew(bench.jobs),
        "warm": lambda: project.scons(),
        "use": lambda: project.use("products"),
    }
    tilelang: TileLang | None = None
    try:
        tilelang = products(bench, configs)
        actions |= {"TileLang cold": tilelang.cold, "TileLang warm": tilelang.run}
    except Skip as reason:
        skipped.append(str(reason))
    bench.say(f"{len(configs)} configs of a matrix product: {', '.join(actions)}")
    # In small mode the cold build is slow already, and its first run counts.
    runs = interleave(bench.rounds_or(3), actions, warm_up=0 if bench.small else 1)
    return _result(runs, len(configs), project, tilelang, skipped)


class TileLang:
    """TileLang in an environment of its own, because it needs another tvm-ffi than we do.

    Arguments:
        bench: what the benchmark was told.
        program: one of those in ``children``, which compiles.
        arguments: of the program.

    Raises:
        Skip: there is none, and it could not be installed.
    """

    def __init__(self, bench: Bench, program: str, *arguments: str) -> None:
        self._bench = bench
        self._program = [CHILDREN / f"{program}.py", *arguments]
        self.python = bench.tilelang_python or _install(bench)
        self.cache = bench.work / "tilelang-cache"
        home = bench.work / "tilelang-home"
        home.mkdir(exist_ok=True)
        nvcc = Path(tool_path(bench.site_scons, "nvcc"))
        self._env = {
            "HOME": str(home),
            "CUDA_HOME": str(nvcc.parent.parent),
            "TILELANG_CACHE_DIR": str(self.cache),
        }

    def cold(self) -> Finished:
        """Compile with an empty cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        return self.run()

    def run(self) -> Finished:
        """Compile, or read from the cache."""
        return run([self.python, *self._program], self._bench.work, self._env)


def products(bench: Bench, configs: list[dict[str, int]]) -> TileLang:
    """What compiles matrix products."""
    return TileLang(bench, "tilelang_gemm", json.dumps(configs), str(bench.jobs))


def _install(bench: Bench) -> Path:
    if bench.small:
        raise Skip(f"small mode installs nothing: give --tilelang-python an interpreter that has {PINNED}")
    folder = bench.work / "tilelang-env"
    python = folder / "bin" / "python"
    bench.say(f"installing {PINNED} into an environment of its own; it and PyTorch have 6 GB")
    try:
        if not python.exists():
            run([sys.executable, "-m", "venv", folder], bench.work)
        run([python, "-m", "pip", "install", "-q", PINNED], bench.work)
    except BenchmarkError as error:
        raise Skip(f"{PINNED} could not be installed: {str(error).splitlines()[-1]}") from error
    return python


def _project(bench: Bench, configs: list[dict[str, int]]) -> Project:
    folder = bench.work / "gemms"
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "SConstruct").write_text(SCONSTRUCT)
    (folder / "kernels" / "products.py").write_text(DEFINITION.format(configs=configs))
    shutil.copy(ROOT / "kernels" / "gemm.py", folder / "kernels" / "_gemm.py")
    shutil.copy(ROOT / "kernels" / "_common.py", folder / "kernels")
    return Project(folder, "gemms", bench.site_scons)


def _result(
    runs: dict[str, list[Finished]], count: int, project: Project, tilelang: TileLang | None, skipped: list[str]
) -> Result:
    warm = median(build.wall_s + use.wall_s for build, use in zip(runs["warm"], runs["use"], strict=True))
    shipped = kib([project.folder / "build" / project.package])
    values = {
        f"{count} kernels, cold": ("s", median_wall(runs["cold"]), ""),
        f"{count} kernels, warm": ("s", warm, "a build with nothing to do, and a process that loads all variants"),
        "the same without the build": ("s", median_wall(runs["use"]), "as on a machine that only has the package"),
        "left on disk": ("KiB", kib(project.left), "we: the build folder with all its records"),
        "left on disk for each kernel": ("KiB", kib(project.left) / count, ""),
        "what a user needs": ("KiB", shipped, "we: the package; TileLang: its cache"),
    }
    theirs: dict[str, float] = {}
    details: dict[str, Any] = {"walls": walls(runs), "shipped_kib": shipped, "left_kib": kib(project.left)}
    if tilelang is not None:
        size = kib([tilelang.cache])
        cold, again = median_wall(runs["TileLang cold"]), median_wall(runs["TileLang warm"])
        theirs = dict(zip(values, (cold, again, again, size, size / count, size), strict=True))
        details |= {"tilelang": {name: phases(runs[name]) for name in ("TileLang cold", "TileLang warm")}}
    rows = [
        Row(what, unit, ours, {"TileLang": theirs[what]} if theirs else {}, Target(1.0, "ratio"), note)
        for what, (unit, ours, note) in values.items()
    ]
    return Result(rows, details, skipped)
