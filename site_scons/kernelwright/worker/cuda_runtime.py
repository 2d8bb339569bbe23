"""Loads TVM's CUDA runtime, which a worker does not load at its start, and asks it for the devices."""

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
"""The library of NVIDIA's driver, which TVM's CUDA runtime needs as well."""

INSTALL_DRIVER = "install NVIDIA's driver, or make it visible in the container"

INSTALL_CUDART = "pip install 'nvidia-cuda-runtime>=13,<14', or set LD_LIBRARY_PATH to a toolkit's folder of libraries"


def load_cuda_runtime() -> None:
    """Load TVM's CUDA runtime, and before it the libcudart that it needs, even if only pip has installed that.

    A worker starts without it, see ``tvm_import``. TVM 0.27 itself would go on without it, and say nothing, if the
    loader did not find ``libcudart.so.13``.

    Raises:
        CheckError: the runtime, or a library that it needs, is missing.
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
    """Load the first of these libraries that can be loaded. Whatever needs a library of that name later gets this one.

    Returns:
        Whether one was loaded. If not, whatever needs it fails with an error that names it.
    """
    for library in libraries:
        try:
            ctypes.CDLL(str(library))
            return True
        except OSError:
            continue
    return False


def devices() -> list[str]:
    """The most specific arch of each CUDA device of this machine, in order, such as sm_80 or sm_90a."""
    archs: list[str] = []
    with contextlib.suppress(CheckError):
        load_cuda_runtime()
    while (device := tvm.cuda(len(archs))).exist:
        archs.append(arch_of_device(capability(device)))
    return archs


def capability(device: Any) -> int:
    """The compute capability of a CUDA device, 10 * major + minor."""
    return int(str(device.compute_version).replace(".", ""))
