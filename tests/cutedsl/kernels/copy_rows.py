"""A copy through shared memory by Hopper's tensor memory accelerator, in clusters of two blocks."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from kernelwright import kernel
from kernelwright.frontends.cutedsl.program import Program, Tensor

COLUMNS = 64
THREADS = 128


@cute.kernel
def copy_rows_device(
    atom: cute.CopyAtom, source: cute.Tensor, y: cute.Tensor, tile: cute.Layout, rows: cutlass.Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    allocator = cutlass.memory.SmemAllocator()
    buffer = allocator.allocate_tensor(y.element_type, tile, 128)
    barrier = allocator.allocate_array(cutlass.Int64, 1)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    part = cute.local_tile(source, (rows, COLUMNS), (block, 0))
    grouped = cute.group_modes(buffer, 0, 2)
    target, origin = cpasync.tma_partition(atom, 0, cute.make_layout(1), grouped, cute.group_modes(part, 0, 2))
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, rows * COLUMNS * 2)
        cute.copy(atom, origin, target, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    for step in cutlass.range_constexpr(rows * COLUMNS // THREADS):
        place = step * THREADS + thread
        y[block * rows + place // COLUMNS, place % COLUMNS] = buffer[place // COLUMNS, place % COLUMNS]


@cute.jit
def copy_rows_host(x: cute.Tensor, y: cute.Tensor, rows: cutlass.Constexpr, stream):
    tile = cute.make_layout((rows, COLUMNS), stride=(COLUMNS, 1))
    atom, source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, tile, (rows, COLUMNS))
    blocks = cute.size(x, mode=[0]) // rows
    copy_rows_device(atom, source, y, tile, rows).launch(
        grid=[blocks, 1, 1], block=[THREADS, 1, 1], cluster=[2, 1, 1], stream=stream
    )


@kernel(frontend="cutedsl", archs=["sm_90a"], configs=[{"rows": 32}], outputs=["y"])
def copy_rows(rows: int):
    """y = x; the number of rows is a multiple of 64"""
    matrix = Tensor("float16", "m", COLUMNS, alignment=16, multiples={"m": 2 * rows})
    return Program(copy_rows_host, x=matrix, y=matrix, rows=rows)


@copy_rows.reference
def _(x):
    return x
