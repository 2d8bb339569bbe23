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
    """A block handles a row. It finds the least weight of the nucleus digit by digit, as a radix sort would.

    The digits are those of the float32 that a weight is equal to, so that small and large weights spread over the
    bins. For each digit the weights that agree with it so far are added up by their next digit, in one pass.
    """
    rows, n, warps, items = Var("rows", "int32"), Var("n", "int32"), 32, 4
    threads, bins = 32 * warps, 1024

    def order(weight):
        """Compares as the weight does: below 2**28, and negative for 0."""
        return T.reinterpret("int32", T.cast(weight, "float32")) - 0x3F800000  # the bits of 1.0

    def kept(weight, level):
        return T.cast(T.Select(order(weight) >= level, weight, 0), "int64")

    def sum_of(low_words, high_words, i):
        return T.cast(high_words[i], "int64") << T.int64(32) | T.cast(low_words[i], "int64")

    @T.prim_func(s_tir=True)
    def main(
        probs: T.Buffer((rows, n), "float32"),
        uniform: T.Buffer((rows,), "float32"),
        top_p: T.float32,
        token: T.Buffer((rows,), "int32"),
    ):
        row = T.launch_thread("blockIdx.x", rows)
        tx = T.launch_thread("threadIdx.x", threads)
        # The sums of the bins, in words of 32 bits because there are fast atomic additions of these. Bin 0 has the
        # largest digit.
        low_words = T.alloc_buffer((bins,), "uint32", scope="shared")
        high_words = T.alloc_buffer((bins,), "uint32", scope="shared")
        of_warp = T.alloc_buffer((warps,), "int64", scope="shared")
        weights = T.alloc_buffer((items,), "int32", scope="local")
        old = T.alloc_buffer((1,), "uint32", scope="local")
        total = T.alloc_buffer((1,), "int64", scope="local")
        needed = T.alloc_buffer((1,), "int64", scope="local")
        rest = T.alloc_buffer((1,), "int64", scope="local")
        level = T.alloc_buffer((1,), "int32", scope="local")
        begin = T.alloc_buffer((1,), "int32", scope="local")
        end = T.alloc_buffer((1,), "int32", scope="local")
        width = T.alloc_buffer((1,), "int32", scope="local")
        skipped = T.alloc_buffer((1,), "int32", scope="local")

        @T.inline
        def add_up(high, low):
            """Adds up the weights that agree with level in the bits from ``high`` on, by their bits from ``low`` on."""
            low_words[tx] = T.uint32(0)
            high_words[tx] = T.uint32(0)
            T.tvm_storage_sync("shared")
            for step in T.serial(T.ceildiv(n, items * threads)):
                for i in T.unroll(items):  # all loads first
                    j = T.meta_var((step * items + i) * threads + tx)
                    weights[i] = T.if_then_else(j < n, _weight(probs[row, j]), 0)
                for i in T.unroll(items):
                    key = T.meta_var(order(weights[i]))
                    place = T.meta_var((1 << (high - low)) - 1 - (key >> low & (1 << (high - low)) - 1))
                    if weights[i] > 0 and key >> high == level[0] >> high:
                        old[0] = T.cuda.atomic_add(T.address_of(low_words[place]), T.cast(weights[i], "uint32"))
                        if old[0] + T.cast(weights[i], "uint32") < old[0]:
                            T.evaluate(T.cuda.atomic_add(T.address_of(high_words[place]), T.uint32(1)))
            T.tvm_storage_sync("shared")

        @T.inline
        def add_parts(weight_at):
            """Each warp adds up a part of the weights from begin to end; width is the length of a part."""
            width[0] = T.ceildiv(end[0] - begin[0], warps)
            total[0] = T.int64(0)
            for step in T.serial(T.ceildiv(width[0], 32)):
                i = T.meta_var(tx // 32 * width[0] + step * 32 + tx % 32)
                if step * 32 + tx % 32 < width[0] and begin[0] + i < end[0]:
                    total[0] += weight_at(begin[0] + i)
            total[0] = T.cuda.warp_sum(total[0])
            if tx % 32 == 0:
                of_warp[tx // 32] = total[0]
            T.tvm_storage_sync("shared")

        @T.inline
        def find(count, weight_at):
            """Sets begin to the first weight whose running sum exceeds rest, and takes those before it off rest."""
            begin[0] = 0
            end[0] = count
            while end[0] - begin[0] > 1:
                add_parts(weight_at)
                skipped[0] = 0
                for w in T.serial(warps - 1):
                    total[0] = of_warp[w]
                    if skipped[0] == w and rest[0] >= total[0]:
                        rest[0] -= total[0]
                        skipped[0] += 1
                T.tvm_storage_sync("shared")
                begin[0] = T.min(begin[0] + skipped[0] * width[0], end[0] - 1)
                end[0] = T.min(end[0], begin[0] + width[0])

        @T.inline
        def find_digit(high, low):
            find(1 << (high - low), lambda i: sum_of(low_words, high_words, i))
            level[0] |= (1 << (high - low)) - 1 - begin[0] << low

        level[0] = 0
        add_up(28, 18)
        begin[0] = 0
        end[0] = bins
        add_parts(lambda i: sum_of(low_words, high_words, i))
        total[0] = T.int64(0)
        for w in T.serial(warps):
            total[0] += of_warp[w]
        T.tvm_storage_sync("shared")
        needed[0] = _needed(top_p, total[0])
        rest[0] = needed[0] - T.int64(1)
        find_digit(28, 18)
        add_up(18, 8)
        find_digit(18, 8)
        add_up(8, 0)
        find_digit(8, 0)
        # The sum of the nucleus: of what lies above level, and of what equals it.
        needed[0] = needed[0] - T.int64(1) - rest[0] + sum_of(low_words, high_words, begin[0])
        rest[0] = _position(uniform[row], needed[0])
        find(n, lambda j: kept(_weight(probs[row, j]), level[0]))
        if tx == 0:
            token[row] = T.if_then_else(needed[0] > T.int64(0), begin[0], -1)

    return main
