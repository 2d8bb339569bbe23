"""Softmax along rows that are no longer than a block."""

import cuda.tile as ct
import numpy as np
from kernelwright import grid, kernel
from kernelwright_cutile import Program, Tensor


@ct.kernel
def softmax_kernel(x, y, BLOCK: ct.Constant[int]):
    """A block for each row. What is behind its end counts as the least number."""
    row = ct.bid(0)
    values = ct.load(x, index=(row, 0), shape=(1, BLOCK), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    powers = ct.exp(values - ct.max(values, axis=1, keepdims=True))
    ct.store(y, index=(row, 0), tile=(powers / ct.sum(powers, axis=1, keepdims=True)).astype(y.dtype))


@kernel(
    frontend="cutile",
    configs=grid(dtype=["float32", "float16"], BLOCK=[1024, 4096]),
    outputs=["y"],
    requires=["columns <= BLOCK"],
)
def softmax(dtype: str, BLOCK: int):
    """y = exp(x) / sum(exp(x)), row by row"""
    x = Tensor(dtype, "rows", "columns", strides="dense")
    return Program(softmax_kernel, x=x, y=Tensor(dtype, "rows", "columns"), BLOCK=BLOCK, grid="rows")


@softmax.reference
def _(x):
    powers = np.exp(x.astype("float32") - x.max(axis=1, keepdims=True, initial=-np.inf).astype("float32"))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(x.dtype)
