"""RMS normalization, from sources that launch by themselves: the length of the rows decides how many threads."""

import numpy as np
from kernelwright import grid, kernel
from kernelwright.cuda import Exported, Scalar, Tensor


@kernel(
    frontend="cuda",
    sources=["rms_norm.cu", "rms_norm.cc"],
    configs=grid(dtype=["float32", "float16"]),
    outputs=["y"],
)
def rms_norm(dtype: str):
    """y = x / sqrt(mean of the squares + epsilon) * weight, row by row"""
    return Exported(
        "rms_norm",
        x=Tensor(dtype, "rows", "columns"),
        weight=Tensor(dtype, "columns"),
        y=Tensor(dtype, "rows", "columns"),
        epsilon=Scalar("float64"),
    )


@rms_norm.reference
def _(x, weight, epsilon):
    values = x.astype("float32")
    scale = 1 / np.sqrt((values**2).mean(axis=1, keepdims=True) + epsilon)
    return (values * scale * weight.astype("float32")).astype(x.dtype)


@kernel(frontend="cuda", sources=["threads.cc"])
def rms_norm_threads():
    """The number of threads that rms_norm has for a row of that many elements"""
    return Exported("rms_norm_threads")
