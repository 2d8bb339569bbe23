"""A matrix product in Triton, four variants for sm_90a: Triton's own compilation and cache against our build.

Both compile one function in two dtypes, for data and sizes that are multiples of 16 and for all, with the same Triton
and no GPU. Cold is a process that starts with empty caches, its imports included. Warm is a second one: for Triton the
same program again; for us a build with nothing to do, and then a process that imports the package and gets hold of all
variants. PyTorch is hidden from that process, because tvm-ffi would import it, and Triton alone does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from .harness import (
    CHILDREN,
    Bench,
    Finished,
    Result,
    Row,
    Skip,
    interleave,
    kib,
    median,
    median_wall,
    phases,
    run,
    walls,
)
from .projects import Project

FUNCTION = """\
import triton
import triton.language as tl

BLOCKS = {"M": 128, "N": 128, "K": 32}


@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    columns = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        inner = first + tl.arange(0, K)
        left = tl.load(a + rows * k + inner[None, :], mask=(rows < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns, mask=(inner[:, None] < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + rows * n + columns, total.to(c.dtype.element_ty), mask=(rows < m) & (columns < n))
"""

DEFINITION = """\
from _matmul import BLOCKS, matmul_kernel
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@kernel(frontend="triton", configs=grid(dtype=["float16", "bfloat16"]), specialize="auto", outputs=["c"])
def products(dtype):
    tensors = {name: Tensor(dtype, *shape) for name, shape in (("a", "mk"), ("b", "kn"), ("c", "mn"))}
    sizes = {name: Size(name) for name in "mnk"}
    return Program(matmul_kernel, **tensors, **sizes, **BLOCKS, grid=[ceildiv("m", 128), ceildiv("n", 128)])
"""

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("products", env.Glob("kernels/*.py"), targets=["cuda"], archs=["sm_90a"]))
"""


def measure(bench: Bench) -> Result:
    """Compile cold and warm with both, in turn."""
    if find_spec("triton") is None:
        raise Skip("Triton is not installed: pip install 'triton==3.9.*'")
    project, triton = _project(bench), _Triton(bench)
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.build_anew(bench.jobs),
        "warm": project.scons,
        "use": lambda: project.use("products"),
        "Triton cold": lambda: triton.cold(project),
        "Triton warm": lambda: triton.run(project),
    }
    bench.say(f"four variants of a matrix product in Triton: {', '.join(actions)}")
    return _result(interleave(bench.rounds_or(3), actions, warm_up=0 if bench.small else 1), project, triton)


class _Triton:
    """Triton alone, with a cache of its own."""

    def __init__(self, bench: Bench) -> None:
        self._work = bench.work
        self._number = 0

    @property
    def cache(self) -> Path:
        """The cache of the latest cold run."""
        return self._work / f"triton-cache-{self._number}"

    def cold(self, project: Project) -> Finished:
        """Compile with an empty cache."""
        self._number += 1
        return self.run(project)

    def run(self, project: Project) -> Finished:
        """Compile, or read from the cache."""
        program = [sys.executable, CHILDREN / "triton_matmul.py", project.folder / "kernels"]
        return run(program, self._work, {"TRITON_CACHE_DIR": str(self.cache), "HOME": str(self._work)})


def _project(bench: Bench) -> Project:
    folder = bench.work / "triton"
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("SConstruct", SCONSTRUCT),
        ("kernels/_matmul.py", FUNCTION),
        ("kernels/products.py", DEFINITION),
    ):
        (folder / name).write_text(text)
    return Project(folder, "products", bench.site_scons)


def _result(runs: dict[str, list[Finished]], project: Project, triton: _Triton) -> Result:
    warm = median(build.wall_s + use.wall_s for build, use in zip(runs["warm"], runs["use"], strict=True))
    again, cache = median_wall(runs["Triton warm"]), kib([triton.cache])
    note = "Triton alone makes device code; we: also the library that calls it, for each variant, and the package"
    rows = [
        Row(
            "four variants, cold",
            "s",
            median_wall(runs["cold"]),
            {"Triton": median_wall(runs["Triton cold"])},
            None,
            note,
        ),
        Row(
            "four variants, warm",
            "s",
            warm,
            {"Triton": again},
            None,
            "a build with nothing to do, and a process that loads all",
        ),
        Row("the same without the build", "s", median_wall(runs["use"]), {"Triton": again}, None, ""),
        Row(
            "left on disk",
            "KiB",
            kib(project.left),
            {"Triton": cache},
            None,
            "we: the build folder with all its records",
        ),
        Row(
            "what a user needs",
            "KiB",
            kib([project.folder / "build/products"]),
            {"Triton": cache},
            None,
            "Triton: and 999 MB of itself",
        ),
    ]
    theirs = {name: phases(runs[name]) for name in ("Triton cold", "Triton warm")}
    return Result(rows, {"walls": walls(runs), "triton": theirs}, [])
