"""Layer normalization in two passes (mean, then variance of the differences), written in TE."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm import te
from tvm.target import Target

EPSILON = 1e-5


@kernel(configs=grid(hidden=[1280], dtype=["float32", "float16"]), outputs=["y"])
def layer_norm(hidden: int, dtype: str, target: Target):
    """y[t, h] = (x[t, h] - mean) / sqrt(variance + 1e-5) * weight[h] + bias[h], mean and variance over h.

    x [tokens, hidden], weight [hidden], bias [hidden], y [tokens, hidden]; computed in float32.
    """
    tokens = te.var("tokens")
    x = te.placeholder((tokens, hidden), dtype, name="x")
    weight = te.placeholder((hidden,), dtype, name="weight")
    bias = te.placeholder((hidden,), dtype, name="bias")
    k_mean = te.reduce_axis((0, hidden), name="k_mean")
    k_square = te.reduce_axis((0, hidden), name="k_square")

    total = te.compute((tokens,), lambda t: te.sum(x[t, k_mean].astype("float32"), axis=k_mean), name="total")

    def centered(t, h):
        return x[t, h].astype("float32") - total[t] / hidden

    def square(t, h):
        return centered(t, h) * centered(t, h)

    square_sum = te.compute((tokens,), lambda t: te.sum(square(t, k_square), axis=k_square), name="square_sum")

    def normalized(t, h):
        scale = te.rsqrt(square_sum[t] / hidden + EPSILON) * weight[h].astype("float32")
        return centered(t, h) * scale + bias[h].astype("float32")

    y = te.compute((tokens, hidden), lambda t, h: normalized(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, weight, bias, y]), target)


@layer_norm.reference
def _(x, weight, bias):
    x32 = x.astype(np.float32)
    centered = x32 - x32.mean(axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    y = centered / np.sqrt(variance + EPSILON) * weight.astype(np.float32) + bias.astype(np.float32)
    return y.astype(x.dtype)
