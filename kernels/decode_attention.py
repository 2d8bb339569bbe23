"""Attention of one new token over a cache of keys and values: the decoding step of a transformer."""

import math

import numpy as np
from _common import exp
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

LOG2_E = 1.4426950408889634
"""Scores are multiplied by it, and then exponentiated with base 2, which costs less."""


BLOCKS = 264
"""A CUDA launch splits sequences until it has so many blocks: two for each of the 132 multiprocessors of an H100."""

PART = 64
"""Fewest positions that are worth a block."""


def _space(target: str):
    return grid(share=[4, 2, 1], block=[64, 128]) if target == "llvm" else [{}]


@kernel(
    configs=grid(heads=[16], kv_heads=[4], head_dim=[64, 128], dtype=["float16", "float32"]),
    tune=_space,
    outputs=["out"],
)
def decode_attention(
    heads: int, kv_heads: int, head_dim: int, dtype: str, target: Target, share: int = 4, block: int = 64
):
    """Attention with one query for each sequence, grouped heads and sequences of different lengths.

    ``out[b, h] = softmax(q[b, h] . k_cache[b, :len, g] / sqrt(head_dim)) @ v_cache[b, :len, g]`` with
    ``len = clip(lengths[b], 0, max_seq)`` and ``g = h // (heads / kv_heads)``; zero where ``len`` is 0.

    Shapes: q [batch, heads, head_dim], k_cache and v_cache [batch, max_seq, kv_heads, head_dim], lengths [batch] of
    int32, out [batch, heads, head_dim]. The softmax is computed in float32, in one pass over the cache (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018). A cache has fewer than 2**31 elements. ``share`` and
    ``block`` are for the CPU.
    """
    if target.kind.name == "cuda":
        return _cuda(heads, kv_heads, head_dim, dtype)
    return _cpu(heads, kv_heads, head_dim, dtype, share, block)


@decode_attention.sizes
def _():
    return {"batch": [1, 8], "max_seq": [256, 1024, 4096]}


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


