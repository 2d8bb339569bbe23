"""The gate of a SwiGLU layer."""

import numpy as np
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=grid(dtype=["bfloat16", "float16", "float32"]), outputs=["y"], requires=["columns % 2 == 0"])
def silu_and_mul(dtype: str):
    """y = silu(left half of x) * right half of x, row by row, computed in float32."""
    rows, columns = te.var("rows"), te.var("columns")
    x = te.placeholder((rows, columns), dtype, name="x")

    def gated(i, j):
        gate, value = x[i, j].astype("float32"), x[i, columns // 2 + j].astype("float32")
        return (gate / (1.0 + te.exp(-gate)) * value).astype(dtype)

    return te.create_prim_func([x, te.compute((rows, columns // 2), gated, name="y")])


@silu_and_mul.sizes
def _():
    return {"rows": [1, 33], "columns": [256, 1000]}


@silu_and_mul.reference
def _(x):
    gate, value = np.split(x.astype(np.float32), 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * value).astype(x.dtype)
