"""Rotary position embedding of query and key, in place: one TVMScript function with different loops for CPU and GPU."""

from functools import partial

import numpy as np
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var


@kernel(configs=grid(heads=[32], kv_heads=[8], head_dim=[128], dtype=["float16", "bfloat16", "float32"]))
def rope(heads: int, kv_heads: int, head_dim: int, dtype: str, target: Target):
    """Rotate (x[t, n, i], x[t, n, i + half]) by the angle of positions[t] and i, for x = query and x = key, in place.

    query [tokens, heads, head_dim], key [tokens, kv_heads, head_dim], positions [tokens] in int32, each at least 0 and
    below max_position; cos [max_position, half] and sin [max_position, half] in float32, where half = head_dim / 2.
    """
    tokens, max_position, half = Var("tokens", "int32"), Var("max_position", "int32"), head_dim // 2
    if target.kind.name == "cuda":
        over_tokens = partial(T.thread_binding, thread="blockIdx.x")
        over_heads = partial(T.thread_binding, thread="blockIdx.y")
        over_pairs = partial(T.thread_binding, thread="threadIdx.x")
        width, scope = 1, "local"
    else:
        over_tokens, over_heads, over_pairs = T.parallel, T.serial, T.vectorized
        width, scope = half, "global"

    # The old x[t, n, i] is kept in a buffer, because TVM 0.27 forgets to convert a bfloat16 that is read in a T.let.
    @T.macro
    def rotate(x, t, n, i, c, s, old):
        old[i % width] = T.Cast("float32", x[t, n, i])
        x[t, n, i] = T.Cast(dtype, old[i % width] * c - T.Cast("float32", x[t, n, i + half]) * s)
        x[t, n, i + half] = T.Cast(dtype, T.Cast("float32", x[t, n, i + half]) * c + old[i % width] * s)

    @T.prim_func(s_tir=True)
    def main(
        query: T.Buffer((tokens, heads, head_dim), dtype),
        key: T.Buffer((tokens, kv_heads, head_dim), dtype),
        positions: T.Buffer((tokens,), "int32"),
        cos: T.Buffer((max_position, half), "float32"),
        sin: T.Buffer((max_position, half), "float32"),
    ):
        for t in over_tokens(tokens):
            for n in over_heads(heads + kv_heads):
                old = T.alloc_buffer((width,), "float32", scope=scope)
                for i in over_pairs(half):
                    c: T.let = cos[positions[t], i]
                    s: T.let = sin[positions[t], i]
                    if n < heads:
                        rotate(query, t, n, i, c, s, old)
                    else:
                        rotate(key, t, n - heads, i, c, s, old)

    return main


@rope.inputs
def _(rng, tokens, max_position, head_dim):
    if tokens and not max_position:
        return None
    angles = np.outer(np.arange(max_position), 10000.0 ** -np.linspace(0, 1, head_dim // 2, endpoint=False))
    positions = rng.integers(0, max(max_position, 1), tokens, dtype=np.int32)
    return {"positions": positions, "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


@rope.reference
def _(query, key, positions, cos, sin):
    c, s = cos[positions][:, None], sin[positions][:, None]

    def rotated(x):
        first, second = np.split(x.astype(np.float32), 2, axis=-1)
        return np.concatenate([first * c - second * s, second * c + first * s], axis=-1).astype(x.dtype)

    return {"query": rotated(query), "key": rotated(key)}
