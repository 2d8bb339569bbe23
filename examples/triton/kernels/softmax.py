"""Softmax along rows of any length."""

import numpy as np
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    """A program for each row, which it reads twice: for its largest value and the sum, and for the results."""
    row = tl.program_id(0).to(tl.int64) * columns
    top = float("-inf")
    total = 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(values, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(values - higher), axis=0)
        top = higher
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < columns).to(tl.float32)
        tl.store(y + row + at, (tl.exp(values - top) / total).to(y.dtype.element_ty), mask=at < columns)


@kernel(frontend="triton", configs=grid(dtype=["float32", "float16"]), specialize="auto", outputs=["y"])
def softmax(dtype: str):
    """y = exp(x) / sum(exp(x)), row by row"""
    rows = Tensor(dtype, "rows", "columns")
    return Program(softmax_kernel, x=rows, y=rows, columns=Size("columns"), BLOCK=1024, grid="rows")


@softmax.reference
def _(x):
    powers = np.exp(x.astype("float32") - x.max(axis=1, keepdims=True, initial=-np.inf).astype("float32"))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(x.dtype)


@softmax.inputs
def _(rng, rows, columns):
    return {} if rows < 1000 else None  # the interpreter runs one row after the other, and they are all alike
