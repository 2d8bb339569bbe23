"""A matrix product with tiles in shared memory, which TileLang's pipeline fills while the tensor cores compute."""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def gemm(N, K, dtype, rows=128, columns=128, depth=64, stages=3):
    """C = A B, for any number of rows"""
    M = T.dynamic("M")

    @T.prim_func
    def product(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=256) as (column, row):
            a = T.alloc_shared((rows, depth), dtype)
            b = T.alloc_shared((depth, columns), dtype)
            sums = T.alloc_fragment((rows, columns), "float32")
            T.clear(sums)
            for step in T.Pipelined(T.ceildiv(K, depth), num_stages=stages):
                T.copy(A[row * rows, step * depth], a)
                T.copy(B[step * depth, column * columns], b)
                T.gemm(a, b, sums)
            T.copy(sums, C[row * rows, column * columns])

    return product
