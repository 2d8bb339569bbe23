"""Kernels in Triton of a small program that is recorded; what it calls them with is in ``host.py``."""

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=4),
]


@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None})
@triton.jit
def softmax_rows(y, x, bias, stride, columns, scale, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """y = softmax(scale * x + bias), one row for each program; without a bias it is None."""
    row = tl.program_id(0) * stride
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32) * scale
    if HAS_BIAS:
        values += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    values = tl.where(inside, values, float("-inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + at, (powers / tl.sum(powers, axis=0)).to(y.dtype.element_ty), mask=inside)


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    a_row,
    a_column,
    b_row,
    b_column,
    c_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr = 32,
):
    """c = a b for matrices with any strides; the rows of c have no gaps between their elements."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        left_at = first + tl.arange(0, BLOCK_K)[None, :]
        right_at = first + tl.arange(0, BLOCK_K)[:, None]
        left = tl.load(a + rows * a_row + left_at * a_column, mask=(rows < m) & (left_at < k), other=0.0)
        right = tl.load(b + right_at * b_row + columns * b_column, mask=(right_at < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + rows * c_row + columns, total.to(c.dtype.element_ty), mask=(rows < m) & (columns < n))


@triton.jit
def every(y, x, step, count, BLOCK: tl.constexpr):
    """y[i] = x[i * step]"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * step, mask=at < count), mask=at < count)


@triton.jit
def combine(z, x, y, count, a, b, shift, limit, BLOCK: tl.constexpr):
    """z = min(a x + b y + shift, limit)"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = a * tl.load(x + at, mask=at < count) + b * tl.load(y + at, mask=at < count) + shift
    tl.store(z + at, tl.minimum(value, limit), mask=at < count)
