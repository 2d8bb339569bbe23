"""Attention of one new token over a cache of keys and values: the decoding step of a transformer."""

import numpy as np
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.tirx import Var

LOG2_E = 1.4426950408889634
"""Scores are multiplied by it, and then exponentiated with base 2, which costs less."""


@kernel(configs=grid(heads=[16], kv_heads=[4], head_dim=[64, 128], dtype=["float16", "float32"]), outputs=["out"])
def decode_attention(heads: int, kv_heads: int, head_dim: int, dtype: str, target):
    """Attention with one query for each sequence, grouped heads and sequences of different lengths.

    ``out[b, h] = softmax(q[b, h] . k_cache[b, :len, g] / sqrt(head_dim)) @ v_cache[b, :len, g]`` with
    ``len = clip(lengths[b], 0, max_seq)`` and ``g = h // (heads / kv_heads)``; zero where ``len`` is 0.

    Shapes: q [batch, heads, head_dim], k_cache and v_cache [batch, max_seq, kv_heads, head_dim], lengths [batch] of
    int32, out [batch, heads, head_dim]. The softmax is computed in float32, in one pass over the cache (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018). A cache has fewer than 2**31 elements.
    """
    lower = _cpu if target.kind.name == "llvm" else _cuda
    return lower(heads, kv_heads, head_dim, dtype)


@decode_attention.reference
def _(q, k_cache, v_cache, lengths):
    heads, head_dim = q.shape[1:]
    group = heads // k_cache.shape[2]
    out = np.zeros(q.shape, np.float32)
    for b, length in enumerate(np.clip(lengths, 0, k_cache.shape[1])):
        if length == 0:
            continue
        keys = np.repeat(k_cache[b, :length].astype(np.float32), group, axis=1)
        values = np.repeat(v_cache[b, :length].astype(np.float32), group, axis=1)
        scores = np.einsum("hd,shd->hs", q[b].astype(np.float32), keys) / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[b] = np.einsum("hs,shd->hd", weights / weights.sum(axis=1, keepdims=True), values)
    return out.astype(q.dtype)


@decode_attention.inputs
def _(rng, batch, max_seq):
    # Full, empty and all lengths between.
    lengths = rng.integers(0, max_seq + 1, batch)
    lengths[::3] = max_seq
    lengths[1::7] = 0
    return {"lengths": lengths.astype(np.int32)}


