import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv
from tiles import plus


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(z + at, plus(tl.load(x + at, mask=inside), tl.load(y + at, mask=inside)), mask=inside)


@kernel(frontend="triton", configs=grid(dtype=["float32", "float16"]), outputs=["z"])
def add(dtype: str):
    """z = x + y"""
    vector = Tensor(dtype, "n")
    return Program(add_kernel, x=vector, y=vector, z=vector, n=Size("n"), BLOCK=256, grid=ceildiv("n", 256))


@add.reference
def _(x, y):
    return x + y
