"""Softmax along rows, in TE for the CPU, with a column count that is no power of two among its configs."""

import numpy as np
from _common import exp, rows_on_cpu
from _rows_on_cuda import PER_THREAD, SharedRow, row_space, with_fallback
from kernelwright import grid, kernel
from tvm import te
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

LOG2_E = 1.4426950408889634
"""Differences are multiplied by it, and then exponentiated with base 2, which costs less."""


@kernel(configs=with_fallback(grid(columns=[1000, 4096], dtype=["float32", "float16"])), tune=row_space, outputs=["y"])
def softmax(
    columns: int, dtype: str, target: Target, aligned: bool = True, per_thread: int = PER_THREAD, cores: str = "all"
):
    """y[r, c] = exp(x[r, c] - max of row r) / (sum over c of those).

    x [rows, columns], y [rows, columns]; computed in float32.
    """
    if target.kind.name == "cuda":
        return _cuda(columns, dtype, aligned, per_thread)
    rows = te.var("rows")
    x = te.placeholder((rows, columns), dtype, name="x")
    k_max = te.reduce_axis((0, columns), name="k_max")
    k_sum = te.reduce_axis((0, columns), name="k_sum")

    def x32(r, c):
        return x[r, c].astype("float32")

    largest = te.compute((rows,), lambda r: te.max(x32(r, k_max), axis=k_max), name="largest")
    power = te.compute((rows, columns), lambda r, c: exp(x32(r, c) - largest[r]), name="power")
    total = te.compute((rows,), lambda r: te.sum(power[r, k_sum], axis=k_sum), name="total")
    y = te.compute((rows, columns), lambda r, c: (power[r, c] * (1.0 / total[r])).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, y]), target, cores)


@softmax.sizes
def _():
    return {"rows": [1, 4, 16, 64, 256, 1024, 4096]}


@softmax.reference
def _(x):
    x32 = x.astype(np.float32)
    power = np.exp(x32 - x32.max(axis=-1, keepdims=True))
    return (power / power.sum(axis=-1, keepdims=True)).astype(x.dtype)


def _cuda(columns: int, dtype: str, aligned: bool, per_thread: int):
    """A row is read once, and stays in registers until it is written."""
    part = SharedRow(columns, dtype, aligned, per_thread)
    rows = Var("rows", "int32")

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((rows, columns), dtype), y: T.Buffer((rows, columns), dtype)):
        block = T.launch_thread("blockIdx.x", T.ceildiv(rows, part.rows))
        ty = T.launch_thread("threadIdx.y", part.rows)
        tx = T.launch_thread("threadIdx.x", part.threads)
        row = T.meta_var(block * part.rows + ty)
        power = T.alloc_buffer(part.shape, "float32", scope="local")
        largest = T.alloc_buffer((1,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        if row < rows:
            part.read(power, lambda column: x[row, column], tx, float("-inf"))
            largest[0] = T.float32(float("-inf"))
            for turn, i in T.grid(*part.shape):
                largest[0] = T.max(largest[0], power[turn, i])
            part.largest(largest, tx)
            total[0] = T.float32(0)
            for turn, i in T.grid(*part.shape):
                power[turn, i] = T.exp2((power[turn, i] - largest[0]) * T.float32(LOG2_E))
                total[0] += power[turn, i]
            part.sum(total, tx)
            total[0] = T.float32(1) / total[0]
            part.write(y, row, tx, lambda turn, i: power[turn, i] * total[0])

    return main
