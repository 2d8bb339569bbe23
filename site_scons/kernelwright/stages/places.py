"""Where compilers and headers are: on this machine, and as a script that is repeated by hand names them."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace

from ..backends.commands import ToolPaths
from ..backends.launcher import LAUNCHER
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc_run import stand_in
from ..toolchain.tvm import tvm_ffi_includes

SYMBOLIC_PLACES = ToolPaths(
    stand_in("CC"),
    stand_in("LAUNCHER"),
    (stand_in("TVM_FFI"), stand_in("DLPACK")),
    "",
    stand_in("PYTHON"),
    stand_in("PYTHON_INCLUDE"),
)
"""What compile.sh has in place of this machine's paths."""


def symbolic_places(compiler: HostCompiler, glibc: str = "", cuda_runtime: str = "") -> ToolPaths:
    """The same for the CPUs that a compiler is for; the last two are as in :class:`ToolPaths`."""
    named = stand_in(compiler.named("CC"))
    return replace(SYMBOLIC_PLACES, compiler=named, glibc=glibc, cuda_runtime=cuda_runtime)


def real_places(compiler: HostCompiler, debug: bool = False) -> ToolPaths:
    """Where the compiler and the headers are on this machine; ``debug`` is as in :class:`ToolPaths`."""
    folders = tuple(str(folder) for folder in tvm_ffi_includes())
    python = sys.executable, sysconfig.get_path("include")
    return ToolPaths(compiler.path, str(LAUNCHER), folders, "", *python, debug=debug)
