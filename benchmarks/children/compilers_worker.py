"""Loaded into a worker of Dask (``--preload``): a worker of Kernelwright whose compilers are those in a folder.

A worker takes the compilers of its Python environment first. The variable ``COMPILERS`` names others.
"""

from __future__ import annotations

import os
from typing import Any

from kernelwright.cluster import dask_worker
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.toolchain.probe import Toolchain


class _Compilers(Toolchain):
    def nvcc(self, setting: str, host_compiler: HostCompiler) -> Nvcc:
        return super().nvcc(f"{os.environ['COMPILERS']}/bin/nvcc", host_compiler)

    def host_compiler(self, setting: str) -> HostCompiler:
        return super().host_compiler(f"{os.environ['COMPILERS']}/bin/cc")


async def dask_setup(worker: Any) -> None:
    """Have a worker offer the compilers of that folder."""
    dask_worker.Toolchain = _Compilers  # type: ignore[misc]
    await dask_worker.dask_setup(worker)
