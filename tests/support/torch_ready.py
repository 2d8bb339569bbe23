"""Imports PyTorch and Triton behind TVM: workers take 2 s for the one, and 0.7 s for the other and its first compile.

For `forked.starter`, before ``support.scons_start``. A worker that interprets definitions imports Triton anew.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache

from kernelwright import frontends

from support import tvm_ready

del sys.modules["torch"]  # `forked.serve` keeps tvm-ffi from importing it
import torch  # noqa: E402, F401


def _import_triton() -> None:
    """Import what a compile imports, and have Triton digest itself, as it does for the first compile of a process."""
    import triton.experimental.gluon  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()
    variables = frontends.interpreter_variables

    @cache
    def interpreter_variables() -> dict[str, str]:
        # When Triton is imported, it decides how its own functions run. Its compiled part cannot be imported twice.
        for name in [name for name in sys.modules if name.startswith("triton") and not name.startswith("triton._C")]:
            del sys.modules[name]
        return variables()

    frontends.interpreter_variables = interpreter_variables


if importlib.util.find_spec("triton") is not None:
    _import_triton()
tvm_ready.note_ready()
