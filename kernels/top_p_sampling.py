"""Nucleus sampling (Holtzman et al., "The curious case of neural text degeneration", 2019), reproducible to the bit."""

import numpy as np
from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var

BITS = 30
"""A probability is rounded down to a multiple of 2**-BITS and counted as an integer weight, so that sums are exact and
do not depend on the order of summation: CPU, GPU and NumPy draw the same tokens."""

FRACTION = 24
"""top_p and uniform are rounded down to multiples of 2**-FRACTION; usual generators make nothing finer."""


@kernel(outputs=["token"])
def top_p_sampling(target):
    """Draws a token for each row, from the most probable tokens whose probabilities add up to at least ``top_p``.

    Of the probabilities p the nucleus keeps every token with p >= t, for the largest t with which the kept ones add
    up to ``top_p`` times the sum of the row; tokens of equal probability are in or out together. The token is the
    first whose running sum over the nucleus, in order of position, exceeds ``uniform`` times the sum of the nucleus.
    It is -1 for a row that has no probability of 2**-30 or more.

    Shapes: probs [rows, n] of float32, uniform [rows] of float32 in [0, 1), token [rows] of int32. ``top_p`` is a
    float32 in [0, 1]; 0 keeps only the most probable. A row needs to add up to less than 500, and not to 1.
    """
    return _cpu() if target.kind.name == "llvm" else _cuda()


@top_p_sampling.reference
def _(probs, uniform, top_p):
    token = np.full(len(probs), -1, np.int32)
    weights = (np.clip(probs, 0, 1) * np.float32(2**BITS)).astype(np.int64)
    for row, (weight, u) in enumerate(zip(weights, uniform, strict=True)):
        if not weight.any():
            continue
        levels = np.unique(weight)[::-1]
        sums = np.array([weight[weight >= level].sum() for level in levels])
        part = int(min(max(np.float32(top_p), 0), 1) * 2**FRACTION)
        needed = max(1, -(-part * int(weight.sum()) >> FRACTION))
        nucleus = np.where(weight >= levels[np.argmax(sums >= needed)], weight, 0)
        position = min(int(min(max(u, 0), 1) * 2**FRACTION) * int(nucleus.sum()) >> FRACTION, int(nucleus.sum()) - 1)
        token[row] = np.argmax(np.cumsum(nucleus) > position)
    return token


@top_p_sampling.inputs
def _(rng, rows, n):
    # Softmax of random scores, with ties, rows without any probability, and both ends of the unit interval.
    scores = np.exp(3 * rng.standard_normal((rows, n)).round(1))
    probs = scores / np.maximum(scores.sum(axis=1, keepdims=True), 1)
    probs[3::11] = 0
    uniform = rng.integers(0, 2**24, rows) / 2**24
    uniform[::7] = 0
    uniform[1::7] = 1 - 2**-24
    return {
        "probs": probs.astype(np.float32),
        "uniform": uniform.astype(np.float32),
        "top_p": float(rng.choice([0, 0.3, 0.9, 1])),
    }


def _weight(prob):
    """The integer weight of a probability."""
    return T.cast(T.min(T.max(prob, T.float32(0)), T.float32(1)) * T.float32(2**BITS), "int32")


def _share(fraction, total):
    """``fraction`` of an integer, for a fraction between 0 and 1, in units of 2**-FRACTION."""
    clipped = T.min(T.max(fraction, T.float32(0)), T.float32(1))
    return T.cast(clipped * T.float32(2**FRACTION), "int64") * total


def _needed(top_p, total):
    """What the nucleus has to add up to: the share of the total rounded up, and at least 1."""
    return T.max((_share(top_p, total) + T.int64(2**FRACTION - 1)) >> T.int64(FRACTION), T.int64(1))


def _position(uniform, total):
    """The running sum that the drawn token is the first to exceed."""
    return T.min(_share(uniform, total) >> T.int64(FRACTION), total - T.int64(1))


