"""A matrix product with tiles in shared memory."""

import cutlass
from cutlass import cute
from kernelwright import grid, kernel
from kernelwright.frontends.cutedsl.program import Program, Tensor

THREADS = 256
ACROSS = 16  # threads along each side of a tile


def host_function(tile: int, depth: int):
    """The host function for tiles of ``tile`` x ``tile`` outputs, to which each step adds ``depth`` products."""
    each = tile // ACROSS

    @cute.kernel
    def gemm_device(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block_n, block_m, _ = cute.arch.block_idx()
        rows, inner = a.shape
        columns = cute.size(b, mode=[1])
        first_row, first_column = block_m * tile, block_n * tile
        allocator = cutlass.memory.SmemAllocator()
        # One element more in each row of the tile keeps threads that read a column out of each other's banks.
        a_tile = allocator.allocate_tensor(cutlass.Float32, cute.make_layout((tile, depth), stride=(depth + 1, 1)), 16)
        b_tile = allocator.allocate_tensor(cutlass.Float32, cute.make_layout((depth, tile), stride=(tile, 1)), 16)
        sums = cute.make_rmem_tensor(cute.make_layout((each, each)), cutlass.Float32)
        sums.fill(0.0)
        row, column = thread // ACROSS, thread % ACROSS
        for step in range(cute.ceil_div(inner, depth)):
            for part in cutlass.range_constexpr(tile * depth // THREADS):
                place = part * THREADS + thread
                i, k = place // depth, place % depth
                value = cutlass.Float32(0.0)
                if first_row + i < rows and step * depth + k < inner:
                    value = a[first_row + i, step * depth + k].to(cutlass.Float32)
                a_tile[i, k] = value
                k, j = place // tile, place % tile
                value = cutlass.Float32(0.0)
                if step * depth + k < inner and first_column + j < columns:
                    value = b[step * depth + k, first_column + j].to(cutlass.Float32)
                b_tile[k, j] = value
            cute.arch.sync_threads()
            for k in cutlass.range_constexpr(depth):
                for i in cutlass.range_constexpr(each):
                    for j in cutlass.range_constexpr(each):
                        sums[i, j] += a_tile[row + i * ACROSS, k] * b_tile[k, column + j * ACROSS]
            cute.arch.sync_threads()
        for i in cutlass.range_constexpr(each):
            for j in cutlass.range_constexpr(each):
                if first_row + row + i * ACROSS < rows and first_column + column + j * ACROSS < columns:
                    c[first_row + row + i * ACROSS, first_column + column + j * ACROSS] = sums[i, j].to(c.element_type)

    @cute.jit
    def gemm_host(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        blocks = [cute.ceil_div(cute.size(c, mode=[1]), tile), cute.ceil_div(cute.size(c, mode=[0]), tile), 1]
        gemm_device(a, b, c).launch(grid=blocks, block=[THREADS, 1, 1])

    return gemm_host


@kernel(frontend="cutedsl", configs=grid(dtype=["float32", "float16"], tile=[64]), outputs=["c"])
def gemm(dtype: str, tile: int):
    """c = a b"""
    return Program(
        host_function(tile, 16), a=Tensor(dtype, "m", "k"), b=Tensor(dtype, "k", "n"), c=Tensor(dtype, "m", "n")
    )


@gemm.reference
def _(a, b):
    return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
