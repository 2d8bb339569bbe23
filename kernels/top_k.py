"""The k largest elements of each row, with their positions."""

import numpy as np
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(configs=grid(k=[8, 32], dtype=["float32", "float16"]), outputs=["values", "indices"])
def top_k(k: int, dtype: str, target):
    """The k largest elements of each row in descending order; of equal elements the first comes first.

    Where a row has fewer than k elements, the rest is filled with -inf and index -1. -0.0 ranks below 0.0; the
    rank of a NaN is unspecified.

    Shapes: x [rows, n], values [rows, k], indices [rows, k] of int32.
    """
    return _cpu(k, dtype) if target.kind.name == "llvm" else _cuda(k, dtype)


@top_k.reference
def _(x, k):
    ranks = x.astype(np.float32).view(np.int32).astype(np.int64)
    ranks = np.where(ranks < 0, ranks ^ 0x7FFFFFFF, ranks)
    indices = np.argsort(-ranks, axis=1, kind="stable")[:, :k].astype(np.int32)
    missing = ((0, 0), (0, k - indices.shape[1]))
    values = np.pad(np.take_along_axis(x, indices, 1), missing, constant_values=-np.inf)
    return values, np.pad(indices, missing, constant_values=-1)


@top_k.inputs
def _(rng, rows, n, dtype):
    # Few distinct values, so that there are many ties, and a row that is all the same.
    x = rng.integers(-n // 4 - 1, n // 4 + 1, (rows, n)) / 8
    x[1::5] = -1.5
    return {"x": x.astype(dtype)}


def _key(value, index):
    """A uint64 that orders elements: by value, and those of equal value by descending index. It is never 0.

    The upper half is the float's bits, mapped so that they compare as unsigned integers do.
    """
    bits = T.reinterpret("uint32", T.cast(value, "float32"))
    ordered = T.if_then_else(bits >> T.uint32(31) == T.uint32(1), ~bits, bits | T.uint32(0x80000000))
    return T.cast(ordered, "uint64") << T.uint64(32) | T.cast(T.uint32(0xFFFFFFFF) - T.cast(index, "uint32"), "uint64")


def _value(key, dtype):
    """The value in a key; -inf for key 0, which stands for a missing element."""
    ordered = T.cast(key >> T.uint64(32), "uint32")
    bits = T.if_then_else(ordered >> T.uint32(31) == T.uint32(1), ordered ^ T.uint32(0x80000000), ~ordered)
    value = T.cast(T.reinterpret("float32", bits), dtype)
    return T.if_then_else(key == T.uint64(0), T.cast(T.float32(float("-inf")), dtype), value)


def _index(key):
    """The index in a key; -1 for key 0."""
    index = T.cast(T.uint32(0xFFFFFFFF) - T.cast(key, "uint32"), "int32")
    return T.if_then_else(key == T.uint64(0), T.int32(-1), index)


def _cpu(k: int, dtype: str):
    """A task inserts the elements of a row, one by one, into a sorted list of k keys."""
    rows, n = Var("rows", "int32"), Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((rows, n), dtype),
        values: T.Buffer((rows, k), dtype),
        indices: T.Buffer((rows, k), "int32"),
    ):
        for row in T.parallel(rows):
            best = T.alloc_buffer((k,), "uint64")
            new = T.alloc_buffer((1,), "uint64")
            for i in T.serial(k):
                best[i] = T.uint64(0)
            for j in T.serial(n):
                new[0] = _key(x[row, j], j)
                if new[0] > best[k - 1]:
                    for i in T.serial(k - 1):
                        # From the end: move a smaller key down, or put the new one below the first that is larger.
                        best[k - 1 - i] = T.max(best[k - 1 - i], T.min(best[k - 2 - i], new[0]))
                    best[0] = T.max(best[0], new[0])
            for i in T.serial(k):
                values[row, i] = _value(best[i], dtype)
                indices[row, i] = _index(best[i])

    return main


