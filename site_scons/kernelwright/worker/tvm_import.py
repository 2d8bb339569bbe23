"""Imports TVM, once and quickly, and keeps out of it what no worker needs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from .. import frontends
from ..core.errors import KernelwrightError, ToolchainError
from ..processes.messages import Hello
from ..processes.tool_process import REVISION


def load(*, writes_bytecode: bool = False) -> Hello | KernelwrightError:
    """Import TVM, and return the greeting of a worker, or the error.

    Arguments:
        writes_bytecode: whether Python may keep the bytecode of what is imported. Some installers leave none, and then
            the import takes twice as long.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, not writes_bytecode
    try:
        return Hello(_versions(), REVISION)
    except KernelwrightError as error:
        return error
    finally:
        sys.dont_write_bytecode = before


def _versions() -> dict[str, str]:
    """Import TVM, and return the versions of what this worker runs.

    Raises:
        ToolchainError: TVM cannot be imported.
    """
    gc.disable()  # an import makes objects that stay; looking for garbage among them takes a tenth of its time
    try:
        with _without_torch(), _without_cuda_runtime():
            _load_libraries()
            import tvm  # noqa: F401 (so that workers, which are forks of this process, have it)

            for name in frontends.names():
                frontends.get(name).load()
            from . import check  # noqa: F401 (once here, and not in each worker)
    except Exception as error:  # a broken installation fails in many ways, a library that does not load among them
        raise ToolchainError(
            f"TVM cannot be imported: {error}",
            remedy="install apache-tvm and the apache-tvm-ffi that it was built for, as pinned in pyproject.toml",
            detail=traceback.format_exc(),
        ) from error
    gc.enable()
    importlib.invalidate_caches()  # so that a worker lists folders anew: they may have new files by then
    return {"python": platform.python_version(), "tvm": version("apache-tvm"), "tvm_ffi": version("apache-tvm-ffi")}


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Keep tvm-ffi from importing PyTorch.

    tvm-ffi 0.1 imports PyTorch if it is installed. That takes longer than the import of TVM, and no worker needs it. A
    definition can still import it afterwards.
    """
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


@contextlib.contextmanager
def _without_cuda_runtime() -> Iterator[None]:
    """Keep TVM from loading its CUDA runtime. ``cuda_runtime`` loads it where it is needed.

    TVM 0.27 loads it while it is imported, if there are a driver and a CUDA toolkit. Then TVM does not only lower: it
    runs nvcc, for the GPU of this machine, and fails if it finds none. TVM accepts that the library is missing.
    """
    from tvm_ffi import libinfo

    load = libinfo.load_lib_ctypes

    def load_others(package: str, target_name: str, *arguments: Any, **options: Any) -> ctypes.CDLL:
        if target_name == "tvm_runtime_cuda":
            raise FileNotFoundError(target_name)
        return load(package, target_name, *arguments, **options)

    libinfo.load_lib_ctypes = load_others
    try:
        yield
    finally:
        libinfo.load_lib_ctypes = load


def _load_libraries() -> None:
    """Load two of TVM's libraries before it does.

    TVM 0.27 looks for types of the second library before it loads it. TVM ignores the error, but the error has a C++
    backtrace, which takes a quarter of the time of the import.
    """
    import tvm_ffi  # noqa: F401 (they need its library)

    spec = importlib.util.find_spec("tvm")
    for folder in spec.submodule_search_locations or () if spec else ():
        for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.path.join(folder, "lib", name), ctypes.RTLD_GLOBAL)  # noqa: PTH118
