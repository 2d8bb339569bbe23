"""A small kernel with a space of tuning parameters, and tuning tables for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.define.tuning import Rule, TableDevice, TableFile, TunedConfig, table_text

from support.project import Project

BLOCKS = "grid(block=[1, 4, 16])"

SCALED = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(configs=grid(dtype=["float32", "float64"]), tune=grid(block=[1, 4, 16]), outputs=["y"])
def scaled(dtype: str, block: int):
    """y[i] = 2 x[i], in blocks"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), dtype)
        y = T.match_buffer(y_handle, (n,), dtype)
        for i in T.serial((n + block - 1) // block):
            for k in T.serial(block):
                with T.sblock("y"):
                    j = T.axis.spatial(n, i * block + k)
                    T.where(i * block + k < n)
                    y[j] = x[j] * T.cast(2.0, dtype)

    return main


@scaled.sizes
def _():
    return {"n": [1, 100, 10000]}


@scaled.reference
def _(x):
    return x * 2
'''

CPU = TableDevice("llvm", "x86-64-v3", "AMD EPYC 9B45", 2)
GPU = TableDevice("cuda", "sm_80", "NVIDIA A100-SXM4-80GB", 108)


def tuned(dtype: str, *rules: tuple[int | None, Mapping[str, Any]], by: Sequence[str] = ("n",)) -> TunedConfig:
    """What a table says of one config of ``scaled``: pairs of the end of a range and a point."""
    return TunedConfig({"dtype": dtype}, tuple(by), tuple(Rule(point, upto) for upto, point in rules))


def table(*configs: TunedConfig, device: TableDevice = CPU, kernel: str = "scaled") -> str:
    """The text of a table."""
    measured = {"tvm": "0.27.0", "compiler": "cc", "policy": "made up"}
    return table_text(TableFile(kernel, device, measured, configs))


SMALL_AND_LARGE = table(tuned("float32", (64, {"block": 4}), (None, {"block": 16})))
"""A table for one of two configs."""

FILE = "tuning/scaled.x86-64-v3-amd-epyc-9b45-2.json"


def write_project(project: Project) -> None:
    """Put the kernel into a project, in place of those that it has."""
    for path in (project.folder / "kernels").glob("*.py"):
        path.unlink()
    project.write("kernels/scaled.py", SCALED)


CUDA_OF_SCALED = """\
    if target.kind.name == "cuda":

        @T.prim_func(s_tir=True)
        def gpu(x_handle: T.handle, y_handle: T.handle):
            n = T.int32()
            x = T.match_buffer(x_handle, (n,), dtype)
            y = T.match_buffer(y_handle, (n,), dtype)
            for i in T.thread_binding((n + block - 1) // block, "blockIdx.x"):
                for k in T.thread_binding(block, "threadIdx.x"):
                    with T.sblock("y"):
                        j = T.axis.spatial(n, i * block + k)
                        T.where(i * block + k < n)
                        y[j] = x[j] * T.cast(2.0, dtype)

        return gpu

"""


def scaled_on_both() -> str:
    """``scaled`` for both targets: the points are 16 and 4 on the CPU, and 4 and 16 with CUDA."""
    text = SCALED.replace("block: int)", "block: int, target)")
    text = text.replace("    @T.prim_func", f"{CUDA_OF_SCALED}    @T.prim_func", 1)
    points = "lambda target: grid(block=[16, 4] if target == 'llvm' else [4, 16])"
    return text.replace(f"tune={BLOCKS}", f"tune={points}")
