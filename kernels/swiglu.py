"""The gate of a SwiGLU feed-forward layer (silu-and-mul), written in TE."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm import te
from tvm.target import Target


@kernel(configs=grid(hidden=[11008, 14336], dtype=["float16", "bfloat16"]), outputs=["y"])
def swiglu(hidden: int, dtype: str, target: Target):
    """y[t, h] = silu(x[t, h]) * x[t, hidden + h], where silu(v) = v / (1 + exp(-v)).

    x [tokens, 2 * hidden] holds the gate and then the value; y [tokens, hidden]. Computed in float32.
    """
    tokens = te.var("tokens")
    x = te.placeholder((tokens, 2 * hidden), dtype, name="x")

    def gated(t, h):
        gate, value = x[t, h].astype("float32"), x[t, hidden + h].astype("float32")
        return gate / (1.0 + te.exp(-gate)) * value

    y = te.compute((tokens, hidden), lambda t, h: gated(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, y]), target)


@swiglu.reference
def _(x):
    gate, value = np.split(x.astype(np.float32), 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * value).astype(x.dtype)
