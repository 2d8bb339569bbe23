"""Two launches of one function, and a launch of clusters."""

import tilelang
import tilelang.language as T


@tilelang.autotune(configs=[{"threads": 64}, {"threads": 128}])
@tilelang.jit(out_idx=[-1])
def steps(n, threads=128):
    m = T.dynamic("m")

    @T.prim_func
    def launched(
        alpha: T.float32, x: T.Tensor((m, n), "float32"), z: T.Tensor((m, n), "float32"), y: T.Tensor((m, n), "float32")
    ):
        with T.Kernel(m, threads=threads) as row:
            for i in T.Parallel(n):
                z[row, i] = x[row, i] * 2.0
        with T.Kernel(m, threads=threads) as row:
            for i in T.Parallel(n):
                y[row, i] = z[row, i] * alpha

    return launched


@tilelang.jit
def doubled(x, y, block: int = 128):
    n = T.const("n")
    x: T.Tensor[[n], T.float32]
    y: T.Tensor[[n], T.float32]
    with T.Kernel(T.ceildiv(n, block), threads=128, cluster_dims=(2, 1, 1)) as at:
        for i in T.Parallel(block):
            y[at * block + i] = x[at * block + i] * 2.0
