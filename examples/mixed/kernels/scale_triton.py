"""y = alpha x, in Triton."""

import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Scalar, Size, Tensor, ceildiv

BLOCK = 1024


@triton.jit
def scale(alpha, x, y, n, SIZE: tl.constexpr):
    """A program for SIZE elements."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, alpha * tl.load(x + at, mask=at < n), mask=at < n)


@kernel(frontend="triton", outputs=["y"])
def scale_triton():
    """y = alpha x"""
    vector = Tensor("float32", "n")
    alpha = Scalar("float32")
    return Program(scale, alpha=alpha, x=vector, y=vector, n=Size("n"), SIZE=BLOCK, grid=ceildiv("n", BLOCK))
