"""Matrix product: register blocks on the CPU; on CUDA tiles in shared memory, and tensor cores for float16."""

import math

import numpy as np
from _common import cpu_lanes
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var


def _space(target: str, dtype: str):
    if target == "cuda":
        return grid(block_m=[64, 128]) + ([] if dtype != "float16" else grid(block_m=[64, 128], wgmma=[True]))
    few_rows = [{"block_m": 16, "block_n": 256}, {"block_m": 16, "block_n": 512}, {"block_m": 1, "block_n": 512}]
    return [*few_rows, *grid(block_m=[72, 144], block_n=[128, 256, 512])]


@kernel(
    configs=grid(
        n=[1024, 4096],
        k=[1024],
        dtype=["float16", "float32"],
        where=lambda n, k, dtype: n == 1024 or dtype == "float16",
    ),
    tune=_space,
    preferred=lambda dtype: {"sm_90a": {"block_m": 128, "wgmma": True}} if dtype == "float16" else {},
    outputs=["c"],
)
def gemm(
    n: int,
    k: int,
    dtype: str,
    block_m: int,
    target: Target,
    block_n: int = 256,
    block_k: int = 256,
    wgmma: bool = False,
):
    """Matrix product ``c = a @ b``, accumulated in float32.

    Shapes: a [m, k], b [k, n], c [m, n]. ``block_m`` is the number of rows that one block of threads (CUDA) or
    one task (CPU) computes, ``block_n`` the number of columns of a task. On the CPU up to 16 rows are computed in
    another way than more. On CUDA, float16 runs on the tensor cores, with ``wgmma`` on those of sm_90a.
    """
    if target.kind.name == "llvm":
        lanes = cpu_lanes(target)
        if block_m <= 16:
            return _cpu_few_rows(n, k, dtype, block_m, block_n, lanes)
        return _cpu(n, k, dtype, block_m, block_n, block_k, lanes)
    if wgmma:
        return _warpgroups(n, k, block_m)
    return _tensor_cores(n, k, block_m) if dtype == "float16" else _cuda_cores(n, k, block_m)


@gemm.sizes
def _():
    return {"m": [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096]}


@gemm.flops
def _(m, n, k):
    return 2 * m * n * k


