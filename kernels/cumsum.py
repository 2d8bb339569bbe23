"""Cumulative sums along rows: a TVMScript scan with thread bindings and warp shuffles, and a serial one for the CPU."""

import numpy as np
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

WARP, WARPS, ITEMS = 32, 8, 4
CHUNK = WARPS * WARP * ITEMS
"""Elements of a row that a thread block scans at once, ITEMS adjacent ones in each thread."""

BLOCKS = 264
"""Rows are split until there are so many blocks: two for each of the 132 multiprocessors of an H100."""


@kernel(configs=grid(dtype=["float32", "int32"]), outputs=["y"], tolerance=1e-4)
def cumsum(dtype: str, target: Target):
    """y[r, c] = x[r, 0] + ... + x[r, c]: x [rows, columns], y [rows, columns]."""
    rows, columns = Var("rows", "int32"), Var("columns", "int32")

    @T.prim_func(s_tir=True)
    def cpu(x: T.Buffer((rows, columns), dtype), y: T.Buffer((rows, columns), dtype)):
        for r in T.parallel(rows):
            total = T.alloc_buffer((1,), dtype)
            total[0] = T.Cast(dtype, 0)
            for c in range(columns):
                total[0] += x[r, c]
                y[r, c] = total[0]

    # The parts of a row are so long that there are about BLOCKS blocks, or as long as a chunk.
    part = T.max(T.truncdiv(rows * T.ceildiv(columns, CHUNK) + BLOCKS - 1, BLOCKS), 1) * CHUNK
    parts = T.truncdiv(columns - 1, part) + 1

    @T.prim_func(s_tir=True)
    def cuda(x: T.Buffer((rows, columns), dtype), y: T.Buffer((rows, columns), dtype)):
        # The totals of all parts but the last of each row. Where rows have one part, this launches nothing.
        totals = T.alloc_buffer((rows, parts), dtype, scope="global")
        with T.launch_thread("blockIdx.x", rows) as r:
            p = T.launch_thread("blockIdx.y", parts - 1)
            thread = T.launch_thread("threadIdx.x", WARPS * WARP)
            total = T.alloc_local((1,), dtype)
            scratch = T.alloc_shared((WARPS,), dtype)
            total[0] = T.Cast(dtype, 0)
            for i in range(T.truncdiv(part, WARPS * WARP)):
                total[0] += x[r, p * part + i * WARPS * WARP + thread]
            total[0] = T.cuda.cta_sum(total[0], WARPS, scratch.data)
            if thread == 0:
                totals[r, p] = total[0]

        with T.launch_thread("blockIdx.x", rows) as r:
            p = T.launch_thread("blockIdx.y", parts)
            thread = T.launch_thread("threadIdx.x", WARPS * WARP)
            items = T.alloc_local((ITEMS,), dtype)
            scan = T.alloc_local((1,), dtype)
            other = T.alloc_local((1,), dtype)
            before = T.alloc_local((1,), dtype)
            carry = T.alloc_local((1,), dtype)
            warp_totals = T.alloc_shared((WARPS,), dtype)
            lane = T.meta_var(thread % WARP)
            # What lies before the chunk: at first the earlier parts.
            carry[0] = T.Cast(dtype, 0)
            for i in range(T.ceildiv(p, WARPS * WARP)):
                if i * WARPS * WARP + thread < p:
                    carry[0] += totals[r, i * WARPS * WARP + thread]
            carry[0] = T.cuda.cta_sum(carry[0], WARPS, warp_totals.data)
            T.tvm_storage_sync("shared")  # before warp_totals is written again
            for chunk in range(T.ceildiv(T.min(part, columns - p * part), CHUNK)):
                # Scan the thread's own items, then the threads of a warp by their totals.
                start = T.meta_var(p * part + chunk * CHUNK + thread * ITEMS)
                scan[0] = T.Cast(dtype, 0)
                for i in T.unroll(ITEMS):
                    if start + i < columns:
                        scan[0] += x[r, start + i]
                    items[i] = scan[0]
                for step in T.unroll(5):
                    other[0] = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), scan[0], 1 << step, WARP, WARP)
                    if lane >= 1 << step:
                        scan[0] += other[0]
                if lane == WARP - 1:
                    warp_totals[thread // WARP] = scan[0]
                T.tvm_storage_sync("shared")
                # Add what lies before the thread: earlier chunks, earlier warps, earlier threads of its warp.
                other[0] = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), scan[0], 1, WARP, WARP)
                before[0] = carry[0]
                if lane > 0:
                    before[0] += other[0]
                for warp in T.unroll(WARPS):
                    if warp < thread // WARP:
                        before[0] += warp_totals[warp]
                    carry[0] += warp_totals[warp]
                T.tvm_storage_sync("shared")
                for i in T.unroll(ITEMS):
                    if start + i < columns:
                        y[r, start + i] = before[0] + items[i]

    return cuda if target.kind.name == "cuda" else cpu


@cumsum.reference
def _(x):
    exact = np.int64 if x.dtype == np.int32 else np.float64
    return x.cumsum(axis=-1, dtype=exact).astype(x.dtype)
