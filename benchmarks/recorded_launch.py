"""Launches of recorded functions of Triton: through a package, against Triton's own launcher, without a GPU.

Both launch the same code through a library that stands in for the driver, so what is timed is the work of the host:
arguments, the choice of the code, and the call of the driver. The start of a process is the time from the first import
to the return of the first launch; PyTorch is imported before it, and Triton finds all in its cache.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .harness import CHILDREN, ROOT, Bench, Result, Row, Skip, Target, interleave, median, run
from .projects import Project

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("launches", env.Glob("kernels/*.py")))
"""

DEFINITION = """\
from kernelwright.triton import recorded

kernels = recorded("calls.json")
"""

PROGRAM = """\
import triton
import triton.language as tl


@triton.jit
def eight(y, x, z, a, b, c, d, e, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * a + tl.load(z + at) * b + c + d + e)


@triton.jit
def twelve(y, x, z, w, a, b, c, d, e, f, g, h, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * a + tl.load(z + at) * b + tl.load(w + at) + c + d + e + f + g + h)


if __name__ == "__main__":
    import torch

    tensors = [torch.zeros(1024) for _ in range(4)]
    eight[(4,)](*tensors[:3], 0.5, 2.0, 1000, 1024, 7, BLOCK=256)
    twelve[(4,)](*tensors, 0.5, 2.0, 1000, 1024, 7, 5, 6, 64, BLOCK=256)
"""

WHAT = {"eight": "3 tensors, 5 numbers and a constant", "twelve": "4 tensors, 8 numbers and a constant"}
NEEDED = ("torch", "triton")

LAUNCH, START = Target(0.25, "ratio"), Target(0.15, "ratio")
"""A launch through a package against one through Triton, and the start of a process."""


def measure(bench: Bench) -> Result:
    """Record a program, build its package, and launch through both in one process, in turn."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Skip(f"{' and '.join(missing)} not installed: pip install -e '.[triton]' --group frameworks")
    project = _built(bench)
    bench.say("launches")
    actions = {what: partial(_child, bench, project, what) for what in _MEASURED}
    found = interleave(bench.rounds_or(5), actions, warm_up=1)
    times = {name: median(sample[name] for sample in found["launches"]) for name in found["launches"][0]}
    return Result(_rows(times, median(found["package"]), median(found["triton"])), {"ns and ms": found})


_MEASURED = ("launches", "package", "triton")


def _child(bench: Bench, project: Project, what: str) -> Any:
    folder = project.folder
    path = ":".join(map(str, (folder / "build", folder, bench.site_scons)))
    env = {
        "PYTHONPATH": path,
        "KERNELWRIGHT_CUDA_DRIVER": str(folder / "driver/libcuda.so.1"),
        "LD_LIBRARY_PATH": str(folder / "driver"),
        "TRITON_LIBCUDA_PATH": str(folder / "driver"),
        "TRITON_CACHE_DIR": str(folder / "triton-cache"),
        "STANDIN_CAPABILITY": "90",
        "STANDIN_SHARED": "232448",
    }
    done = run([sys.executable, CHILDREN / "recorded_launch.py", what, folder / "on_gpu.so"], folder, env)
    return json.loads(done.output.splitlines()[-1])


def _built(bench: Bench) -> Project:
    project = Project(bench.work / "launches", "launches", bench.site_scons)
    shutil.rmtree(project.folder, ignore_errors=True)
    (project.folder / "kernels").mkdir(parents=True)
    (project.folder / "driver").mkdir()
    files = {"SConstruct": SCONSTRUCT, "pyproject.toml": SETTINGS, "kernels/launches.py": DEFINITION}
    for name, text in (files | {"launched.py": PROGRAM}).items():
        Path(project.folder, name).write_text(text)
    _compile(project.folder, "driver/libcuda.so.1", ROOT / "site_scons/kernelwright/testing/cuda.c")
    _compile(project.folder, "on_gpu.so", ROOT / "benchmarks/on_gpu.c")
    words = ("record", "launched.py", "--output", "kernels/calls.json", "--arch", "sm_90a")
    run([sys.executable, "-m", "kernelwright", *words], project.folder, {"PYTHONPATH": str(bench.site_scons)})
    project.build(bench.jobs)
    return project


def _compile(folder: Path, library: str, source: Path) -> None:
    from tvm_ffi import libinfo

    include = f"-I{libinfo.find_dlpack_include_path()}"
    run(["cc", "-O2", "-shared", "-fPIC", include, source, "-o", library], folder)


def _rows(times: dict[str, float], package: float, triton: float) -> list[Row]:
    rows = []
    for name, what in WHAT.items():
        peers = {"Triton": times[f"{name} triton"], "the library alone": times[f"{name} library"]}
        rows.append(Row(f"a launch with {what}", "ns", times[f"{name} package"], peers, LAUNCH))
    note = "from the first import to the return of the first launch; Triton's cache is warm"
    return [*rows, Row("the start of a process", "ms", package, {"Triton": triton}, START, note)]
