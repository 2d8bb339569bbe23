"""Matrix transpose: a scheduled tensor expression on the CPU, tiles in shared memory on CUDA."""

import numpy as np
from kernelwright import grid, kernel
from tvm import s_tir, te
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(configs=grid(dtype=["float32", "float16", "int8"]), outputs=["y"])
def transpose(dtype: str, target):
    """Matrix transpose ``y[j, i] = x[i, j]``.

    Shapes: x [m, n], y [n, m].
    """
    return _cpu(dtype) if target.kind.name == "llvm" else _cuda(dtype)


@transpose.reference
def _(x):
    return np.ascontiguousarray(x.T)


@transpose.inputs
def _(rng, m, n, dtype):
    # Integers, so that a tolerance hides nothing.
    return {"x": rng.integers(-128, 128, (m, n)).astype(dtype)}


def _cpu(dtype: str):
    """A task writes a tile of 32 x 32 elements: few enough for the lines that it reads to stay in the L1 cache."""
    m, n = te.var("m"), te.var("n")
    x = te.placeholder((m, n), dtype, name="x")
    y = te.compute((n, m), lambda j, i: x[i, j], name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    j, i = schedule.get_loops(schedule.get_sblock("y"))
    j_tile, j_in = schedule.split(j, [None, 32])
    i_tile, i_in = schedule.split(i, [None, 32])
    schedule.reorder(j_tile, i_tile, j_in, i_in)
    schedule.parallel(schedule.fuse(j_tile, i_tile))
    return schedule.mod["main"]


def _cuda(dtype: str):
    """A block of 32 x 8 threads reads a tile by rows into shared memory and writes it by columns, both coalesced."""
    itemsize = np.dtype(dtype).itemsize
    tile = 32 if itemsize == 4 else 64
    # An odd number of 4-byte words, so that a column of the tile lies in different banks. The tile is flat because
    # TVM 0.27 shrinks a buffer to the elements in use, and would undo a padded shape.
    stride = tile + 4 // itemsize
    m, n = Var("m", "int32"), Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((m, n), dtype),
        y: T.Buffer((n, m), dtype),
    ):
        # One number for both, because CUDA has at most 65535 blocks in y.
        block = T.launch_thread("blockIdx.x", T.ceildiv(m, tile) * T.ceildiv(n, tile))
        ty = T.launch_thread("threadIdx.y", 8)
        tx = T.launch_thread("threadIdx.x", 32)
        # Division as C has it, since TVM does not see that nothing here is negative.
        i0 = T.meta_var(T.truncmod(block, T.ceildiv(m, tile)) * tile)
        j0 = T.meta_var(T.truncdiv(block, T.ceildiv(m, tile)) * tile)
        shared = T.alloc_buffer((tile * stride,), dtype, scope="shared")
        for r, c in T.grid(tile // 8, tile // 32):
            i = T.meta_var(i0 + r * 8 + ty)
            j = T.meta_var(j0 + c * 32 + tx)
            if i < m and j < n:
                shared[(r * 8 + ty) * stride + c * 32 + tx] = x[i, j]
        T.tvm_storage_sync("shared")
        for r, c in T.grid(tile // 8, tile // 32):
            j = T.meta_var(j0 + r * 8 + ty)
            i = T.meta_var(i0 + c * 32 + tx)
            if j < n and i < m:
                y[j, i] = shared[(c * 32 + tx) * stride + r * 8 + ty]

    return main
