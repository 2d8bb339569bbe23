"""Means of columns in CUDA C++: two launches with memory between them, rows that lie apart, and weights or None."""

from kernelwright import grid, kernel
from kernelwright.cuda import Size, Source, Tensor, Workspace, ceildiv

TYPES = {"float32": "float", "float16": "__half"}
PARTS, THREADS = 8, 128


@kernel(frontend="cuda", configs=grid(dtype=list(TYPES)), outputs=["y"], requires=["rows >= 1"])
def column_means(dtype: str):
    """y = the mean of weight[row] * x[row] over all rows; without a weight, that of x[row]"""
    partial = Workspace("float32", PARTS, "columns")
    blocks = ceildiv("columns", THREADS)
    return [
        Source(
            "column_means.cu",
            f"columns::sums<{TYPES[dtype]}, {PARTS}>",
            x=Tensor(dtype, "rows", "columns", strides=("stride", 1)),
            weight=Tensor("float32", "rows", optional=True),
            partial=partial,
            rows=Size("rows"),
            columns=Size("columns"),
            stride=Size("stride", "int64"),
            grid=(blocks, PARTS),
            block=THREADS,
        ),
        Source(
            "column_means.cu",
            f"columns::means<{PARTS}>",
            partial=partial,
            y=Tensor("float32", "columns"),
            rows=Size("rows"),
            columns=Size("columns"),
            grid=blocks,
            block=THREADS,
        ),
    ]


@column_means.reference
def _(x, weight):
    weighted = x.astype("float32") if weight is None else x.astype("float32") * weight[:, None]
    return weighted.sum(axis=0) / len(x)
