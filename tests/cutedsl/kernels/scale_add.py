"""A vector operation: one thread for each element."""

import cutlass
from cutlass import cute
from kernelwright import grid, kernel
from kernelwright.frontends.cutedsl.program import Program, Scalar, Tensor

THREADS = 256


@cute.kernel
def scale_add_device(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(x):
        z[i] = (alpha * x[i].to(cutlass.Float32) + y[i].to(cutlass.Float32)).to(z.element_type)


@cute.jit
def scale_add_host(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    blocks = cute.ceil_div(cute.size(x), THREADS)
    scale_add_device(alpha, x, y, z).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


@kernel(frontend="cutedsl", configs=grid(dtype=["float32", "float16"]), outputs=["z"])
def scale_add(dtype: str):
    """z = alpha x + y"""
    vector = Tensor(dtype, "n")
    return Program(scale_add_host, alpha=Scalar("float32"), x=vector, y=vector, z=vector)


@scale_add.reference
def _(alpha, x, y):
    return (alpha * x.astype("float32") + y.astype("float32")).astype(x.dtype)
