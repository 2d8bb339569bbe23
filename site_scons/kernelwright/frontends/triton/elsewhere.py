"""Has a process compile or interpret a Program that names its source: in Triton's own environment, or in this one."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.converter import from_json
from ...core.dtype import Dtype, bytes_of
from ...core.errors import DefinitionError, LoweringError, ToolchainError, Where
from ...define.arguments import Tensor
from ...processes.messages import Failed
from ..other_process import asked, source_of
from ..serving import Message
from ..unit import Unit
from .data import data_of
from .program import ENVIRONMENT, INTERPRETER, NEED, Program


def asked_for(program: Program, unit: Unit, **options: Any) -> Message:
    """What the process makes of a program that names its source.

    Arguments:
        program: what the definition returned, checked.
        unit: what is being lowered, or interpreted.
        options: ``values`` that are told besides, and further arguments of :func:`asked`.

    Raises:
        KernelwrightError: what :func:`.triton_compiler.compiled` raises, at the same places; or there is no such
            source or function, the source cannot be executed, or there is no environment with Triton.
    """
    source = os.fspath(program.source or "")
    if not unit.python:
        if not NEED.is_installed:
            raise ToolchainError("Triton has no environment", unit.where, ENVIRONMENT.remedy)
        unit = replace(unit, python=sys.executable)
    values = {"function": program.function, **data_of(program, unit), **options.pop("values", {})}
    answer = asked(ENVIRONMENT, "triton.worker", values | source_of(source, unit), unit, **options)
    if "raised" in answer.values:
        raise from_json(Failed, answer.values["raised"]).error
    if "error" in answer.values:
        raise _error(answer.values["error"], source, unit, is_run="shapes" in values)
    return answer


def _error(error: Mapping[str, str], source: str, unit: Unit, *, is_run: bool) -> DefinitionError | LoweringError:
    where = Where(unit.kernel, unit.slug, unit.where.stage, error["location"] or unit.location)
    message, detail = error["message"], error["detail"] or None
    if error["kind"] == "function":
        return DefinitionError(message, where, "name a function of the file that is decorated with @triton.jit")
    if error["kind"] == "tool":
        remedy = "look whether it reads or writes beyond the end of a tensor" if is_run else None
        verb = f"interpret {source}" if is_run else f"compile {source} for {', '.join(unit.archs)}"
        return LoweringError(f"Triton cannot {verb}: {message}", where, remedy, detail)
    if error["kind"] == "lacking":
        lacking = DefinitionError(message, where)
        lacking.__cause__ = NotImplementedError(message)  # as if it was interpreted here
        return lacking
    remedy = "mend that line"
    if message.startswith("ModuleNotFoundError"):
        remedy = f"install it in the environment of {unit.python}, or leave it out of the source"
    return DefinitionError(f"{source} raised {message}", where, remedy, detail)


def interpreted_elsewhere(program: Program, unit: Unit) -> Callable[..., Mapping[str, str | None]]:
    """A function that has the process run a program, and gets NumPy arrays, tensors of tvm-ffi and numbers.

    It returns the files that the process used, as ``LoweredKernel.read`` has them.
    """
    outputs = unit.named(list(program.declared))
    program.check(outputs, unit.where)

    def run(*arguments: Any) -> Mapping[str, str | None]:
        given = dict(zip(program.declared, arguments, strict=True))
        tensors = {name: value for name, value in program.declared.items() if isinstance(value, Tensor)}
        memories = [_memory(given[name], tensor) for name, tensor in tensors.items()]
        shapes = {name: list(map(int, given[name].shape)) if name in tensors else None for name in given}
        numbers = {name: np.asarray(value).item() for name, value in given.items() if name not in tensors}
        parts = [bytes(memory) for memory in memories]
        told = {"values": {"shapes": shapes, "numbers": numbers}, "variables": INTERPRETER.variables}
        answer = asked_for(program, replace(unit, outputs=outputs), parts=parts, **told)
        for memory, part in zip(memories, answer.parts, strict=True):
            memory[:] = part
        files: Mapping[str, str | None] = answer.values["files"]
        return files

    return run


def _memory(array: Any, declared: Tensor) -> memoryview:
    """The bytes of a compact array."""
    size = bytes_of(math.prod(map(int, array.shape)) * Dtype.parse(declared.dtype, Where(stage="check")).bits)
    address = array.ctypes.data if hasattr(array, "ctypes") else array.data_ptr()
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B") if size else memoryview(bytearray())
