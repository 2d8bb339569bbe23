"""What several kernels compute with."""

import triton
import triton.language as tl  # noqa: F401 (the interpreter looks for it)


@triton.jit
def plus(a, b):
    return a + b
