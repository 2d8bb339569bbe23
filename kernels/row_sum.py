"""Sum along rows: the plainest reduction, written in TE."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm import te
from tvm.target import Target


@kernel(configs=grid(columns=[1000], dtype=["float32", "float16"]), outputs=["y"], tolerance=1e-4)
def row_sum(columns: int, dtype: str, target: Target):
    """y[r] = sum over c of x[r, c]: x [rows, columns], y [rows] in float32, whatever the dtype of x."""
    rows = te.var("rows")
    x = te.placeholder((rows, columns), dtype, name="x")
    k = te.reduce_axis((0, columns), name="k")
    y = te.compute((rows,), lambda r: te.sum(x[r, k].astype("float32"), axis=k), name="y")
    return rows_on_cpu(te.create_prim_func([x, y]), target)


@row_sum.reference
def _(x):
    return x.sum(axis=-1, dtype=np.float64).astype(np.float32)
