"""Has a process compile or interpret a Program that names its source: in Triton's own environment, or in this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import DefinitionError, ToolchainError
from ...define.arguments import Tensor
from ...define.sizes import text_of
from ..other_process import asked, source_of
from ..sequence import Launches, each_of
from ..unit import Unit
from .compiler import Compiled
from .data import CompileRequest, InterpretRequest, JoinRequest, Made
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


def joined_elsewhere(program: Program, parts: Sequence[Made], unit: Unit) -> Sequence[Sequence[Compiled]]:
    """What the process that compiled ``program`` makes of the functions of several launches, as :func:`.joined.joined`.

    Arguments:
        program: one that names its source.
        parts: what was made of each program.
        unit: what is being lowered.
    """
    results = tuple(tuple(part.results) for part in parts)
    options = tuple(part.options for part in parts)
    request = JoinRequest(**_told(program, unit), parts=results, compiled_with=options)
    joined: Sequence[Sequence[Compiled]] = asked(ENVIRONMENT, WORKER, request, request.unit).parts
    return joined


def interpreted_elsewhere(returned: Program | Launches[Program], unit: Unit) -> Callable[..., Mapping[str, str]]:
    """A function that has the process run programs, and gets NumPy arrays, tensors of tvm-ffi and numbers.

    It returns the files that the process used, as ``LoweredKernel.read`` has them.

    Raises:
        DefinitionError: there are several launches, and not all of them name one source.
    """
    unit, declared = returned.checked(unit), returned.declared
    programs = [program for program, _ in each_of(returned, unit)]
    if len({program.source for program in programs}) > 1:
        message = "a process interprets all launches of a kernel, and they do not name one source"
        raise DefinitionError(message, unit.where, "put the functions into one source, or check it on a GPU")
    names = {name for program in programs for name in (*program.passed, *program.launch_only)}

    def run(*arguments: Any) -> Mapping[str, str]:
        given = {name: value for name, value in zip(declared, arguments, strict=True) if name in names}
        tensors = {n: v for n, v in declared.items() if n in names and isinstance(v, Tensor)}
        first, *others = (_told(program, unit) for program in programs)
        memories = [memory_of(given[name], tensor.dtype) for name, tensor in tensors.items()]
        request = InterpretRequest(
            **first,
            others=tuple(CompileRequest(**told) for told in others),
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
