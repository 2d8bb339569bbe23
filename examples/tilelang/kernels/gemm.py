"""A matrix product: TileLang's source is in tile/gemm.py."""

from kernelwright import grid, kernel
from kernelwright.tilelang import Program


@kernel(frontend="tilelang", configs=grid(dtype=["float16", "bfloat16"]), outputs=["C"])
def gemm(dtype: str):
    """C = A B, for all numbers of rows; B is 2048 x 2048"""
    return Program("tile/gemm.py", "gemm", N=2048, K=2048, dtype=dtype)


@gemm.reference
def _(A, B):
    return (A.astype("float32") @ B.astype("float32")).astype(A.dtype)
