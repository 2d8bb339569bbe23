"""Imports PyTorch behind TVM: definitions that import it take 2 s for that in each worker.

For `forked.starter`, before ``support.scons_start``.
"""

from __future__ import annotations

import sys

from support import tvm_ready

del sys.modules["torch"]  # `forked.serve` keeps tvm-ffi from importing it
import torch  # noqa: E402, F401

tvm_ready.note_ready()
