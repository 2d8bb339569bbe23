"""The tutorial kernel: the smallest complete definition."""

from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(outputs=["z"])
def saxpy():
    """z = alpha * x + y, for float32 vectors x, y and z of one length n, and a float32 scalar alpha."""
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        alpha: T.float32,
        x: T.Buffer((n,), "float32"),
        y: T.Buffer((n,), "float32"),
        z: T.Buffer((n,), "float32"),
    ):
        for i in T.parallel(n):
            with T.sblock("saxpy"):
                vi = T.axis.spatial(n, i)
                z[vi] = alpha * x[vi] + y[vi]

    return main


@saxpy.reference
def _(alpha, x, y):
    return x * x.dtype.type(alpha) + y