def _cpu(heads: int, kv_heads: int, head_dim: int, dtype: str, share: int, block: int):
    """A task computes up to ``share`` heads of one sequence that have the same keys, so that it reads keys once.

    It takes ``block`` positions at a time: their scores first, then the powers of all scores at once, then the values.
    """
    group = math.gcd(heads // kv_heads, share)
    tasks, lanes = heads // group, 16
    chunks = head_dim // lanes
    scale = head_dim**-0.5
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
        for task in T.parallel(batch * tasks):
            b = T.meta_var(task // tasks)
            h0 = T.meta_var(task % tasks * group)
            g = T.meta_var(h0 // (heads // kv_heads))
            length = T.meta_var(T.max(T.min(lengths[b], max_seq), 0))
            query = T.alloc_buffer((group, head_dim), "float32")
            acc = T.alloc_buffer((group, head_dim), "float32")
            score = T.alloc_buffer((group, block), "float32")
            top = T.alloc_buffer((group,), "float32")  # largest score so far
            total = T.alloc_buffer((group,), "float32")  # sum of exp(score - top)
            keep = T.alloc_buffer((1,), "float32")  # what is left of earlier sums when top grows
            for h in T.serial(group):
                top[h] = T.min_value("float32")
                total[h] = T.float32(0)
                for c in T.serial(chunks):
                    for lane in T.vectorized(lanes):
                        acc[h, c * lanes + lane] = T.float32(0)
                        query[h, c * lanes + lane] = T.cast(q[b, h0 + h, c * lanes + lane], "float32") * T.float32(
                            scale
                        )
            for s0 in T.serial(T.ceildiv(length, block)):
                for s in T.serial(block):
                    dot = T.alloc_buffer((group, lanes), "float32")
                    for h in T.unroll(group):
                        for lane in T.vectorized(lanes):
                            dot[h, lane] = T.float32(0)
                    for c in T.unroll(chunks):
                        for h in T.unroll(group):
                            for lane in T.vectorized(lanes):
                                # Positions past the end repeat the last one, with scores that add nothing.
                                dot[h, lane] += query[h, c * lanes + lane] * T.cast(
                                    k_cache[b, T.min(s0 * block + s, length - 1), g, c * lanes + lane], "float32"
                                )
                    for h in T.unroll(group):
                        for lane in T.unroll(1, lanes):
                            dot[h, 0] += dot[h, lane]
                        score[h, s] = T.Select(s0 * block + s < length, dot[h, 0], T.min_value("float32"))
                for h in T.serial(group):
                    keep[0] = top[h]
                    for s in T.serial(block):
                        top[h] = T.max(top[h], score[h, s])
                    keep[0] = T.exp2((keep[0] - top[h]) * T.float32(LOG2_E))
                    for lane in T.vectorized(block):
                        score[h, lane] = exp(score[h, lane] - top[h])
                    total[h] = total[h] * keep[0]
                    for s in T.serial(block):
                        total[h] += score[h, s]
                    for c in T.serial(chunks):
                        for lane in T.vectorized(lanes):
                            acc[h, c * lanes + lane] = acc[h, c * lanes + lane] * keep[0]
                for c in T.serial(chunks):
                    part = T.alloc_buffer((group, lanes), "float32")
                    for h in T.unroll(group):
                        for lane in T.vectorized(lanes):
                            part[h, lane] = acc[h, c * lanes + lane]
                    for s in T.serial(T.min(block, length - s0 * block)):
                        for h in T.unroll(group):
                            for lane in T.vectorized(lanes):
                                part[h, lane] += score[h, s] * T.cast(
                                    v_cache[b, s0 * block + s, g, c * lanes + lane], "float32"
                                )
                    for h in T.unroll(group):
                        for lane in T.vectorized(lanes):
                            acc[h, c * lanes + lane] = part[h, lane]
            # total is at least 1, unless the sequence is empty: then acc is 0.
            for h, c in T.grid(group, chunks):
                for lane in T.vectorized(lanes):
                    out[b, h0 + h, c * lanes + lane] = T.cast(
                        acc[h, c * lanes + lane] / T.max(total[h], T.float32(1)), dtype
                    )

    return main


def _cuda(heads: int, kv_heads: int, head_dim: int, dtype: str):
    """The positions of a sequence are split among several blocks, and a second launch merges what the blocks leave.

    A block computes the heads that share a head of keys. A key is held by a team of threads, 16 bytes in each, and
    the teams of a block take turns over the positions.
    """
    group, threads = heads // kv_heads, 256
    width = 16 // np.dtype(dtype).itemsize  # elements of a key that a thread holds
    team = head_dim // width
    teams = threads // team
    scale = LOG2_E * head_dim**-0.5
    batch, max_seq = Var("batch", "int32"), Var("max_seq", "int32")

    # Of the longest possible sequence; the parts of a shorter one are as many, and shorter. No divisor is 0, not even
    # for sizes of 0: TVM 0.27 moves divisions out of the kernels, to where they run before anything is launched.
    longest = T.max(T.truncdiv(batch * max_seq * kv_heads + BLOCKS - 1, BLOCKS), PART)
    splits = T.truncdiv(max_seq + longest - 1, longest)

    @T.inline
    def merge(count, part, d, acc, top, total, keep):
        """Sets acc to element d of the merged sums and total to their divisor; part(i, head_dim) is the top of one."""
        top[0] = T.min_value("float32")
        for i in T.serial(count):
            top[0] = T.max(top[0], part(i, head_dim))
        acc[0] = T.float32(0)
        total[0] = T.float32(0)
        for i in T.serial(count):
            keep[0] = T.exp2(part(i, head_dim) - top[0])
            acc[0] += part(i, d) * keep[0]
            total[0] += part(i, head_dim + 1) * keep[0]

    @T.prim_func(s_tir=True)
    def main(
        q: T.Buffer((batch, heads, head_dim), dtype, align=16),
        k_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=16),
        v_cache: T.Buffer((batch, max_seq, kv_heads, head_dim), dtype, align=16),
        lengths: T.Buffer((batch,), "int32"),
        out: T.Buffer((batch, heads, head_dim), dtype, align=16),
    ):
        # Of each part acc, and behind it top and total.
        parts = T.alloc_buffer((batch, heads, splits, head_dim + 2), "float32", scope="global")
        with T.launch_thread("blockIdx.z", splits) as split:
            b = T.launch_thread("blockIdx.x", batch)
            g = T.launch_thread("blockIdx.y", kv_heads)
            y = T.launch_thread("threadIdx.y", teams)
            x = T.launch_thread("threadIdx.x", team)
            query = T.alloc_buffer((group, width), "float32", scope="local")
            key = T.alloc_buffer((width,), dtype, scope="local")
            value = T.alloc_buffer((width,), dtype, scope="local")
            acc = T.alloc_buffer((group, width), "float32", scope="local")
            top = T.alloc_buffer((group,), "float32", scope="local")  # largest score so far
            total = T.alloc_buffer((group,), "float32", scope="local")  # sum of exp2(score - top)
            score = T.alloc_buffer((1,), "float32", scope="local")
            keep = T.alloc_buffer((1,), "float32", scope="local")  # what is left of earlier sums when top grows
            begin = T.alloc_buffer((1,), "int32", scope="local")
            end = T.alloc_buffer((1,), "int32", scope="local")
            of_team = T.alloc_buffer((group, teams, head_dim + 2), "float32", scope="shared")

            end[0] = T.max(T.min(lengths[b], max_seq), 0)
            begin[0] = split * T.truncdiv(end[0] + splits - 1, splits)
            end[0] = T.min(end[0], begin[0] + T.truncdiv(end[0] + splits - 1, splits))
            for h in T.serial(group):
                top[h] = T.min_value("float32")
                total[h] = T.float32(0)
                for d in T.vectorized(width):
                    key[d] = q[b, g * group + h, x * width + d]
                for d in T.serial(width):
                    query[h, d] = T.cast(key[d], "float32") * T.float32(scale)
                    acc[h, d] = T.float32(0)
            # All teams go round equally often, since warps add up scores together: past the end they repeat the last
            # position, with a score that adds nothing.
            for turn in T.serial(T.truncdiv(T.max(end[0] - begin[0], 0) + teams - 1, teams)):
                position = T.meta_var(begin[0] + turn * teams + y)
                for d in T.vectorized(width):
                    key[d] = k_cache[b, T.min(position, end[0] - 1), g, x * width + d]
                for d in T.vectorized(width):
                    value[d] = v_cache[b, T.min(position, end[0] - 1), g, x * width + d]
                for h in T.serial(group):
                    score[0] = T.float32(0)
                    for d in T.serial(width):
                        score[0] += query[h, d] * T.cast(key[d], "float32")
                    score[0] = T.cuda.warp_sum(score[0], team)
                    score[0] = T.if_then_else(position < end[0], score[0], T.float32(float("-inf")))
                    keep[0] = T.exp2(top[h] - T.max(top[h], score[0]))
                    top[h] = T.max(top[h], score[0])
                    score[0] = T.exp2(score[0] - top[h])
                    total[h] = total[h] * keep[0] + score[0]
                    for d in T.serial(width):
                        acc[h, d] = acc[h, d] * keep[0] + score[0] * T.cast(value[d], "float32")
            for h in T.serial(group):
                for d in T.serial(width):
                    of_team[h, y, x * width + d] = acc[h, d]
                of_team[h, y, head_dim] = top[h]
                of_team[h, y, head_dim + 1] = total[h]
            T.tvm_storage_sync("shared")
            for i in T.serial(T.ceildiv(group * head_dim, threads)):
                h = T.meta_var((i * threads + y * team + x) // head_dim)
                d = T.meta_var((i * threads + y * team + x) % head_dim)
                if h < group:
                    merge(teams, lambda i, e, h=h: of_team[h, i, e], d, score, top, total, keep)
                    parts[b, g * group + h, split, d] = score[0]
                    parts[b, g * group + h, split, head_dim] = top[0]
                    parts[b, g * group + h, split, head_dim + 1] = total[0]

        with T.launch_thread("blockIdx.x", batch) as b:
            h = T.launch_thread("blockIdx.y", heads)
            d = T.launch_thread("threadIdx.x", head_dim)
            acc = T.alloc_buffer((1,), "float32", scope="local")
            top = T.alloc_buffer((1,), "float32", scope="local")
            total = T.alloc_buffer((1,), "float32", scope="local")
            keep = T.alloc_buffer((1,), "float32", scope="local")
            merge(splits, lambda i, e: parts[b, h, i, e], d, acc, top, total, keep)
            # total is at least 1, unless the sequence is empty: then acc is 0.
            out[b, h, d] = T.cast(acc[0] / T.max(total[0], T.float32(1)), dtype)

    return main
