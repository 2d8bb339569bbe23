"""Matrix products in TileLang, lazy and eager."""

from kernelwright import grid, kernel
from kernelwright.tilelang import Program


@kernel(frontend="tilelang", configs=grid(dtype=["float16", "bfloat16"]), outputs=["C"])
def matmul(dtype: str):
    """C = A B"""
    return Program("tile/matmul.py", "matmul", M=1024, N=1024, K=512, dtype=dtype)


@matmul.reference
def _(A, B):
    return (A.astype("float32") @ B.astype("float32")).astype(A.dtype)


@kernel(frontend="tilelang", outputs=["C"])
def gemm():
    """C = A B, for all sizes"""
    return Program("tile/matmul.py", "gemm", block_M=128)
