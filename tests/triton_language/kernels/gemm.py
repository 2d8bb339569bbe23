import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@triton.jit
def gemm_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    columns = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        inner = first + tl.arange(0, K)
        left = tl.load(a + rows * k + inner[None, :], mask=(rows < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns, mask=(inner[:, None] < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + rows * n + columns, total.to(c.dtype.element_ty), mask=(rows < m) & (columns < n))


@kernel(frontend="triton", outputs=["c"])
def gemm():
    """c = a b"""
    a = Tensor("float16", "m", "k", alignment=16)
    b = Tensor("float16", "k", "n", alignment=16, multiples={"k": 16, "n": 16})
    c = Tensor("float16", "m", "n", alignment=16)
    sizes = {name: Size(name) for name in "mnk"}
    blocks = {"M": 64, "N": 128, "K": 32}
    return Program(
        gemm_kernel, a=a, b=b, c=c, **sizes, **blocks, grid=[ceildiv("m", 64), ceildiv("n", 128)], num_warps=4
    )


@gemm.reference
def _(a, b):
    return (a.astype("float32") @ b.astype("float32")).astype("float16")
