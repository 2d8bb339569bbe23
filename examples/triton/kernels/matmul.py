"""A matrix product in blocks. Programs that are next to each other share rows or columns, which stay in the cache."""

import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv, configs_of

BLOCKS = [(128, 128, 32, 4, 4), (64, 128, 64, 4, 3), (64, 64, 32, 4, 5), (128, 256, 64, 8, 3)]
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in BLOCKS
]


@triton.jit
def block_of(program, rows, columns, GROUP: tl.constexpr):
    """The block that a program computes: down the columns of GROUP rows of blocks, before the next rows."""
    group = program // (GROUP * columns)
    first = group * GROUP
    size = min(rows - first, GROUP)
    place = program % (GROUP * columns)
    return first + place % size, place // size


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr = 8
):
    """One block of c, for which it goes along k."""
    row, column = block_of(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        inner = first + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows * k + inner[None, :], mask=(rows < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns, mask=(inner[:, None] < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + rows * n + columns, total.to(c.dtype.element_ty), mask=(rows < m) & (columns < n))


@kernel(
    frontend="triton",
    configs=grid(dtype=["float16", "bfloat16"]),
    tune=configs_of(matmul_kernel),
    specialize="auto",
    outputs=["c"],
)
def matmul(dtype: str, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, num_warps: int, num_stages: int):
    """c = a b"""
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
    return Program(
        matmul_kernel,
        a=Tensor(dtype, "m", "k"),
        b=Tensor(dtype, "k", "n"),
        c=Tensor(dtype, "m", "n"),
        m=Size("m"),
        n=Size("n"),
        k=Size("k"),
        **blocks,
        grid=ceildiv("m", BLOCK_M) * ceildiv("n", BLOCK_N),
        num_warps=num_warps,
        num_stages=num_stages,
    )


@matmul.reference
def _(a, b):
    return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
