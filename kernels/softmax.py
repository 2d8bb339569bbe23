"""Softmax along rows, written in TE, with a column count that is no power of two among its configs."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm import te
from tvm.target import Target


@kernel(configs=grid(columns=[1000, 4096], dtype=["float32", "float16"]), outputs=["y"])
def softmax(columns: int, dtype: str, target: Target):
    """y[r, c] = exp(x[r, c] - max of row r) / (sum over c of those).

    x [rows, columns], y [rows, columns]; computed in float32.
    """
    rows = te.var("rows")
    x = te.placeholder((rows, columns), dtype, name="x")
    k_max = te.reduce_axis((0, columns), name="k_max")
    k_sum = te.reduce_axis((0, columns), name="k_sum")

    def x32(r, c):
        return x[r, c].astype("float32")

    largest = te.compute((rows,), lambda r: te.max(x32(r, k_max), axis=k_max), name="largest")
    power = te.compute((rows, columns), lambda r, c: te.exp(x32(r, c) - largest[r]), name="power")
    total = te.compute((rows,), lambda r: te.sum(power[r, k_sum], axis=k_sum), name="total")
    y = te.compute((rows, columns), lambda r, c: (power[r, c] / total[r]).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, y]), target)


@softmax.reference
def _(x):
    x32 = x.astype(np.float32)
    power = np.exp(x32 - x32.max(axis=-1, keepdims=True))
    return (power / power.sum(axis=-1, keepdims=True)).astype(x.dtype)
