"""Matrix products with tiles in shared memory."""

import tilelang
import tilelang.language as T
from blocks import multiplied


@tilelang.jit(out_idx=[-1], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}, compile_flags=["-DUSED=1"])
def matmul(M, N, K, dtype, block_M=128, block_N=128, block_K=64):
    @T.prim_func
    def product(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (column, row):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[row * block_M, step * block_K], a)
                T.copy(B[step * block_K, column * block_N], b)
                multiplied(a, b, c)
            T.copy(c, C[row * block_M, column * block_N])

    return product


@tilelang.jit
def gemm(A, B, block_M: int = 64, block_N: int = 64, block_K: int = 32):
    M, N, K = T.dynamic("M, N, K")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[K, N], T.float16]
    C = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (column, row):
        a = T.alloc_shared((block_M, block_K), "float16")
        b = T.alloc_shared((block_K, block_N), "float16")
        c = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(c)
        for step in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
            T.copy(A[row * block_M, step * block_K], a)
            T.copy(B[step * block_K, column * block_N], b)
            T.gemm(a, b, c)
        T.copy(c, C[row * block_M, column * block_N])
    return C