def _cpu():
    """A task handles a row: a binary search for the least weight in the nucleus, then a scan for the token."""
    rows, n, lanes = Var("rows", "int32"), Var("n", "int32"), 8

    @T.inline
    def add_up(probs, row, least, lane_sums, total):
        for lane in T.vectorized(lanes):
            lane_sums[lane] = T.int64(0)
        for j in T.serial(n // lanes):
            for lane in T.vectorized(lanes):
                weight = T.meta_var(_weight(probs[row, j * lanes + lane]))
                lane_sums[lane] += T.cast(T.Select(weight >= least, weight, 0), "int64")
        total[0] = T.int64(0)
        for lane in T.serial(lanes):
            total[0] += lane_sums[lane]
        for j in T.serial(n % lanes):
            weight = T.meta_var(_weight(probs[row, n // lanes * lanes + j]))
            total[0] += T.cast(T.Select(weight >= least, weight, 0), "int64")

    @T.prim_func(s_tir=True)
    def main(
        probs: T.Buffer((rows, n), "float32", align=4),  # NumPy promises no more, and TVM would take 64 for granted
        uniform: T.Buffer((rows,), "float32"),
        top_p: T.float32,
        token: T.Buffer((rows,), "int32"),
    ):
        for row in T.parallel(rows):
            lane_sums = T.alloc_buffer((lanes,), "int64")
            total = T.alloc_buffer((1,), "int64")
            needed = T.alloc_buffer((1,), "int64")
            level = T.alloc_buffer((1,), "int32")
            add_up(probs, row, 0, lane_sums, total)
            needed[0] = _needed(top_p, total[0])
            level[0] = 0
            for bit in T.serial(BITS + 1):
                add_up(probs, row, level[0] | 1 << (BITS - bit), lane_sums, total)
                if total[0] >= needed[0]:
                    level[0] = level[0] | 1 << (BITS - bit)
            add_up(probs, row, level[0], lane_sums, total)
            token[row] = -1
            if total[0] > T.int64(0):
                needed[0] = _position(uniform[row], total[0])
                for j in T.serial(n):
                    if _weight(probs[row, j]) >= level[0] and token[row] < 0:
                        needed[0] -= T.cast(_weight(probs[row, j]), "int64")
                        if needed[0] < T.int64(0):
                            token[row] = j

    return main


def _cuda():
    """A block handles a row: binary searches, first for the least weight in the nucleus and then for the token."""
    rows, n, warps = Var("rows", "int32"), Var("n", "int32"), 16
    threads = 32 * warps

    @T.prim_func(s_tir=True)
    def main(
        probs: T.Buffer((rows, n), "float32"),
        uniform: T.Buffer((rows,), "float32"),
        top_p: T.float32,
        token: T.Buffer((rows,), "int32"),
    ):
        row = T.launch_thread("blockIdx.x", rows)
        tx = T.launch_thread("threadIdx.x", threads)
        scratch = T.alloc_buffer((warps,), "int64", scope="shared")
        total = T.alloc_buffer((1,), "int64", scope="local")
        needed = T.alloc_buffer((1,), "int64", scope="local")
        level = T.alloc_buffer((1,), "int32", scope="local")
        begin = T.alloc_buffer((1,), "int32", scope="local")
        end = T.alloc_buffer((1,), "int32", scope="local")

        @T.inline
        def add_up(first, last, least):
            """Sets total, in all threads alike, to the sum of the weights from ``least`` on in a part of the row."""
            total[0] = T.int64(0)
            for step in T.serial(T.ceildiv(last - first, threads)):
                if first + step * threads + tx < last:
                    weight = T.meta_var(_weight(probs[row, first + step * threads + tx]))
                    total[0] += T.cast(T.Select(weight >= least, weight, 0), "int64")
            total[0] = T.cuda.cta_sum(total[0], warps, scratch.data)
            T.tvm_storage_sync("shared")  # before the next sum overwrites scratch

        add_up(0, n, 0)
        needed[0] = _needed(top_p, total[0])
        level[0] = 0
        for bit in T.serial(BITS + 1):
            add_up(0, n, level[0] | 1 << (BITS - bit))
            if total[0] >= needed[0]:
                level[0] = level[0] | 1 << (BITS - bit)
        add_up(0, n, level[0])
        needed[0] = _position(uniform[row], total[0])
        begin[0] = 0
        end[0] = T.if_then_else(total[0] > T.int64(0), n, 0)
        while end[0] - begin[0] > 1:
            add_up(begin[0], (begin[0] + end[0]) // 2, level[0])
            if needed[0] < total[0]:
                end[0] = (begin[0] + end[0]) // 2
            else:
                needed[0] -= total[0]
                begin[0] = (begin[0] + end[0]) // 2
        if tx == 0:
            token[row] = T.if_then_else(end[0] > 0, begin[0], -1)

    return main
