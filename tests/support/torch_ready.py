"""Imports PyTorch and Triton behind TVM: definitions that import them take 3 s for that in each worker.

For `forked.starter`, before ``support.scons_start``.
"""

from __future__ import annotations

import contextlib
import sys

from kernelwright import frontends

from support import tvm_ready

del sys.modules["torch"]  # `forked.serve` keeps tvm-ffi from importing it
import torch  # noqa: E402, F401

with contextlib.suppress(ModuleNotFoundError):
    import triton.language  # noqa: F401

_interpreter_variables = frontends.interpreter_variables


def _import_again() -> dict[str, str]:
    """The variables that choose Triton's interpreter, which Python code of Triton reads when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton" and "._C" not in name]:
        del sys.modules[name]
    return _interpreter_variables()


frontends.interpreter_variables = _import_again
tvm_ready.note_ready()
