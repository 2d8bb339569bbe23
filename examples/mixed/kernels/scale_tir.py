"""y = alpha x, in TIR."""

from kernelwright import kernel
from tvm import te


@kernel(outputs=["y"])
def scale_tir():
    """y = alpha x"""
    n = te.var("n")
    alpha = te.var("alpha", "float32")
    x = te.placeholder((n,), "float32", "x")
    y = te.compute((n,), lambda i: alpha * x[i], "y")
    return te.create_prim_func([alpha, x, y])
