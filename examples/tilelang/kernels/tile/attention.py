"""Attention that keeps a running maximum and sum of each row, so that no matrix of all scores is ever stored."""

import math

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def attention(heads, dim, causal, rows=128, columns=64, stages=2):
    """out = softmax(q k^T / sqrt(dim)) v, for any batch and length"""
    batch, length = T.dynamic("batch, length")
    shape = (batch, length, heads, dim)
    # Powers of two are faster than those of e.
    scale = math.log2(math.e) / math.sqrt(dim)

    @T.prim_func
    def online(
        q: T.Tensor(shape, "float16"),
        k: T.Tensor(shape, "float16"),
        v: T.Tensor(shape, "float16"),
        out: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(length, rows), heads, batch, threads=128) as (block, head, item):
            queries = T.alloc_shared((rows, dim), "float16")
            keys = T.alloc_shared((columns, dim), "float16")
            values = T.alloc_shared((columns, dim), "float16")
            scores = T.alloc_fragment((rows, columns), "float32")
            weights = T.alloc_fragment((rows, columns), "float16")
            result = T.alloc_fragment((rows, dim), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            shrink = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")

            T.copy(q[item, block * rows : (block + 1) * rows, head, :], queries)
            T.fill(result, 0)
            T.fill(total, 0)
            T.fill(largest, -T.infinity("float32"))
            last = T.min(length, (block + 1) * rows) if causal else length
            for step in T.Pipelined(T.ceildiv(last, columns), num_stages=stages):
                T.copy(k[item, step * columns : (step + 1) * columns, head, :], keys)
                for i, j in T.Parallel(rows, columns):
                    inside = step * columns + j < length
                    if causal:
                        inside = T.And(inside, block * rows + i >= step * columns + j)
                    scores[i, j] = T.if_then_else(inside, 0, -T.infinity("float32"))
                T.gemm(queries, keys, scores, transpose_B=True)
                T.copy(largest, before)
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i in T.Parallel(rows):
                    shrink[i] = T.exp2((before[i] - largest[i]) * scale)
                for i, j in T.Parallel(rows, columns):
                    scores[i, j] = T.exp2((scores[i, j] - largest[i]) * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(rows, dim):
                    result[i, j] *= shrink[i]
                T.copy(v[item, step * columns : (step + 1) * columns, head, :], values)
                T.gemm(weights, values, result)
            for i, j in T.Parallel(rows, dim):
                result[i, j] /= total[i]
            T.copy(result, out[item, block * rows : (block + 1) * rows, head, :])

    return online