def _cuda(k: int, dtype: str):
    """A block handles a row. Each warp keeps the 32 best of its elements, one in each lane, and at the end they merge.

    Few elements are better than the k-th best so far. These alone are put into the list, one after the other (Johnson,
    Douze and Jegou, "Billion-scale similarity search with GPUs", 2017).
    """
    if k > 32:
        raise ValueError(f"k={k}: a list of a warp has 32 elements")
    warps, items, every = 16, 4, T.uint32(0xFFFFFFFF)
    threads = 32 * warps
    rows, n = Var("rows", "int32"), Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((rows, n), dtype),
        values: T.Buffer((rows, k), dtype),
        indices: T.Buffer((rows, k), "int32"),
    ):
        row = T.launch_thread("blockIdx.x", rows)
        tx = T.launch_thread("threadIdx.x", threads)
        keys = T.alloc_buffer((items,), "uint64", scope="local")
        best = T.alloc_buffer((1,), "uint64", scope="local")  # in descending order of the lanes
        least = T.alloc_buffer((1,), "uint64", scope="local")  # the k-th best
        new = T.alloc_buffer((1,), "uint64", scope="local")
        above = T.alloc_buffer((1,), "uint64", scope="local")
        better = T.alloc_buffer((1,), "uint32", scope="local")  # the lanes that have a better one
        lists = T.alloc_buffer((warps, 32), "uint64", scope="shared")
        lane = T.meta_var(tx % 32)
        warp = T.meta_var(tx // 32)

        best[0] = T.uint64(0)
        least[0] = T.uint64(0)
        for step in T.serial(T.ceildiv(n, items * threads)):
            for i in T.unroll(items):  # all loads first
                j = T.meta_var((step * items + i) * threads + tx)
                keys[i] = T.if_then_else(j < n, _key(x[row, j], j), T.uint64(0))
            for i in T.unroll(items):
                better[0] = T.cuda.ballot_sync(every, T.cast(keys[i] > least[0], "int32"))
                while better[0] != T.uint32(0):
                    new[0] = T.tvm_warp_shuffle(every, keys[i], T.cuda.ffs_u32(better[0]) - 1, 32, 32)
                    # Smaller ones move to the next lane; the new one takes the place of the largest of these.
                    above[0] = T.tvm_warp_shuffle_up(every, best[0], 1, 32, 32)
                    best[0] = T.max(best[0], T.if_then_else(lane == 0, new[0], T.min(above[0], new[0])))
                    least[0] = T.tvm_warp_shuffle(every, best[0], k - 1, 32, 32)
                    better[0] = better[0] & (better[0] - T.uint32(1))
                    better[0] = better[0] & T.cuda.ballot_sync(every, T.cast(keys[i] > least[0], "int32"))

        lists[warp, lane] = best[0]
        T.tvm_storage_sync("shared")
        # Half of the warps merge two lists each, then half of these. The better one of a list's first and the other's
        # last, of its second and the other's last but one, ... are the best 32, which rise and then fall, or the other
        # way round; five exchanges sort such a sequence (Batcher, "Sorting networks and their applications", 1968).
        for level in T.unroll(4):
            half = T.meta_var(warps >> (level + 1))
            if warp < half:
                best[0] = T.max(lists[warp, lane], lists[warp + half, 31 - lane])
                for e in T.unroll(5):
                    new[0] = T.tvm_warp_shuffle_xor(every, best[0], 16 >> e, 32, 32)
                    best[0] = T.if_then_else((lane & (16 >> e)) == 0, T.max(best[0], new[0]), T.min(best[0], new[0]))
            T.tvm_storage_sync("shared")
            if warp < half:
                lists[warp, lane] = best[0]
            T.tvm_storage_sync("shared")
        if tx < k:
            values[row, tx] = _value(best[0], dtype)
            indices[row, tx] = _index(best[0])

    return main
