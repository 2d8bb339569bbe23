"""Layer normalization, a template in CUDA C++: an instance for each dtype."""

import numpy as np
from kernelwright import grid, kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor

TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
THREADS = 256


@kernel(frontend="cuda", configs=grid(dtype=list(TYPES)), outputs=["y"])
def layer_norm(dtype: str):
    """y = (x - mean) / sqrt(variance + epsilon) * weight + bias, row by row"""
    return Source(
        "layer_norm.cu",
        f"layers::layer_norm<{TYPES[dtype]}, {THREADS}>",
        x=Tensor(dtype, "rows", "columns"),
        weight=Tensor(dtype, "columns"),
        bias=Tensor(dtype, "columns"),
        y=Tensor(dtype, "rows", "columns"),
        columns=Size("columns"),
        epsilon=Scalar("float32"),
        grid="rows",
        block=THREADS,
    )


@layer_norm.reference
def _(x, weight, bias, epsilon):
    values = x.astype("float32")
    centered = values - values.mean(axis=1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + epsilon)
    return (scaled * weight.astype("float32") + bias.astype("float32")).astype(x.dtype)
