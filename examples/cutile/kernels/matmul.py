"""A matrix product in blocks, whose sizes are tuned."""

import cuda.tile as ct
from kernelwright import grid, kernel
from kernelwright_cutile import Program, Tensor, ceildiv


@ct.kernel
def matmul_kernel(a, b, c, M: ct.Constant[int], N: ct.Constant[int], K: ct.Constant[int]):
    """A block of M rows and N columns, for which it goes along k in steps of K."""
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((M, N), ct.float32)
    for step in range(ct.num_tiles(a, axis=1, shape=(M, K))):
        left = ct.load(a, index=(row, step), shape=(M, K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, index=(step, column), shape=(K, N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, index=(row, column), tile=total.astype(c.dtype))


@kernel(
    frontend="cutile",
    configs=grid(dtype=["float16", "bfloat16"]),
    tune=grid(M=[128, 64], N=[128, 256], K=[64], occupancy=[1, 2]),
    outputs=["c"],
)
def matmul(dtype: str, M: int, N: int, K: int, occupancy: int):
    """c = a b"""
    aligned = {"alignment": 16, "multiples": {"k": 8, "n": 8}}
    return Program(
        matmul_kernel.replace_hints(occupancy=occupancy),
        a=Tensor(dtype, "m", "k", alignment=16, multiples={"k": 8}),
        b=Tensor(dtype, "k", "n", **aligned),
        c=Tensor(dtype, "m", "n", alignment=16, multiples={"n": 8}),
        M=M,
        N=N,
        K=K,
        grid=(ceildiv("m", M), ceildiv("n", N)),
    )


@matmul.reference
def _(a, b):
    return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
