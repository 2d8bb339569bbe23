"""Layer norm of rows, in two walks along each row."""

import cuda.tile as ct
import numpy as np
from kernelwright import grid, kernel
from kernelwright_cutile import Program, Scalar, Size, Tensor


@ct.kernel
def layer_norm_kernel(x, weight, bias, y, epsilon, columns, BLOCK: ct.Constant[int]):
    """A block for each row."""
    row = ct.bid(0)
    steps = ct.num_tiles(x, axis=1, shape=(1, BLOCK))
    sums = ct.zeros((1, BLOCK), ct.float32)
    squares = ct.zeros((1, BLOCK), ct.float32)
    for step in range(steps):
        values = ct.load(x, index=(row, step), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        sums = sums + values
        squares = squares + values * values
    mean = ct.sum(sums, axis=1, keepdims=True) / columns
    variance = ct.sum(squares, axis=1, keepdims=True) / columns - mean * mean
    factor = ct.rsqrt(ct.maximum(variance, 0.0) + epsilon)
    for step in range(steps):
        values = ct.load(x, index=(row, step), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        scale = ct.load(weight, index=(step,), shape=(BLOCK,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        offset = ct.load(bias, index=(step,), shape=(BLOCK,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        ct.store(y, index=(row, step), tile=((values - mean) * factor * scale + offset).astype(y.dtype))


@kernel(frontend="cutile", configs=grid(dtype=["float32", "float16"]), outputs=["y"])
def layer_norm(dtype: str):
    """y = (x - mean) / sqrt(variance + epsilon) * weight + bias, row by row"""
    rows, row = Tensor(dtype, (..., "rows"), "columns"), Tensor(dtype, "columns")
    return Program(
        layer_norm_kernel,
        x=rows,
        weight=row,
        bias=row,
        y=rows,
        epsilon=Scalar("float32", default=1e-5),
        columns=Size("columns"),
        BLOCK=1024,
        grid="rows",
    )


@layer_norm.reference
def _(x, weight, bias, epsilon=1e-5):
    wide = x.astype("float32")
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon)
    return (scaled * weight + bias).astype(x.dtype)
