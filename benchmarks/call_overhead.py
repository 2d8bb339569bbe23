"""What a call costs through each backend, against tvm-ffi alone and against PyTorch's own operators."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

from .harness import Bench, Result, Row, Skip, Target, interleave, median
from .projects import Project

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("calls", env.Glob("kernels/*.py")))
"""

SETTINGS = '[tool.kernelwright]\ntargets = ["llvm"]\nbackends = ["tvm_ffi", "cython", "torch"]\n'

DEFINITION = '''\
from kernelwright import kernel
from tvm.script import tirx as T


@kernel()
def touch():
    """Does next to nothing: writes one element."""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        x[0] = T.float32(0)

    return main


@kernel(outputs=["z"])
def add():
    """z = x + y"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle, z_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        z = T.match_buffer(z_handle, (n,), "float32")
        for i in range(n):
            with T.sblock("z"):
                j = T.axis.spatial(n, i)
                z[j] = x[j] + y[j]

    return main
'''

RAW_LIMIT = 1.05
"""A call through the tvm_ffi backend against one of the same library by tvm-ffi alone."""

NEEDED = ("torch", "Cython")


def measure(bench: Bench) -> Result:
    """Build two kernels for three backends, and call them in one process, in turn."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Skip(f"{' and '.join(missing)} not installed: pip install -e '.[cython]' --group frameworks")
    project = _built(bench)
    bench.say("calls")
    count = 100 if bench.small else 5000
    found = interleave(
        bench.rounds_or(5), {"calls": lambda: bench.child("call_overhead", project.folder / "build", str(count))}
    )
    samples = [dict(json.loads(done.output)) for done in found["calls"]]
    times = {name: median(sample[name] for sample in samples) for name in samples[0]}
    return Result(_rows(times), {"ns": samples})


def _built(bench: Bench) -> Project:
    project = Project(bench.work / "calls", "calls", bench.site_scons)
    shutil.rmtree(project.folder, ignore_errors=True)
    (project.folder / "kernels").mkdir(parents=True)
    for name, text in (("SConstruct", SCONSTRUCT), ("pyproject.toml", SETTINGS), ("kernels/calls.py", DEFINITION)):
        Path(project.folder, name).write_text(text)
    project.build(bench.jobs)
    return project


def _rows(times: dict[str, float]) -> list[Row]:
    rows = []
    for kernel, what in (("touch", "one array"), ("add", "three arrays")):
        for kind, library in (("numpy", "NumPy"), ("torch", "PyTorch")):
            raw = {"tvm-ffi": times[f"{kernel} {kind} raw"]}
            subject = f"{what} of {library}"
            limit = Target(RAW_LIMIT, "ratio")
            rows += [
                Row(f"tvm_ffi, {subject}", "ns", times[f"{kernel} {kind} tvm_ffi"], raw, limit),
                Row(f"tvm_ffi's .function, {subject}", "ns", times[f"{kernel} {kind} tvm_ffi.function"], raw, limit),
                Row(f"cython, {subject}", "ns", times[f"{kernel} {kind} cython"], raw, Target(2.0, "ratio")),
            ]
        own = times[f"{kernel} torch dispatch"]
        limit_ns = 2 * times[f"{kernel} torch raw"] + own
        note = f"limit: twice the raw call, and the {own:.0f} ns of an operator that does nothing"
        peers = {"tvm-ffi": times[f"{kernel} torch raw"], "empty operator": own}
        if kernel == "add":
            peers["torch.add(out=)"] = times["add torch torch.add"]
        rows.append(Row(f"torch, {what}", "ns", times[f"{kernel} torch torch"], peers, Target(limit_ns), note))
    return rows
