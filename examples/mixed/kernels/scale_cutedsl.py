"""y = alpha x, in CuTe DSL."""

import cutlass
from cutlass import cute
from kernelwright import kernel
from kernelwright.cutedsl import Program, Scalar, Tensor

THREADS = 256


@cute.kernel
def scale_device(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor):
    """One element for each thread."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    if at < cute.size(y):
        y[at] = alpha * x[at]


@cute.jit
def scale_host(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor):
    """The launch."""
    scale_device(alpha, x, y).launch(grid=[cute.ceil_div(cute.size(y), THREADS), 1, 1], block=[THREADS, 1, 1])


@kernel(frontend="cutedsl", outputs=["y"])
def scale_cutedsl():
    """y = alpha x"""
    vector = Tensor("float32", "n")
    return Program(scale_host, alpha=Scalar("float32"), x=vector, y=vector)
