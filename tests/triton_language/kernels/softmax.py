import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor


@triton.jit
def softmax_kernel(x, y, n, BLOCK: tl.constexpr):
    """One row for each program."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * n + at, powers / tl.sum(powers, axis=0), mask=at < n)


@kernel(frontend="triton", outputs=["y"])
def softmax():
    """Softmax along rows of at most 512 elements."""
    rows = Tensor("float32", "m", "n")
    return Program(softmax_kernel, x=rows, y=rows, n=Size("n"), BLOCK=512, grid="m")


@softmax.reference
def _(x):
    import numpy as np

    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
