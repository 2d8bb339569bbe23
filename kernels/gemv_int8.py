"""Product of a few rows with int8 weights that have a scale for each group: decoding with a quantised layer."""

import numpy as np
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var


def _space(target: str):
    return grid(warps=[4, 8, 2]) if target == "cuda" else grid(rows=[16, 64, 4])


@kernel(
    configs=grid(one_token=[True, False], k=[2048], group=[64, 128], dtype=["float16", "float32"]),
    tune=_space,
    outputs=["y"],
)
def gemv_int8(one_token: bool, k: int, group: int, dtype: str, target: Target, rows: int = 16, warps: int = 4):
    """Skinny matrix product with weights of 8 bits, accumulated in float32.

    ``y[t, i] = sum over j of x[t, j] * w[i, j] * scales[i, j // group]``

    Shapes: x [tokens, k], w [n, k] of int8, scales [n, k / group], y [tokens, n]. The weights are read once for every
    four tokens, so this is meant for small numbers of tokens. A single token, the most frequent number, has variants of
    its own. They come first, so that calls with one token find them. A task of the CPU computes ``rows`` columns of y,
    a block of CUDA ``warps`` of them.
    """
    tokens = 1 if one_token else Var("tokens", "int32")
    if target.kind.name == "llvm":
        return _cpu(tokens, k, group, dtype, rows)
    return _cuda(tokens, k, group, dtype, warps)


@gemv_int8.sizes
def _(one_token):
    return {"n": [1024, 4096, 11008], **({} if one_token else {"tokens": [2, 4, 16]})}


@gemv_int8.reference
def _(x, w, scales, group):
    weights = w.astype(np.float32) * np.repeat(scales.astype(np.float32), group, axis=1)
    return (x.astype(np.float32) @ weights.T).astype(x.dtype)


@gemv_int8.inputs
def _(rng, n, k, group, dtype, tokens=1):
    # Scaled so that an element of y has a variance of about 1.
    return {
        "x": rng.standard_normal((tokens, k)).astype(dtype),
        "w": rng.integers(-128, 128, (n, k)).astype(np.int8),
        "scales": (rng.uniform(0.5, 1.5, (n, k // group)) / (74 * np.sqrt(k))).astype(dtype),
    }


def _cpu(tokens: int | Var, k: int, group: int, dtype: str, rows: int):
    """A task computes some columns of y for up to 4 tokens; sums are kept in 16 lanes and added up at the end."""
    tokens_per_task, lanes = 1 if tokens == 1 else 4, 16
    itemsize = np.dtype(dtype).itemsize  # NumPy promises no more, and TVM would take 64 bytes for granted
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((tokens, k), dtype, align=itemsize),
        w: T.Buffer((n, k), "int8", align=1),
        scales: T.Buffer((n, k // group), dtype, align=itemsize),
        y: T.Buffer((tokens, n), dtype, align=itemsize),
    ):
        for task in T.parallel(T.ceildiv(n, rows) * T.ceildiv(tokens, tokens_per_task)):
            t0 = T.meta_var(task // T.ceildiv(n, rows) * tokens_per_task)
            i0 = T.meta_var(task % T.ceildiv(n, rows) * rows)
            for i in T.serial(T.min(rows, n - i0)):
                acc = T.alloc_buffer((tokens_per_task, lanes), "float32")
                part = T.alloc_buffer((tokens_per_task, lanes), "float32")
                for t in T.unroll(tokens_per_task):
                    for lane in T.vectorized(lanes):
                        acc[t, lane] = T.float32(0)
                for g in T.serial(k // group):
                    for t in T.unroll(tokens_per_task):
                        for lane in T.vectorized(lanes):
                            part[t, lane] = T.float32(0)
                    for j in T.serial(group // lanes):
                        for t in T.unroll(tokens_per_task):
                            for lane in T.vectorized(lanes):
                                part[t, lane] += T.cast(
                                    # Tokens past the end repeat the last one, and are not stored.
                                    x[T.min(t0 + t, tokens - 1), g * group + j * lanes + lane],
                                    "float32",
                                ) * T.cast(w[i0 + i, g * group + j * lanes + lane], "float32")
                    for t in T.unroll(tokens_per_task):
                        for lane in T.vectorized(lanes):
                            acc[t, lane] += part[t, lane] * T.cast(scales[i0 + i, g], "float32")
                for t in T.unroll(tokens_per_task):
                    for lane in T.unroll(1, lanes):
                        acc[t, 0] += acc[t, lane]
                    if t0 + t < tokens:
                        y[t0 + t, i0 + i] = T.cast(acc[t, 0], dtype)

    return main


def _cuda(tokens: int | Var, k: int, group: int, dtype: str, warps: int):
    """A warp computes one column of y for 4 tokens, or for the only one.

    In each step a lane multiplies 8 neighbouring weights, or 16: with one token there are registers for more of them.
    """
    tokens_per_block, width = (1, 16) if tokens == 1 else (4, 8)
    step = 32 * width
    vector = 16 // np.dtype(dtype).itemsize
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((tokens, k), dtype, align=16),
        w: T.Buffer((n, k), "int8", align=width),
        scales: T.Buffer((n, k // group), dtype),
        y: T.Buffer((tokens, n), dtype),
    ):
        # One number for both, because CUDA has at most 65535 blocks in y.
        block = T.launch_thread("blockIdx.x", T.ceildiv(n, warps) * T.ceildiv(tokens, tokens_per_block))
        warp = T.launch_thread("threadIdx.y", warps)
        lane = T.launch_thread("threadIdx.x", 32)
        # Division as C has it, since TVM does not see that nothing here is negative. Neighbouring blocks have the same
        # weights, which are then read from memory once.
        t0 = T.meta_var(T.truncmod(block, T.ceildiv(tokens, tokens_per_block)) * tokens_per_block)
        column = T.meta_var(T.truncdiv(block, T.ceildiv(tokens, tokens_per_block)) * warps + warp)
        weights = T.alloc_buffer((width,), "int8", scope="local")
        values = T.alloc_buffer((width,), dtype, scope="local")
        part = T.alloc_buffer((1,), "float32", scope="local")
        acc = T.alloc_buffer((tokens_per_block,), "float32", scope="local")
        # Columns and tokens past the end repeat the last one, and are not stored: all lanes of a warp stay together.
        i = T.meta_var(T.min(column, n - 1))
        for t in T.serial(tokens_per_block):
            acc[t] = T.float32(0)
        for s in T.serial(k // step):
            j = T.meta_var(s * step + lane * width)
            for v in T.vectorized(width):
                weights[v] = w[i, j + v]
            for t in T.serial(tokens_per_block):
                for u in T.serial(width // vector):
                    for v in T.vectorized(vector):
                        values[u * vector + v] = x[T.min(t0 + t, tokens - 1), j + u * vector + v]
                part[0] = T.float32(0)
                for v in T.serial(width):
                    part[0] += T.cast(values[v], "float32") * T.cast(weights[v], "float32")
                acc[t] += part[0] * T.cast(scales[i, j // group], "float32")
        for t in T.serial(tokens_per_block):
            acc[t] = T.cuda.warp_sum(acc[t])
            if lane == 0 and column < n and t0 + t < tokens:
                y[t0 + t, i] = T.cast(acc[t], dtype)

    return main
