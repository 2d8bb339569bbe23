"""Compiles and interprets functions of Triton: a module that runs in an environment which has Triton, and not TVM."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, cast

from ..named_source import require_function
from ..sequence import Launches
from .compiler import compiled
from .data import CompileRequest, Interpreted, InterpretRequest, Joined, JoinRequest, Made
from .joined import joined
from .program import INTERPRETER, Program


def load() -> ModuleType:
    """Import Triton."""
    import triton

    if INTERPRETER.variables.items() <= os.environ.items():
        from . import interpreter  # noqa: F401 (its imports take seconds)

    return cast("ModuleType", triton)


def _program_of(request: CompileRequest, module: ModuleType) -> Program:
    from triton.runtime import KernelInterface

    def is_kernel(value: Any) -> bool:
        return isinstance(value, KernelInterface)  # with other decorators, too

    return request.program(require_function(request, module, is_kernel, "@triton.jit"))


def _compile(request: CompileRequest, module: ModuleType) -> Made:
    return Made(*compiled(_program_of(request, module), request.unit, lambda doing: None))


def _join(request: JoinRequest, module: ModuleType) -> Joined:
    return Joined(tuple(map(tuple, joined(request.parts, request.compiled_with, request.unit))))


def _interpret(request: InterpretRequest, module: ModuleType) -> Interpreted:
    """Run programs with arrays, and answer with what is in them afterwards."""
    from .interpreter import interpreted, view_of

    programs = Launches([_program_of(one, module) for one in (request, *request.others)])
    declared = programs.declared
    memories = [bytearray(content) for content in request.contents]
    parts = iter(memories)
    arguments = [
        request.numbers[name]
        if shape is None
        else view_of(next(parts), declared[name].dtype, shape, request.strides[name])
        for name, shape in request.shapes.items()
    ]
    interpreted(programs, request.unit)(*arguments)
    return Interpreted(tuple(map(bytes, memories)))


OPERATIONS = {CompileRequest: _compile, JoinRequest: _join, InterpretRequest: _interpret}
"""Request -> what does it, for ``worker/elsewhere.py``."""
