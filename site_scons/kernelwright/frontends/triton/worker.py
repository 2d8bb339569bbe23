"""Compiles and interprets functions of Triton: a module that runs in an environment which has Triton, and not TVM."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, cast

from ...core.errors import Where
from ...processes.messages import Failed
from ...processes.serving import Progress
from ..serving import require_function, said, serve_sources
from .compiler import compiled
from .data import CompileRequest, Interpreted, InterpretRequest, Made, program_of
from .program import INTERPRETER, Program


def main() -> None:
    """Serve requests until stdin ends."""
    serve_sources(_load, {CompileRequest: _compile, InterpretRequest: _interpret})


def _load() -> ModuleType:
    import triton

    if INTERPRETER.variables.items() <= os.environ.items():
        from . import interpreter  # noqa: F401 (its imports take seconds)

    return cast("ModuleType", triton)


def _program_of(request: CompileRequest) -> Program:
    from triton.runtime import KernelInterface

    def is_kernel(value: Any) -> bool:
        return isinstance(value, KernelInterface)  # with other decorators, too

    return program_of(request.program, require_function(request, is_kernel, "@triton.jit"))


def _compile(request: CompileRequest, progress: Progress) -> Made:
    return Made(*compiled(_program_of(request), request.unit, progress))


def _interpret(request: InterpretRequest, progress: Progress) -> Interpreted:
    """Run a program with arrays, and answer with what is in them afterwards."""
    from .interpreter import interpreted, tensor_of

    program = _program_of(request)
    memories = [bytearray(content) for content in request.contents]
    parts = iter(memories)
    run = interpreted(program, request.unit)
    arguments = [
        request.numbers[name] if shape is None else tensor_of(next(parts), program.declared[name].dtype, shape)
        for name, shape in request.shapes.items()
    ]
    try:
        run(*arguments)
    except NotImplementedError as error:
        message, location, *_ = said(error, request.root)
        where = request.where
        return Interpreted(
            lacking=Failed(
                "DefinitionError", message, Where(where.kernel, where.variant, where.stage, location or where.location)
            )
        )
    return Interpreted(tuple(map(bytes, memories)))
