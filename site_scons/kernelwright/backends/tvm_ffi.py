"""The tvm_ffi backend: kernels are functions of TVM-FFI, with nothing between that and the kernel's library."""

from __future__ import annotations

from ..core.need import Need
from .base import Backend


class TvmFfi(Backend):
    """Callable from Python through tvm-ffi, with arrays of any library that speaks DLPack."""

    name = "tvm_ffi"
    hands_over = True
    run_needs = (Need("tvm_ffi", "apache-tvm-ffi>=0.1.13,<0.2"),)
    runtime = ("kernel.py", "interface.py", "refusal.py", "dlpack.py", "dtype.py")


BACKEND = TvmFfi()
