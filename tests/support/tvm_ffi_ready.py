"""Imports tvm-ffi and has it fail once: its first error reads debug information, for most of the time of a small call.

For `forked.starter`: programs that run in a fork of a process that has imported this have their errors at once.
"""

import contextlib

import tvm_ffi

with contextlib.suppress(RuntimeError):
    tvm_ffi.load_module("/no/such/library.so")
