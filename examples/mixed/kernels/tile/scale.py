"""y = alpha x, for vectors of any length."""

import tilelang
import tilelang.language as T

BLOCK = 1024


@tilelang.jit(out_idx=[-1])
def scale():
    """A block of threads for BLOCK elements."""
    n = T.dynamic("n")

    @T.prim_func
    def scaled(alpha: T.float32, x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, BLOCK), threads=256) as block:
            for i in T.Parallel(BLOCK):
                y[block * BLOCK + i] = alpha * x[block * BLOCK + i]

    return scaled
