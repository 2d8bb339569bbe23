"""Matrix transpose: tiles in vector registers on the CPU, in shared memory on CUDA."""

import numpy as np
from _common import cpu_lanes
from _rows_on_cuda import piece_width, with_fallback
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var


def _space(target: str, aligned: bool = True):
    if target == "cuda":
        return [{}, {"threads": 128}]
    return grid(block=[128, 64, 256]) if aligned else []


@kernel(configs=with_fallback(grid(dtype=["float32", "float16", "int8"])), tune=_space, outputs=["y"])
def transpose(dtype: str, target: Target, aligned: bool = True, threads: int = 256, block: int = 128):
    """Matrix transpose ``y[j, i] = x[i, j]``.

    Shapes: x [m, n], y [n, m].
    """
    if target.kind.name == "cuda":
        return _cuda(dtype, aligned, threads)
    return _cpu(dtype, cpu_lanes(target) if dtype == "float32" else 16, block)


@transpose.sizes
def _():
    return {"m": [64, 512, 2048], "n": [64, 512, 2048]}


@transpose.reference
def _(x):
    return np.ascontiguousarray(x.T)


@transpose.inputs
def _(rng, m, n, dtype):
    # Integers, so that a tolerance hides nothing.
    return {"x": rng.integers(-128, 128, (m, n)).astype(dtype)}


def _cpu(dtype: str, lanes: int, block: int):
    """A task transposes block x block elements, in tiles of lanes x lanes that it transposes in vector registers."""
    itemsize = np.dtype(dtype).itemsize  # NumPy promises no more, and TVM would take 64 bytes for granted
    m, n = Var("m", "int32"), Var("n", "int32")

    def picked(first, second, distance):
        """Elements of two rows of a tile, side by side: where an index has the bit ``distance``, one of ``second``."""
        return [second + e - distance if e & distance else first + e for e in range(lanes)]

    @T.inline
    def exchange(tile, distance):
        """Swap the blocks of that many rows and columns that lie across the diagonal."""
        for pair in T.unroll(lanes // 2):
            i = T.meta_var(pair // distance * 2 * distance + pair % distance)
            both = T.meta_var([tile[i, T.ramp(0, 1, lanes)], tile[i + distance, T.ramp(0, 1, lanes)]])
            upper = T.alloc_buffer((lanes,), dtype)
            upper[T.ramp(0, 1, lanes)] = T.Shuffle(both, picked(0, lanes, distance))
            tile[i + distance, T.ramp(0, 1, lanes)] = T.Shuffle(both, picked(distance, lanes + distance, distance))
            tile[i, T.ramp(0, 1, lanes)] = upper[T.ramp(0, 1, lanes)]

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((m, n), dtype, align=itemsize),
        y: T.Buffer((n, m), dtype, align=itemsize),
    ):
        for task in T.parallel(T.ceildiv(n, block) * T.ceildiv(m, block)):
            for j_tile, i_tile in T.grid(block // lanes, block // lanes):
                j0 = T.meta_var(task // T.ceildiv(m, block) * block + j_tile * lanes)
                i0 = T.meta_var(task % T.ceildiv(m, block) * block + i_tile * lanes)
                if i0 + lanes <= m and j0 + lanes <= n:
                    tile = T.alloc_buffer((lanes, lanes), dtype)
                    for r in T.unroll(lanes):
                        for lane in T.vectorized(lanes):
                            tile[r, lane] = x[i0 + r, j0 + lane]
                    if lanes == 16:
                        exchange(tile, 8)
                    exchange(tile, 4)
                    exchange(tile, 2)
                    exchange(tile, 1)
                    for r in T.unroll(lanes):
                        for lane in T.vectorized(lanes):
                            y[j0 + r, i0 + lane] = tile[r, lane]
                else:
                    for j, i in T.grid(T.min(lanes, n - j0), T.min(lanes, m - i0)):
                        y[j0 + j, i0 + i] = x[i0 + i, j0 + j]

    return main


def _cuda(dtype: str, aligned: bool, threads: int):
    """A block reads a tile by rows into shared memory and writes it by columns, both coalesced.

    A thread reads 16 bytes at once if the rows of x are as long as a multiple of that, and writes so if those of y are.
    """
    itemsize = np.dtype(dtype).itemsize
    most = piece_width(16, dtype, aligned)
    tile = 32 if itemsize == 4 else 64
    # An odd number of 4-byte words, so that a column of the tile lies in different banks. The tile is flat because
    # TVM 0.27 shrinks a buffer to the elements in use, and would undo a padded shape.
    stride = tile + 4 // itemsize
    m, n = Var("m", "int32"), Var("n", "int32")

    @T.inline
    def read(x, shared, i0, j0, tx, width):
        for turn in T.serial(tile * tile // width // threads):
            r = T.meta_var((turn * threads + tx) // (tile // width))
            c = T.meta_var((turn * threads + tx) % (tile // width) * width)
            if i0 + r < m and j0 + c < n:
                if width == 1:
                    shared[r * stride + c] = x[i0 + r, j0 + c]
                else:
                    piece = T.alloc_buffer((width,), dtype, scope="local")
                    flat = T.decl_buffer((m * n,), dtype, data=x.data)  # TVM does not know that width divides n
                    for k in T.vectorized(width):
                        piece[k] = flat[((i0 + r) * T.truncdiv(n, width) + T.truncdiv(j0 + c, width)) * width + k]
                    for k in T.unroll(width):
                        shared[r * stride + c + k] = piece[k]

    @T.inline
    def write(y, shared, i0, j0, tx, width):
        for turn in T.serial(tile * tile // width // threads):
            r = T.meta_var((turn * threads + tx) // (tile // width))
            c = T.meta_var((turn * threads + tx) % (tile // width) * width)
            if j0 + r < n and i0 + c < m:
                if width == 1:
                    y[j0 + r, i0 + c] = shared[c * stride + r]
                else:
                    piece = T.alloc_buffer((width,), dtype, scope="local")
                    flat = T.decl_buffer((m * n,), dtype, data=y.data)
                    for k in T.unroll(width):
                        piece[k] = shared[(c + k) * stride + r]
                    for k in T.vectorized(width):
                        flat[((j0 + r) * T.truncdiv(m, width) + T.truncdiv(i0 + c, width)) * width + k] = piece[k]

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((m, n), dtype),
        y: T.Buffer((n, m), dtype),
    ):
        # One number for both, because CUDA has at most 65535 blocks in y.
        block = T.launch_thread("blockIdx.x", T.ceildiv(m, tile) * T.ceildiv(n, tile))
        tx = T.launch_thread("threadIdx.x", threads)
        # Division as C has it, since TVM does not see that nothing here is negative.
        i0 = T.meta_var(T.truncmod(block, T.ceildiv(m, tile)) * tile)
        j0 = T.meta_var(T.truncdiv(block, T.ceildiv(m, tile)) * tile)
        shared = T.alloc_buffer((tile * stride,), dtype, scope="shared")
        if T.truncmod(n, most) == 0:
            read(x, shared, i0, j0, tx, most)
        else:
            read(x, shared, i0, j0, tx, 1)
        T.tvm_storage_sync("shared")
        if T.truncmod(m, most) == 0:
            write(y, shared, i0, j0, tx, most)
        else:
            write(y, shared, i0, j0, tx, 1)

    return main
