"""Has a process compile or interpret a Program that names its source: in Triton's own environment, or in this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import ToolchainError
from ...define.arguments import Tensor
from ...define.sizes import text_of
from ..other_process import asked, source_of
from ..unit import Unit
from .data import CompileRequest, InterpretRequest, Made
from .memory import memory_of, strides_of
from .program import ENVIRONMENT, INTERPRETER, NEED, Program

WORKER = "triton.worker"
"""The module that the process runs."""


def _told(program: Program, unit: Unit) -> dict[str, Any]:
    """What a request says of a program that names its source.

    Raises:
        DefinitionError: there is no such source.
        ToolchainError: there is no environment with Triton.
    """
    source = os.fspath(program.source or "")
    if not unit.python:
        if not NEED.is_installed:
            raise ToolchainError("Triton has no environment", unit.where, ENVIRONMENT.remedy)
        unit = replace(unit, python=sys.executable)
    return {
        **source_of(source, unit),
        "function": program.function,
        "source": source,
        "grid": tuple(text_of(size) for _, size in program.blocks),
        "launch": program.launch_only,
        "options": program.options,
        "arguments": program.arguments,
    }


def compiled_elsewhere(program: Program, unit: Unit) -> Made:
    """What the process makes of a program that names its source.

    Arguments:
        program: what the definition returned, checked.
        unit: what is being lowered.

    Raises:
        KernelwrightError: what :func:`.compiler.compiled` raises, at the same places; or there is no such source or
            function, the source cannot be executed, or there is no environment with Triton.
    """
    request = CompileRequest(**_told(program, unit))
    return asked(ENVIRONMENT, WORKER, request, request.unit)


def interpreted_elsewhere(program: Program, unit: Unit) -> Callable[..., Mapping[str, str]]:
    """A function that has the process run a program, and gets NumPy arrays, tensors of tvm-ffi and numbers.

    It returns the files that the process used, as ``LoweredKernel.read`` has them.
    """
    unit = program.checked(unit)

    def run(*arguments: Any) -> Mapping[str, str]:
        given = dict(zip(program.declared, arguments, strict=True))
        given = {name: value for name, value in given.items() if name in {*program.passed, *program.launch_only}}
        tensors = {n: v for n, v in program.declared.items() if n in program.passed and isinstance(v, Tensor)}
        memories = [memory_of(given[name], tensor.dtype) for name, tensor in tensors.items()]
        request = InterpretRequest(
            **_told(program, unit),
            shapes={name: tuple(map(int, given[name].shape)) if name in tensors else None for name in given},
            strides={name: tuple(strides_of(given[name])) for name in tensors},
            numbers={name: np.asarray(value).item() for name, value in given.items() if name not in tensors},
            contents=tuple(map(bytes, memories)),
        )
        answer = asked(ENVIRONMENT, WORKER, request, request.unit, INTERPRETER.variables)
        for memory, content in zip(memories, answer.contents, strict=True):
            memory[:] = content
        files: Mapping[str, str] = answer.files
        return files

    return run