@gemm.reference
def _(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


@gemm.inputs
def _(rng, m, n, k, dtype):
    # Scaled so that an element of c has variance 1 whatever k is.
    return {
        "a": rng.standard_normal((m, k)).astype(dtype),
        "b": (rng.standard_normal((k, n)) / np.sqrt(k)).astype(dtype),
    }


def _cpu(n: int, k: int, dtype: str, block_m: int, block_n: int, block_k: int, lanes: int):
    """A task computes block_m x block_n elements of c, from panels of a and b that it copies and converts to float32.

    The innermost loop adds to a tile of c that stays in vector registers, two of them for each row: 12 of 16 with
    AVX2, 16 of 32 with AVX-512. It reads b one vector after the other, and each element of a once for the whole tile.
    """
    rows, columns = 6 if lanes == 8 else 8, 2 * lanes
    block_n, block_k = math.gcd(n, block_n), math.gcd(k, block_k)
    tasks_n = n // block_n
    padded_m = -(-block_m // rows) * rows
    # Rows of the panel of a are padded so that those of a tile lie in different sets of the cache. The panel is flat,
    # because TVM 0.27 shrinks a buffer to the elements in use, and would undo a padded shape.
    stride_a = block_k + 16
    itemsize = np.dtype(dtype).itemsize  # NumPy promises no more, and TVM would take 64 bytes for granted
    m = Var("m", "int32")

    # A tile has two buffers, for its left and its right half: TVM 0.27 keeps up to 1 KiB on the stack.
    @T.inline
    def move(to, to_row, to_column, source, row, column):
        for r in T.unroll(rows):
            for lane in T.vectorized(lanes):
                to[to_row + r, to_column + lane] = source[row + r, column + lane]

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((m, k), dtype, align=itemsize),
        b: T.Buffer((k, n), dtype, align=itemsize),
        c: T.Buffer((m, n), dtype, align=itemsize),
    ):
        for task in T.parallel(T.ceildiv(m, block_m) * tasks_n):
            i0 = T.meta_var(task // tasks_n * block_m)
            j0 = T.meta_var(task % tasks_n * block_n)
            tiles = T.meta_var(T.ceildiv(T.min(block_m, m - i0), rows))
            panel_a = T.alloc_buffer((padded_m * stride_a,), "float32")
            panel_b = T.alloc_buffer((block_n // columns, block_k, columns), "float32")
            acc = T.alloc_buffer((padded_m, block_n), "float32")
            for i, j in T.grid(tiles * rows, block_n // columns):
                for lane in T.vectorized(columns):
                    acc[i, j * columns + lane] = T.float32(0)
            for k0 in T.serial(k // block_k):
                for i, kk in T.grid(tiles * rows, block_k // lanes):
                    for lane in T.vectorized(lanes):
                        # Rows past the end repeat the last one: they are computed, but never stored in c.
                        panel_a[i * stride_a + kk * lanes + lane] = T.cast(
                            a[T.min(i0 + i, m - 1), k0 * block_k + kk * lanes + lane], "float32"
                        )
                for kk, j in T.grid(block_k, block_n // columns):
                    for lane in T.vectorized(columns):
                        panel_b[j, kk, lane] = T.cast(b[k0 * block_k + kk, j0 + j * columns + lane], "float32")
                for j, i in T.grid(block_n // columns, tiles):
                    left = T.alloc_buffer((rows, lanes), "float32")
                    right = T.alloc_buffer((rows, lanes), "float32")
                    move(left, 0, 0, acc, i * rows, j * columns)
                    move(right, 0, 0, acc, i * rows, j * columns + lanes)
                    for kk in T.serial(block_k):
                        for r in T.unroll(rows):
                            factor = T.meta_var(panel_a[(i * rows + r) * stride_a + kk])
                            for lane in T.vectorized(lanes):
                                left[r, lane] += factor * panel_b[j, kk, lane]
                            for lane in T.vectorized(lanes):
                                right[r, lane] += factor * panel_b[j, kk, lanes + lane]
                    move(acc, i * rows, j * columns, left, 0, 0)
                    move(acc, i * rows, j * columns + lanes, right, 0, 0)
            for i, j in T.grid(T.min(block_m, m - i0), block_n // columns):
                for lane in T.vectorized(columns):
                    c[i0 + i, j0 + j * columns + lane] = T.cast(acc[i, j * columns + lane], dtype)

    return main


def _cpu_few_rows(n: int, k: int, dtype: str, block_m: int, block_n: int, lanes: int):
    """For few rows: b is read in place and once, eight of its rows at a time, and the sums stay in the L1 cache."""
    steps, rows, columns = 8, min(block_m, 4), 2 * lanes
    block_n = math.gcd(n, block_n)
    tasks_n = n // block_n
    stride_a = k + 16  # padded and flat as above
    itemsize = np.dtype(dtype).itemsize
    m = Var("m", "int32")

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((m, k), dtype, align=itemsize),
        b: T.Buffer((k, n), dtype, align=itemsize),
        c: T.Buffer((m, n), dtype, align=itemsize),
    ):
        for task in T.parallel(T.ceildiv(m, block_m) * tasks_n):
            i0 = T.meta_var(task // tasks_n * block_m)
            j0 = T.meta_var(task % tasks_n * block_n)
            tiles = T.meta_var(T.ceildiv(T.min(block_m, m - i0), rows))
            panel_a = T.alloc_buffer((block_m * stride_a,), "float32")
            acc = T.alloc_buffer((block_m, block_n), "float32")
            for i in T.serial(tiles * rows):
                for kk in T.serial(k // lanes):
                    for lane in T.vectorized(lanes):
                        # Rows past the end repeat the last one: they are computed, but never stored in c.
                        panel_a[i * stride_a + kk * lanes + lane] = T.cast(
                            a[T.min(i0 + i, m - 1), kk * lanes + lane], "float32"
                        )
                for j in T.serial(block_n // columns):
                    for lane in T.vectorized(columns):
                        acc[i, j * columns + lane] = T.float32(0)
            for k0, i, j in T.grid(k // steps, tiles, block_n // columns):
                tile = T.alloc_buffer((rows, columns), "float32")
                for r in T.unroll(rows):
                    for lane in T.vectorized(columns):
                        tile[r, lane] = acc[i * rows + r, j * columns + lane]
                for kk in T.unroll(steps):
                    for r in T.unroll(rows):
                        for lane in T.vectorized(columns):
                            tile[r, lane] += panel_a[(i * rows + r) * stride_a + k0 * steps + kk] * T.cast(
                                b[k0 * steps + kk, j0 + j * columns + lane], "float32"
                            )
                for r in T.unroll(rows):
                    for lane in T.vectorized(columns):
                        acc[i * rows + r, j * columns + lane] = tile[r, lane]
            for i, j in T.grid(T.min(block_m, m - i0), block_n // columns):
                for lane in T.vectorized(columns):
                    c[i0 + i, j0 + j * columns + lane] = T.cast(acc[i, j * columns + lane], dtype)

    return main


def _cuda_cores(n: int, k: int, block_m: int):
    """A block of 256 threads computes block_m x 64 elements; a thread computes block_m / 16 x 4 of them, in float32.

    There are two tiles of a and of b: while the block computes with one of each, the next elements are on their way
    into registers, and from there they go to the other one. k is a multiple of 32.
    """
    block_n, block_k, threads = 64, 16, 256
    rows, steps = block_m // 16, k // block_k
    # The tiles of a are transposed; their rows are padded so that the stores into them spread over the banks. They are
    # flat because TVM 0.27 shrinks a buffer to the elements in use, and would undo a padded shape.
    stride_a = block_m + 4
    m = Var("m", "int32")

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((m, k), "float32", align=16),
        b: T.Buffer((k, n), "float32", align=16),
        c: T.Buffer((m, n), "float32", align=16),
    ):
        bx = T.launch_thread("blockIdx.x", n // block_n)
        by = T.launch_thread("blockIdx.y", T.ceildiv(m, block_m))
        tx = T.launch_thread("threadIdx.x", threads)
        # Buffers of their own and not halves of one: TVM 0.27 would put a barrier between reads of one half and writes
        # to the other.
        even_a = T.alloc_buffer((block_k * stride_a,), "float32", scope="shared")
        even_b = T.alloc_buffer((block_k, block_n), "float32", scope="shared")
        odd_a = T.alloc_buffer((block_k * stride_a,), "float32", scope="shared")
        odd_b = T.alloc_buffer((block_k, block_n), "float32", scope="shared")
        next_a = T.alloc_buffer((block_m // 64, 4), "float32", scope="local")
        next_b = T.alloc_buffer((4,), "float32", scope="local")
        column = T.alloc_buffer((rows,), "float32", scope="local")
        row = T.alloc_buffer((4,), "float32", scope="local")
        acc = T.alloc_buffer((rows, 4), "float32", scope="local")
        i0 = T.meta_var(tx // 16 * rows)
        j0 = T.meta_var(tx % 16 * 4)

        @T.inline
        def load(step):
            for i in T.unroll(block_m // 64):
                for v in T.vectorized(4):
                    # Rows past the end repeat the last one: they are computed, but never stored in c.
                    next_a[i, v] = a[T.min(by * block_m + i * 64 + tx // 4, m - 1), step * block_k + tx % 4 * 4 + v]
            for v in T.vectorized(4):
                next_b[v] = b[step * block_k + tx // 16, bx * block_n + j0 + v]

        @T.inline
        def store(tile_a, tile_b):
            for i, v in T.grid(block_m // 64, 4):
                tile_a[(tx % 4 * 4 + v) * stride_a + i * 64 + tx // 4] = next_a[i, v]
            for v in T.vectorized(4):
                tile_b[tx // 16, j0 + v] = next_b[v]
            T.tvm_storage_sync("shared")

        @T.inline
        def compute(tile_a, tile_b):
            # A loop that nvcc keeps: of straight code it would move the loads to the end, to spare registers.
            for part in T.serial(4, annotations={"disable_unroll": True}):
                for kk in T.unroll(block_k // 4):
                    for i in T.serial(rows // 4):
                        for v in T.vectorized(4):
                            column[i * 4 + v] = tile_a[(part * 4 + kk) * stride_a + i0 + i * 4 + v]
                    for v in T.vectorized(4):
                        row[v] = tile_b[part * 4 + kk, j0 + v]
                    for i, j in T.grid(rows, 4):
                        acc[i, j] += column[i] * row[j]

        for i, j in T.grid(rows, 4):
            acc[i, j] = T.float32(0)
        load(0)
        store(even_a, even_b)
        for pair in T.serial(steps // 2):
            load(pair * 2 + 1)
            compute(even_a, even_b)
            store(odd_a, odd_b)
            load(T.min(pair * 2 + 2, steps - 1))  # the last time for nothing
            compute(odd_a, odd_b)
            store(even_a, even_b)
        for i in T.serial(rows):
            if by * block_m + i0 + i < m:
                for v in T.vectorized(4):
                    c[by * block_m + i0 + i, bx * block_n + j0 + v] = acc[i, v]

    return main


def _tensor_cores(n: int, k: int, block_m: int):
    """A block of threads computes block_m x 128 elements, each of its warps 64 x 32 of them in 4 x 4 ``mma`` tiles.

    Tiles of a and b arrive in shared memory through ``cp.async``, three steps ahead of the arithmetic. Instructions
    and fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
    """
    block_n, block_k, stages = 128, 32, 4
    threads = block_m // 64 * 128
    steps = k // block_k
    # Rows are padded by 16 bytes, so that the 8 rows that an ldmatrix phase reads lie in different banks.
    stride_a, stride_b = block_k + 8, block_n + 8
    size_a, size_b = block_m * stride_a, block_k * stride_b
    m = Var("m", "int32")

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((m, k), "float16", align=16),
        b: T.Buffer((k, n), "float16", align=16),
        c: T.Buffer((m, n), "float16", align=16),
    ):
        bx = T.launch_thread("blockIdx.x", n // block_n)
        by = T.launch_thread("blockIdx.y", T.ceildiv(m, block_m))
        tx = T.launch_thread("threadIdx.x", threads)
        # Pointers to these tiles come from access_ptr and never from T.address_of: TVM 0.27 does not see that a PTX
        # instruction goes on from the address, and would shrink the buffers or let them overlap.
        tile_a = T.alloc_buffer((stages * size_a,), "float16", scope="shared.dyn")
        tile_b = T.alloc_buffer((stages * size_b,), "float16", scope="shared.dyn")
        frag_a = T.alloc_buffer((4, 4), "uint32", scope="local")
        frag_b = T.alloc_buffer((4, 2), "uint32", scope="local")
        acc = T.alloc_buffer((4, 4, 4), "float32", scope="local")
        lane = T.meta_var(tx % 32)
        i0 = T.meta_var(tx // 128 * 64)
        j0 = T.meta_var(tx // 32 % 4 * 32)

        @T.inline
        def load(step):
            stage = T.meta_var(step % stages)
            for v in T.unroll(block_m * block_k // 8 // threads):
                row = T.meta_var((v * threads + tx) // (block_k // 8))
                col = T.meta_var(tx % (block_k // 8) * 8)
                # Rows past the end repeat the last one: they are computed, but never stored in c.
                T.ptx.cp.async_.cg.shared.global_(
                    tile_a.access_ptr("w", offset=stage * size_a + row * stride_a + col),
                    T.address_of(a[T.min(by * block_m + row, m - 1), step * block_k + col]),
                    16,
                )
            for v in T.unroll(block_k * block_n // 8 // threads):
                row = T.meta_var((v * threads + tx) // (block_n // 8))
                col = T.meta_var(tx % (block_n // 8) * 8)
                T.ptx.cp.async_.cg.shared.global_(
                    tile_b.access_ptr("w", offset=stage * size_b + row * stride_b + col),
                    T.address_of(b[step * block_k + row, bx * block_n + col]),
                    16,
                )

        for i, j, r in T.grid(4, 4, 4):
            acc[i, j, r] = T.float32(0)
        for step in T.unroll(stages - 1):
            load(step)
            T.ptx.cp.async_.commit_group()
        for step in T.serial(steps):
            T.ptx.cp.async_.wait_group(stages - 2)
            T.tvm_storage_sync("shared.dyn")
            if step + stages - 1 < steps:
                load(step + stages - 1)
            T.ptx.cp.async_.commit_group()
            stage = T.meta_var(step % stages)
            for kk in T.unroll(block_k // 16):
                for i in T.unroll(4):
                    row = T.meta_var(i0 + i * 16 + lane % 16)
                    col = T.meta_var(kk * 16 + lane // 16 * 8)
                    T.ptx.ldmatrix.sync.aligned.m8n8.x4.shared.b16(
                        *[frag_a[i, r] for r in range(4)],
                        tile_a.access_ptr("r", offset=stage * size_a + row * stride_a + col),
                    )
                for j in T.unroll(2):
                    row = T.meta_var(kk * 16 + lane % 16)
                    col = T.meta_var(j0 + j * 16 + lane // 16 * 8)
                    T.ptx.ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16(
                        *[frag_b[j * 2 + r // 2, r % 2] for r in range(4)],
                        tile_b.access_ptr("r", offset=stage * size_b + row * stride_b + col),
                    )
                for i, j in T.grid(4, 4):
                    T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
                        *[acc[i, j, r] for r in range(4)],
                        *[frag_a[i, r] for r in range(4)],
                        *[frag_b[j, r] for r in range(2)],
                        *[acc[i, j, r] for r in range(4)],
                    )
        for i, h in T.grid(4, 2):
            row = T.meta_var(by * block_m + i0 + i * 16 + h * 8 + lane // 4)
            if row < m:
                for j in T.unroll(4):
                    for v in T.vectorized(2):
                        c[row, bx * block_n + j0 + j * 8 + lane % 4 * 2 + v] = T.cast(acc[i, j, h * 2 + v], "float16")

    return main


def _warpgroups(n: int, k: int, block_m: int):
    """For sm_90a: a block computes block_m x 128 elements, each of its warpgroups 64 x 128 of them with ``wgmma``.

    One more warp, the producer, has the copy engine (TMA) bring tiles of a and b into a ring of stages. For each stage
    there are two barriers: one that the tiles are full, one that all warpgroups are done with them. Tiles have rows of
    128 bytes and the 128-byte swizzle. Layouts: PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of
    wgmma.
    """
    block_n, block_k, stages, row = 128, 64, 4, 64
    groups = block_m // 64
    steps = k // block_k
    # In elements. A tile of b is two panels of 64 columns, because a row of the swizzle has 64 elements.
    size_a, panel_b = block_m * block_k, block_k * row
    size = size_a + 2 * panel_b
    ring = stages * size
    atom = 8 * row * 2  # bytes of 8 rows, after which the swizzle repeats
    m = Var("m", "int32")

    @T.prim_func
    def main(
        a: T.Buffer((m, k), "float16", align=16),
        b: T.Buffer((k, n), "float16", align=16),
        c: T.Buffer((m, n), "float16", align=16),
    ):
        map_a: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        map_b: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        # Sizes, bytes from row to row, size of a box, and its steps. Rows of a past the end are read as zeros.
        T.tensormap_encode_tiled(
            map_a, a.data, k, m, 2 * k, row, block_m, 1, 1, descriptor_dtype="float16", rank=2, swizzle=3
        )
        T.tensormap_encode_tiled(
            map_b, b.data, n, k, 2 * n, row, block_k, 1, 1, descriptor_dtype="float16", rank=2, swizzle=3
        )
        T.device_entry()
        bx = T.launch_thread("blockIdx.x", n // block_n)
        by = T.launch_thread("blockIdx.y", T.ceildiv(m, block_m))
        tx = T.launch_thread("threadIdx.x", groups * 128 + 32)
        shared = T.alloc_buffer((ring * 2 + stages * 16,), "uint8", scope="shared.dyn", align=1024)
        tiles = T.decl_buffer((ring,), "float16", data=shared.data, scope="shared.dyn")
        full = T.decl_buffer((stages,), "uint64", data=shared.data, elem_offset=ring // 4, scope="shared.dyn")
        empty = T.decl_buffer((stages,), "uint64", data=shared.data, elem_offset=ring // 4 + stages, scope="shared.dyn")
        acc = T.alloc_buffer((64,), "float32", scope="local")
        desc = T.alloc_buffer((2,), "uint64", scope="local")
        pair = T.alloc_buffer((1,), "uint32", scope="local")

        if tx == 0:
            for stage in T.unroll(stages):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([stage]), 1)
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([stage]), groups)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if tx == groups * 128:
            for step in T.serial(steps):
                stage = T.meta_var(step % stages)
                if step >= stages:
                    T.cuda.mbarrier_wait(empty.ptr_to([stage]), (step // stages - 1) % 2)
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), size * 2)
                T.ptx["cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"](
                    tiles.ptr_to([stage * size]),
                    T.address_of(map_a),
                    step * block_k,
                    by * block_m,
                    full.ptr_to([stage]),
                )
                for panel in T.unroll(2):
                    T.ptx["cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"](
                        tiles.ptr_to([stage * size + size_a + panel * panel_b]),
                        T.address_of(map_b),
                        bx * block_n + panel * row,
                        step * block_k,
                        full.ptr_to([stage]),
                    )
        if tx < groups * 128:
            # Offsets in descriptors count 16 bytes. Of a, whose rows are along k: from 8 rows to the next. Of b, whose
            # rows are along n: from 64 columns to the next, and from 8 rows to the next.
            T.cuda.wgmma.encode_matrix_descriptor(
                desc.ptr_to([0]), tiles.ptr_to([tx // 128 * 64 * row]), 1, atom // 16, 3
            )
            T.cuda.wgmma.encode_matrix_descriptor(
                desc.ptr_to([1]), tiles.ptr_to([size_a]), panel_b * 2 // 16, atom // 16, 3
            )
            for step in T.serial(steps):
                stage = T.meta_var(step % stages)
                T.cuda.mbarrier_wait(full.ptr_to([stage]), step // stages % 2)
                T.ptx["wgmma.fence.sync.aligned"]()
                for kk in T.unroll(block_k // 16):
                    T.ptx["wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"](
                        *[acc[i] for i in range(64)],
                        desc[0] + T.cast(stage * (size * 2 // 16) + kk * 2, "uint64"),
                        desc[1] + T.cast(stage * (size * 2 // 16) + kk * (2 * atom // 16), "uint64"),
                        step + kk > 0,
                        1,
                        1,
                        0,
                        1,
                    )
                T.ptx["wgmma.commit_group.sync.aligned"]()
                # All but the newest group are done, so the stage before is free.
                T.ptx["wgmma.wait_group.sync.aligned"](1)
                if step > 0 and tx % 128 == 0:
                    T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([(step - 1) % stages]))
            T.ptx["wgmma.wait_group.sync.aligned"](0)
            for j in T.unroll(16):
                for h in T.unroll(2):
                    # Instructions of PTX, which no compiler moves before the wait.
                    T.ptx["cvt.rn.f16x2.f32"](pair[0], acc[j * 4 + h * 2 + 1], acc[j * 4 + h * 2])
                    if by * block_m + tx // 32 * 16 + h * 8 + tx % 32 // 4 < m:
                        T.ptx["st.global.b32"](
                            c.ptr_to(
                                [by * block_m + tx // 32 * 16 + h * 8 + tx % 32 // 4, bx * block_n + j * 8 + tx % 4 * 2]
                            ),
                            pair[0],
                        )

    return main
