"""What several kernels compute with."""

import triton


@triton.jit
def plus(a, b):
    return a + b