def _cpu(heads: int, kv_heads: int, head_dim: int, dtype: str):
    """A task computes one head of one sequence."""
    group, lanes = heads // kv_heads, 16
    chunks = head_dim // lanes
    scale = LOG2_E * head_dim**-0.5
    itemsize = np.dtype(dtype).itemsize  # NumPy promises no more, and TVM would take 64 bytes for granted
    batch, max_seq = Var("batch", "int32"), Var("max_seq", "int32")

    @T.prim_func(s_tir=True)
    def main(
        q: T.Buffer((batch, heads, head_dim), dtype, align=itemsize),
        k_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=itemsize),
        v_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=itemsize),
        lengths: T.Buffer((batch,), "int32"),
        out: T.Buffer((batch, heads, head_dim), dtype, align=itemsize),
    ):
        for task in T.parallel(batch * heads):
            b = T.meta_var(task // heads)
            h = T.meta_var(task % heads)
            acc = T.alloc_buffer((head_dim,), "float32")
            dot = T.alloc_buffer((lanes,), "float32")
            top = T.alloc_buffer((1,), "float32")  # largest score so far
            total = T.alloc_buffer((1,), "float32")  # sum of exp2(score - top)
            score = T.alloc_buffer((1,), "float32")
            keep = T.alloc_buffer((1,), "float32")  # what is left of earlier sums when top grows
            top[0] = T.min_value("float32")
            total[0] = T.float32(0)
            for d in T.vectorized(head_dim):
                acc[d] = T.float32(0)
            for s in T.serial(T.max(T.min(lengths[b], max_seq), 0)):
                for lane in T.vectorized(lanes):
                    dot[lane] = T.float32(0)
                for c in T.unroll(chunks):
                    for lane in T.vectorized(lanes):
                        dot[lane] += T.cast(q[b, h, c * lanes + lane], "float32") * T.cast(
                            k_cache[b, s, h // group, c * lanes + lane], "float32"
                        )
                for lane in T.unroll(1, lanes):
                    dot[0] += dot[lane]
                score[0] = dot[0] * T.float32(scale)
                keep[0] = T.exp2(top[0] - T.max(top[0], score[0]))
                top[0] = T.max(top[0], score[0])
                score[0] = T.exp2(score[0] - top[0])
                total[0] = total[0] * keep[0] + score[0]
                for c in T.serial(chunks):
                    for lane in T.vectorized(lanes):
                        acc[c * lanes + lane] = acc[c * lanes + lane] * keep[0] + score[0] * T.cast(
                            v_cache[b, s, h // group, c * lanes + lane], "float32"
                        )
            # total is at least 1, unless the sequence is empty: then acc is 0.
            for c in T.serial(chunks):
                for lane in T.vectorized(lanes):
                    out[b, h, c * lanes + lane] = T.cast(acc[c * lanes + lane] / T.max(total[0], T.float32(1)), dtype)

    return main


def _cuda(heads: int, kv_heads: int, head_dim: int, dtype: str):
    """A block computes the heads that share a head of keys; its warps take turns over the positions, then merge."""
    group, warps = heads // kv_heads, 8
    width = head_dim // 32  # elements of a key that a lane holds
    scale = LOG2_E * head_dim**-0.5
    batch, max_seq = Var("batch", "int32"), Var("max_seq", "int32")

    @T.prim_func(s_tir=True)
    def main(
        q: T.Buffer((batch, heads, head_dim), dtype, align=16),
        k_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=16),
        v_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=16),
        lengths: T.Buffer((batch,), "int32"),
        out: T.Buffer((batch, heads, head_dim), dtype, align=16),
    ):
        b = T.launch_thread("blockIdx.x", batch)
        g = T.launch_thread("blockIdx.y", kv_heads)
        warp = T.launch_thread("threadIdx.y", warps)
        lane = T.launch_thread("threadIdx.x", 32)
        query = T.alloc_buffer((group, width), "float32", scope="local")
        key = T.alloc_buffer((width,), dtype, scope="local")
        value = T.alloc_buffer((width,), dtype, scope="local")
        acc = T.alloc_buffer((group, width), "float32", scope="local")
        top = T.alloc_buffer((group,), "float32", scope="local")  # largest score so far
        total = T.alloc_buffer((group,), "float32", scope="local")  # sum of exp2(score - top)
        score = T.alloc_buffer((1,), "float32", scope="local")
        keep = T.alloc_buffer((1,), "float32", scope="local")  # what is left of earlier sums when top grows
        all_acc = T.alloc_buffer((warps, group, head_dim), "float32", scope="shared")
        all_top = T.alloc_buffer((warps, group), "float32", scope="shared")
        all_total = T.alloc_buffer((warps, group), "float32", scope="shared")
        length = T.meta_var(T.min(lengths[b], max_seq))

        for h in T.serial(group):
            top[h] = T.min_value("float32")
            total[h] = T.float32(0)
            for d in T.serial(width):
                acc[h, d] = T.float32(0)
                query[h, d] = T.cast(q[b, g * group + h, lane * width + d], "float32") * T.float32(scale)
        for turn in T.serial(T.ceildiv(T.max(length - warp, 0), warps)):
            for d in T.vectorized(width):
                key[d] = k_cache[b, turn * warps + warp, g, lane * width + d]
            for d in T.vectorized(width):
                value[d] = v_cache[b, turn * warps + warp, g, lane * width + d]
            for h in T.serial(group):
                score[0] = T.float32(0)
                for d in T.serial(width):
                    score[0] += query[h, d] * T.cast(key[d], "float32")
                score[0] = T.cuda.warp_sum(score[0])
                keep[0] = T.exp2(top[h] - T.max(top[h], score[0]))
                top[h] = T.max(top[h], score[0])
                score[0] = T.exp2(score[0] - top[h])
                total[h] = total[h] * keep[0] + score[0]
                for d in T.serial(width):
                    acc[h, d] = acc[h, d] * keep[0] + score[0] * T.cast(value[d], "float32")

        for h in T.serial(group):
            all_top[warp, h] = top[h]
            all_total[warp, h] = total[h]
            for d in T.serial(width):
                all_acc[warp, h, d * 32 + lane] = acc[h, d]
        T.tvm_storage_sync("shared")
        if warp < group:
            top[0] = T.min_value("float32")
            total[0] = T.float32(0)
            for d in T.serial(width):
                acc[0, d] = T.float32(0)
            for w in T.serial(warps):
                top[0] = T.max(top[0], all_top[w, warp])
            for w in T.serial(warps):
                keep[0] = T.exp2(all_top[w, warp] - top[0])
                total[0] += all_total[w, warp] * keep[0]
                for d in T.serial(width):
                    acc[0, d] += all_acc[w, warp, d * 32 + lane] * keep[0]
            # total is at least 1, unless the sequence is empty: then acc is 0.
            for d in T.vectorized(width):
                out[b, g * group + warp, lane * width + d] = T.cast(acc[0, d] / T.max(total[0], T.float32(1)), dtype)

    return main
