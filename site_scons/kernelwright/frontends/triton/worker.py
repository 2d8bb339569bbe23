"""Compiles and interprets functions of Triton: a module that runs in an environment which has Triton, and not TVM.

What it is asked and answers is in :mod:`.serving`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, cast

from ..serving import Failure, Message, executed, failure_of, require_function, serve
from ..unit import Unit
from .compiler import compiled
from .data import program_of, unit_of
from .program import INTERPRETER, Program


def main() -> None:
    """Serve requests until stdin ends."""
    serve(_load, _answer)


def _load() -> ModuleType:
    import triton

    if INTERPRETER.variables.items() <= os.environ.items():
        from . import interpreter as triton_interpreter  # noqa: F401 (its imports take seconds)

    return cast("ModuleType", triton)


def _answer(request: Message) -> Message:
    values = request.values
    program, unit = program_of(values, _function_of(values)), unit_of(values)
    if "shapes" in values:
        return _interpreted(program, unit, request)
    options, results = compiled(program, unit, lambda doing: None)
    data = [asdict(result) for result in results]
    cubins = [one.pop("cubin") for one in data]
    return Message({"options": options, "compiled": data}, cubins)


def _function_of(values: Mapping[str, Any]) -> Any:
    """The function that a request names, in its source, which is executed."""
    from triton.runtime import KernelInterface

    def is_kernel(value: Any) -> bool:
        return isinstance(value, KernelInterface)  # with other decorators, too

    module = executed(values["file"], values["root"])
    return require_function(module, values["function"], is_kernel, "@triton.jit", values["root"])


def _interpreted(program: Program, unit: Unit, request: Message) -> Message:
    """Run a program with arrays, and answer with what is in them afterwards.

    Raises:
        Failure: the interpreter cannot do what the function does.
    """
    from .interpreter import interpreted, tensor_of

    values, parts = request.values, iter(request.parts)
    run = interpreted(program, unit)
    arguments = [
        values["numbers"][name] if shape is None else tensor_of(next(parts), program.declared[name].dtype, shape)
        for name, shape in values["shapes"].items()
    ]
    try:
        run(*arguments)
    except NotImplementedError as error:
        failure = failure_of(error, values["root"]).answer
        raise Failure("lacking", failure["message"], failure["location"], failure["detail"]) from error
    return Message({}, request.parts)
