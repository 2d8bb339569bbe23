"""Describes compilers to other machines: their identities, and stand-ins for their paths in commands.

An identity covers all that decides a result besides the files that a run declares: the compiler, the headers that come
with it, and our own code and headers that take part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import canonical_json, digest_of
from ..processes.tools import SharedTool
from .host_compiler import HostCompiler
from .nvcc import Nvcc

if TYPE_CHECKING:
    from .nvrtc import Nvrtc

SYSTEM = ("/", "/usr", "/usr/local", "/opt")
"""Folders that are no place of CUDA alone: they stay in commands as they are."""


def shared_nvcc(nvcc: Nvcc, host_compiler: HostCompiler) -> SharedTool:
    """The programs that nvcc runs: those are run elsewhere, and never nvcc. Its identity covers the host compiler."""
    tops = {"CUDA": Path(nvcc.path).parent.parent, "REAL_CUDA": Path(nvcc.path).resolve().parent.parent}
    places = {"NVCC": nvcc.path, "CC": host_compiler.path}
    places |= {name: str(top) for name, top in tops.items() if str(top) not in SYSTEM}
    return _tool("nvcc", nvcc.version, [nvcc.identity], places)


def shared_nvrtc(nvrtc: Nvrtc) -> SharedTool:
    """NVRTC, with the program of ours that runs it."""
    # Imported here, because few builds use it.
    from .nvrtc import PROGRAM, compiler_process

    python, *_, program = compiler_process()
    places = {"NVRTC": nvrtc.library, "CUDA_INCLUDE": nvrtc.include, "PYTHON": python, "NVRTC_COMPILE": program}
    return _tool("nvrtc", nvrtc.version, [nvrtc.identity, digest_of([PROGRAM])], places)


def shared_compiler(
    compiler: HostCompiler, headers: str, tvm_ffi: str, launcher: str, folders: Iterable[str]
) -> SharedTool:
    """The C compiler, with the headers that wrappers include.

    Arguments:
        headers: digest of the launcher's.
        tvm_ffi: version of tvm-ffi.
        launcher: the folder of the launcher's headers.
        folders: those of tvm-ffi's headers, and of DLPack's.
    """
    places = {"CC": compiler.path, "LAUNCHER": launcher}
    places |= dict(zip(("TVM_FFI", "DLPACK"), folders, strict=True))
    return _tool("cc", compiler.version, [compiler.identity, headers, tvm_ffi], places)


def _tool(name: str, version: str, facts: list[str], places: dict[str, str]) -> SharedTool:
    identity = hashlib.sha256(canonical_json([name, *facts]).encode()).hexdigest()
    return SharedTool(name, version, identity, places)
