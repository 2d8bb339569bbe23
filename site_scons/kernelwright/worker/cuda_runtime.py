"""Loads the library of TVM's that runs CUDA code, which a worker does not have from the start, and asks for devices."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ..core.arch import arch_of_device
from ..core.errors import CheckError

CUDART = "libcudart.so.13"
"""The library of the CUDA toolkit that TVM's CUDA runtime is linked with."""

DRIVER = "libcuda.so.1"
"""The library of NVIDIA's driver, which it needs as well."""

INSTALL_DRIVER = "install NVIDIA's driver, or make it visible in the container"

INSTALL_CUDART = "pip install 'nvidia-cuda-runtime>=13,<14', or set LD_LIBRARY_PATH to a toolkit's folder of libraries"


def load_cuda_runtime() -> None:
    """Load the library of TVM's that runs CUDA code, with the libcudart that pip has installed.

    A worker does not have it from the start, see ``server``; and TVM 0.27 itself would go on without it, and without a
    word, if the loader did not find ``libcudart.so.13``.

    Raises:
        CheckError: a library that it needs is missing.
    """
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    try:
        _load_first([CUDART, *(path for folder in sys.path for path in Path(folder).glob(f"nvidia/cu*/lib/{CUDART}"))])
        ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"))
    except OSError as error:
        remedy = INSTALL_CUDART if _load_first([DRIVER]) else INSTALL_DRIVER
        raise CheckError(f"TVM's CUDA runtime cannot be loaded: {error}", remedy=remedy) from error


def _load_first(libraries: Sequence[str | Path]) -> bool:
    """Load the first of some libraries that can be loaded. Who asks for one of its name later gets this one.

    Returns:
        Whether there is one. If not, the error of whoever needs it says that it is missing.
    """
    for library in libraries:
        try:
            ctypes.CDLL(str(library))
            return True
        except OSError:
            continue
    return False


def devices() -> list[str]:
    """The arch of each CUDA device of this machine, in order; architecture-specific code can run from sm_90 on."""
    archs: list[str] = []
    with contextlib.suppress(CheckError):
        load_cuda_runtime()
    while (device := tvm.cuda(len(archs))).exist:
        archs.append(arch_of_device(capability(device)))
    return archs


def capability(device: Any) -> int:
    """The compute capability of a CUDA device, 10 * major + minor."""
    return int(str(device.compute_version).replace(".", ""))
