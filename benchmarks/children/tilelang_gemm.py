"""Compiles matrix products with TileLang, in its own environment: ``tilelang_gemm.py CONFIGS WORKERS``.

CONFIGS is JSON: a list of objects with n, k and block_m. The product is that of the documentation, with the tile sizes
of our own kernel. It prints a JSON object with the seconds of the import, of building the functions, and of the
compilation or the reading from the cache.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

start = time.perf_counter()
import tilelang  # noqa: E402
import tilelang.language as T  # noqa: E402

imported = time.perf_counter()

ROWS, BLOCK_N, BLOCK_K, STAGES = 1024, 128, 32, 3


def gemm(n: int, k: int, block_m: int) -> Any:
    """c = a @ b for float16, accumulated in float32; a thread block computes block_m x 128 elements."""

    @T.prim_func
    def main(a: T.Tensor((ROWS, k), "float16"), b: T.Tensor((k, n), "float16"), c: T.Tensor((ROWS, n), "float16")):
        with T.Kernel(T.ceildiv(n, BLOCK_N), T.ceildiv(ROWS, block_m), threads=block_m * 2) as (column, row):
            tile_a = T.alloc_shared((block_m, BLOCK_K), "float16")
            tile_b = T.alloc_shared((BLOCK_K, BLOCK_N), "float16")
            product = T.alloc_fragment((block_m, BLOCK_N), "float32")
            T.clear(product)
            for step in T.Pipelined(T.ceildiv(k, BLOCK_K), num_stages=STAGES):
                T.copy(a[row * block_m, step * BLOCK_K], tile_a)
                T.copy(b[step * BLOCK_K, column * BLOCK_N], tile_b)
                T.gemm(tile_a, tile_b, product)
            T.copy(product, c[row * block_m, column * BLOCK_N])

    return main


def compile_all() -> None:
    """Compile the configs of the command line for sm_90a, and print the times."""
    functions = [gemm(**config) for config in json.loads(sys.argv[1])]
    built = time.perf_counter()
    # An explicit target: without a GPU, "cuda" would be one for sm_50.
    target = {"kind": "cuda", "arch": "sm_90a"}
    kernels = tilelang.par_compile(functions, out_idx=[2], target=target, num_workers=int(sys.argv[2]))
    compiled = time.perf_counter()
    assert all("__global__" in kernel.get_kernel_source() for kernel in kernels)
    times = {"import_s": imported - start, "functions_s": built - imported, "compile_s": compiled - built}
    print("\n" + json.dumps(times))


if __name__ == "__main__":
    compile_all()
