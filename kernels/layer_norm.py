"""Layer normalization in two passes (mean, then variance of the differences), in TE for the CPU."""

import numpy as np
from _common import rows_on_cpu
from _rows_on_cuda import PER_THREAD, SharedRow, row_space, with_fallback
from kernelwright import grid, kernel
from tvm import te
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

EPSILON = 1e-5


@kernel(configs=with_fallback(grid(hidden=[1280], dtype=["float32", "float16"])), tune=row_space, outputs=["y"])
def layer_norm(
    hidden: int, dtype: str, target: Target, aligned: bool = True, per_thread: int = PER_THREAD, cores: str = "all"
):
    """y[t, h] = (x[t, h] - mean) / sqrt(variance + 1e-5) * weight[h] + bias[h], mean and variance over h.

    x [tokens, hidden], weight [hidden], bias [hidden], y [tokens, hidden]; computed in float32.
    """
    if target.kind.name == "cuda":
        return _cuda(hidden, dtype, aligned, per_thread)
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
        scale = (1.0 / te.sqrt(square_sum[t] / hidden + EPSILON)) * weight[h].astype("float32")
        return centered(t, h) * scale + bias[h].astype("float32")

    y = te.compute((tokens, hidden), lambda t, h: normalized(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, weight, bias, y]), target, cores)


@layer_norm.sizes
def _():
    return {"tokens": [1, 4, 16, 64, 256, 1024, 4096]}


@layer_norm.reference
def _(x, weight, bias):
    x32 = x.astype(np.float32)
    centered = x32 - x32.mean(axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    y = centered / np.sqrt(variance + EPSILON) * weight.astype(np.float32) + bias.astype(np.float32)
    return y.astype(x.dtype)


def _cuda(hidden: int, dtype: str, aligned: bool, per_thread: int):
    """A row is read once, and stays in registers until it is written: the second pass reads no memory."""
    part = SharedRow(hidden, dtype, aligned, per_thread)
    tokens = Var("tokens", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((tokens, hidden), dtype),
        weight: T.Buffer((hidden,), dtype),
        bias: T.Buffer((hidden,), dtype),
        y: T.Buffer((tokens, hidden), dtype),
    ):
        block = T.launch_thread("blockIdx.x", T.ceildiv(tokens, part.rows))
        ty = T.launch_thread("threadIdx.y", part.rows)
        tx = T.launch_thread("threadIdx.x", part.threads)
        token = T.meta_var(block * part.rows + ty)
        value = T.alloc_buffer(part.shape, "float32", scope="local")
        factor = T.alloc_buffer(part.shape, "float32", scope="local")
        summand = T.alloc_buffer(part.shape, "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        if token < tokens:
            part.read(value, lambda h: x[token, h], tx, 0.0)
            part.read(factor, lambda h: weight[h], tx, 0.0)
            part.read(summand, lambda h: bias[h], tx, 0.0)
            total[0] = T.float32(0)
            for turn, i in T.grid(*part.shape):
                total[0] += value[turn, i]
            part.sum(total, tx)
            total[0] = total[0] / T.float32(hidden)
            for turn, i in T.grid(*part.shape):
                value[turn, i] -= total[0]
            total[0] = T.float32(0)
            for turn, i in T.grid(*part.shape):
                if part.holds(turn, tx):
                    total[0] += value[turn, i] * value[turn, i]
            part.sum(total, tx)
            total[0] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(EPSILON))
            part.write(y, token, tx, lambda turn, i: value[turn, i] * total[0] * factor[turn, i] + summand[turn, i])

    return main
