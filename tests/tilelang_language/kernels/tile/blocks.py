"""What the kernels of this folder have in common."""

import tilelang.language as T


@T.macro
def multiplied(a, b, c):
    T.gemm(a, b, c)
