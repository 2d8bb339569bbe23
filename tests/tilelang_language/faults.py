"""Functions of TileLang that are wrong, or that have what a launch of Kernelwright has not."""

import os

import tilelang
import tilelang.language as T


def helper(n):
    return n


@tilelang.jit(out_idx=[-1])
def fine(n):
    @T.prim_func
    def copied(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                y[i] = x[i] * 2.0

    return copied


@tilelang.jit(out_idx=[-1])
def raising(n):
    raise KeyError(n // 0)


@tilelang.jit(out_idx=[-1])
def mismatched(n):
    @T.prim_func
    def product(x: T.Tensor((n, n), "float16"), y: T.Tensor((n, n), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, b, c)
            T.copy(c, y[0, 0])

    return product


@tilelang.jit(out_idx=[-1])
def large(n):
    @T.prim_func
    def copied(x: T.Tensor((n, 65536), "float32"), y: T.Tensor((n, 65536), "float32")):
        with T.Kernel(n, threads=128) as row:
            a = T.alloc_shared((1, 65536), "float32")
            T.copy(x[row, 0], a)
            for i in T.Parallel(65536):
                y[row, i] = a[0, i] * 2.0

    return copied


@tilelang.jit(out_idx=[-1])
def kept(n):
    @T.prim_func
    def copied(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_l2_hit_ratio({x: 0.5})
            for i in T.Parallel(n):
                y[i] = x[i] * 2.0

    return copied


@tilelang.jit(out_idx=[-1])
def deciding(n):
    factor = 2.0 if n == "auto" or (n != None and n % 128 == 0) else 3.0  # noqa: E711

    @T.prim_func
    def scaled(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                y[i] = x[i] * factor

    return scaled


@tilelang.jit(out_idx=[-1])
def counting(n):
    return [deciding(size) for size in range(n)]


@tilelang.jit(out_idx=[-1])
def holding(n):
    @T.prim_func
    def copied(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((n,), "float32")
            T.copy(x, a)
            T.copy(a, y)

    return copied


@tilelang.jit(out_idx=[-1])
def pointing(n):
    @T.prim_func
    def filled(x: T.ptr(T.float32), y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                y[i] = 2.0

    return filled


@tilelang.jit(out_idx=[-1])
def convolved(n):
    @T.prim_func
    def columns(x: T.Tensor((1, 64, 64, 64), "float16"), y: T.Tensor((1, 64, 64, 64), "float16")):
        with T.Kernel(32, threads=128) as at:
            a = T.alloc_shared((128, 64), "float16")
            T.c2d_im2col(x, a, at, 0, 3, 1, 1, 1)
            T.copy(a, y[0, at * 2, 0, 0])

    return columns


@tilelang.jit
def ending(n):
    os.abort()
