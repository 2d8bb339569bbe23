"""Root-mean-square normalization, written in TE: dlight schedules it for the GPU, ``rows_on_cpu`` for the CPU."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm import te
from tvm.target import Target

EPSILON = 1e-5


CONFIGS = grid(
    hidden=[4096, 8192],
    dtype=["float16", "bfloat16", "float32"],
    where=lambda hidden, dtype: hidden == 4096 or dtype != "bfloat16",
)


@kernel(configs=CONFIGS, outputs=["y"])
def rms_norm(hidden: int, dtype: str, target: Target):
    """y[t, h] = x[t, h] * weight[h] / sqrt(mean over h of x[t, h]**2 + 1e-5).

    x [tokens, hidden], weight [hidden], y [tokens, hidden]; computed in float32.
    """
    tokens = te.var("tokens")
    x = te.placeholder((tokens, hidden), dtype, name="x")
    weight = te.placeholder((hidden,), dtype, name="weight")
    k = te.reduce_axis((0, hidden), name="k")

    def x32(t, h):
        return x[t, h].astype("float32")

    square_sum = te.compute((tokens,), lambda t: te.sum(x32(t, k) * x32(t, k), axis=k), name="square_sum")

    def normalized(t, h):
        return x32(t, h) * te.rsqrt(square_sum[t] / hidden + EPSILON) * weight[h].astype("float32")

    y = te.compute((tokens, hidden), lambda t, h: normalized(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, weight, y]), target)


@rms_norm.reference
def _(x, weight):
    x32 = x.astype(np.float32)
    mean_square = np.mean(x32 * x32, axis=-1, keepdims=True)
    return (x32 / np.sqrt(mean_square + EPSILON) * weight.astype(np.float32)).astype(x.dtype)
