"""Compiles kernels with TileLang, in its own environment: ``tilelang_kernels.py FOLDER KERNELS WORKERS``.

KERNELS is JSON: name -> a list of values; ``FOLDER/<name>.py`` has the function of that name, decorated with
``@tilelang.jit``. The functions themselves compile, in parallel, as a program that uses TileLang has it. It prints a
JSON object with the seconds of the import, and of the compilation or the reading from the cache.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

# Without a GPU, "cuda" would be a target for sm_50.
os.environ["TILELANG_DEFAULT_TARGET"] = json.dumps({"kind": "cuda", "arch": "sm_90a"})
start = time.perf_counter()
import tilelang  # noqa: E402, F401

imported = time.perf_counter()


def compile_all() -> None:
    """Compile what the command line says, and print the times."""
    folder, kernels, workers = sys.argv[1:]
    sys.path.insert(0, folder)
    for name, configs in json.loads(kernels).items():
        function = getattr(importlib.import_module(name), name)
        compiled = function.par_compile(configs, num_workers=int(workers))
        assert all("__global__" in kernel.get_kernel_source() for kernel in compiled)
    print("\n" + json.dumps({"import_s": imported - start, "compile_s": time.perf_counter() - imported}))


if __name__ == "__main__":
    compile_all()
