"""Root-mean-square normalization, in TE for the CPU, and with a row in the registers of a block on CUDA."""

import numpy as np
from _common import rows_on_cpu
from _rows_on_cuda import PER_THREAD, SharedRow, row_space, with_fallback
from kernelwright import grid, kernel
from tvm import te
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

EPSILON = 1e-5


CONFIGS = grid(
    hidden=[4096, 8192],
    dtype=["float16", "bfloat16", "float32"],
    where=lambda hidden, dtype: hidden == 4096 or dtype != "bfloat16",
)


@kernel(configs=with_fallback(CONFIGS), tune=row_space, outputs=["y"])
def rms_norm(
    hidden: int, dtype: str, target: Target, aligned: bool = True, per_thread: int = PER_THREAD, cores: str = "all"
):
    """y[t, h] = x[t, h] * weight[h] / sqrt(mean over h of x[t, h]**2 + 1e-5).

    x [tokens, hidden], weight [hidden], y [tokens, hidden]; computed in float32.
    """
    if target.kind.name == "cuda":
        return _cuda(hidden, dtype, aligned, per_thread)
    tokens = te.var("tokens")
    x = te.placeholder((tokens, hidden), dtype, name="x")
    weight = te.placeholder((hidden,), dtype, name="weight")
    k = te.reduce_axis((0, hidden), name="k")

    def x32(t, h):
        return x[t, h].astype("float32")

    square_sum = te.compute((tokens,), lambda t: te.sum(x32(t, k) * x32(t, k), axis=k), name="square_sum")

    def normalized(t, h):
        return x32(t, h) * (1.0 / te.sqrt(square_sum[t] / hidden + EPSILON)) * weight[h].astype("float32")

    y = te.compute((tokens, hidden), lambda t, h: normalized(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, weight, y]), target, cores)


@rms_norm.sizes
def _():
    return {"tokens": [1, 4, 16, 64, 256, 1024, 4096]}


@rms_norm.reference
def _(x, weight):
    x32 = x.astype(np.float32)
    mean_square = np.mean(x32 * x32, axis=-1, keepdims=True)
    return (x32 / np.sqrt(mean_square + EPSILON) * weight.astype(np.float32)).astype(x.dtype)


def _cuda(hidden: int, dtype: str, aligned: bool, per_thread: int):
    """A row is read once, and stays in registers until it is written."""
    part = SharedRow(hidden, dtype, aligned, per_thread)
    tokens = Var("tokens", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((tokens, hidden), dtype),
        weight: T.Buffer((hidden,), dtype),
        y: T.Buffer((tokens, hidden), dtype),
    ):
        block = T.launch_thread("blockIdx.x", T.ceildiv(tokens, part.rows))
        ty = T.launch_thread("threadIdx.y", part.rows)
        tx = T.launch_thread("threadIdx.x", part.threads)
        token = T.meta_var(block * part.rows + ty)
        value = T.alloc_buffer(part.shape, "float32", scope="local")
        factor = T.alloc_buffer(part.shape, "float32", scope="local")
        scale = T.alloc_buffer((1,), "float32", scope="local")
        if token < tokens:
            part.read(value, lambda h: x[token, h], tx, 0.0)
            part.read(factor, lambda h: weight[h], tx, 0.0)
            scale[0] = T.float32(0)
            for turn, i in T.grid(*part.shape):
                scale[0] += value[turn, i] * value[turn, i]
            part.sum(scale, tx)
            scale[0] = T.rsqrt(scale[0] / T.float32(hidden) + T.float32(EPSILON))
            part.write(y, token, tx, lambda turn, i: value[turn, i] * scale[0] * factor[turn, i])

    return main
