"""Runs a Program on the CPU with Triton's interpreter, so that it can be compared with a reference without a GPU.

Written for Triton 3.9, which reads ``TRITON_INTERPRET`` when ``@triton.jit`` decorates a function: that has to be set
before the definition is executed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    ReduceScanOpInterface,
    TensorHandle,
    interpreter_builder,
)
from triton.tools.tensor_descriptor import TensorDescriptor

from ...core.errors import DefinitionError, Where
from ...define.arguments import Scalar, Tensor, Workspace
from ...define.declared import declared_strides, lines_of
from ...define.sizes import Size, text_of
from ...runtime.size import MULTIPROCESSORS, OCCUPANCY, stride_name
from ...runtime.size import Size as Computed
from ..sequence import Launches
from ..unit import Unit
from .descriptor import TensorDescriptor as Described
from .heuristics import each_specialized, resolved
from .memory import before_first, memory_of, strides_of
from .program import DTYPES, Program


def interpreted(returned: Program | Launches[Program], unit: Unit) -> Callable[..., Mapping[str, str]]:
    """A function that runs programs, and gets NumPy arrays, tensors of tvm-ffi and numbers: all arguments, in order.

    It may get views, too. It returns the files that another process used, of which there are none.

    Arguments:
        returned: what the definition returned.
        unit: the variant.

    Raises:
        DefinitionError: a function is none of Triton's, or a heuristic needs what only a call tells.
    """
    programs = [resolved(program, own)[0] for program, own in each_specialized(returned, unit)]
    functions = [_function_of(program, unit.where) for program in programs]
    for operation in ("binary_op", "unary_op", "create_dot", "create_fma", "create_clampf"):
        _mend_bfloat16(operation)
    _mend_casts()
    _mend_reductions()
    _mend_libdevice()

    def run(*arguments: Any) -> Mapping[str, str]:
        given, declared = dict(zip(returned.declared, arguments, strict=True)), returned.declared
        given |= {
            name: _view(given[name], v.dtype) for name, v in declared.items() if isinstance(v, Tensor) and v.given
        }
        symbols = _symbols(declared, given)
        memories = {name: memory for program in programs for name, memory in _memories(program, symbols).items()}
        for program, function in zip(programs, functions, strict=True):
            _execute(program, function, given | memories, symbols)
        return {}

    return run


def _memories(program: Program, symbols: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Its workspaces. What is not to be zeros is bytes that are no number in most types, so that reading them shows."""
    memories: dict[str, torch.Tensor] = {}
    for name, value in program.arguments.items():
        if isinstance(value, Workspace):
            shape = [_value(size, symbols) for size in value.shape]
            content = torch.full((math.prod(shape), getattr(torch, value.dtype).itemsize), 0 if value.zeroed else 0xFF)
            memories[name] = content.to(torch.uint8).view(getattr(torch, value.dtype))
    return memories


def _execute(program: Program, function: Any, given: Mapping[str, Any], symbols: Mapping[str, int]) -> None:
    grid = tuple(int(_value(size, symbols)) for _, size in program.blocks)
    if 0 in grid:
        return  # nothing is launched, and Triton describes no tensor without elements
    passed = {name: _passed(value, given.get(name), symbols) for name, value in program.arguments.items()}
    executor = GridExecutor(function.rewrite(), function.arg_names, grid)
    # All others are as the function shall see them: it would take integers for int32, and constants for numbers.
    of_memory = {name for name, value in passed.items() if isinstance(value, (torch.Tensor, TensorDescriptor))}
    executor.constexprs = [name for name in function.arg_names if name not in of_memory]
    try:
        executor(**passed)
    except InterpreterError as error:
        raise _origin(error) from None


@cache
def _mend_bfloat16(operation: str) -> None:
    """Have the interpreter compute in float32 where it gets bfloat16; this process does nothing else.

    Triton 3.9 keeps such numbers as the uint16 of their bits, and computes with these.
    """
    plain = getattr(InterpreterBuilder, operation)

    def mended(builder: InterpreterBuilder, *operands: Any) -> Any:
        is_narrow = [isinstance(one, TensorHandle) and one.dtype.scalar == tl.bfloat16 for one in operands]
        pairs = zip(operands, is_narrow, strict=True)
        result = plain(builder, *(builder.cast_impl(one, tl.float32) if narrow else one for one, narrow in pairs))
        # The result has the type of the first operand, and a product of matrices that of what it is added to.
        narrows = is_narrow[2 if operation == "create_dot" else 0]
        return builder.cast_impl(result, tl.bfloat16) if narrows and result.data.dtype == np.float32 else result

    setattr(InterpreterBuilder, operation, mended)


@cache
def _mend_casts() -> None:
    """Have the interpreter convert numbers to and from bfloat16, rounded to the nearest one as devices do it.

    Triton 3.9 cuts off what float32 has more, and takes the bits of such a number for an integer.
    """
    plain = InterpreterBuilder.cast_impl

    def mended(builder: InterpreterBuilder, source: TensorHandle, kind: tl.dtype) -> TensorHandle:
        before, after = source.dtype.scalar, kind.scalar
        if before == tl.bfloat16 and after not in (tl.bfloat16, tl.float32):
            source = plain(builder, source, tl.float32)
        if after != tl.bfloat16 or before == tl.bfloat16:
            return plain(builder, source, kind)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16).reshape(source.data.shape), after)

    InterpreterBuilder.cast_impl = mended


@cache
def _mend_reductions() -> None:
    """The same for reductions and scans, such as ``tl.sum``, which are no operations of the builder."""
    plain = ReduceScanOpInterface.apply

    def mended(self: ReduceScanOpInterface, given: Any) -> Any:
        tensors = given if isinstance(given, tuple) else (given,)
        is_narrow = [one.dtype == tl.bfloat16 for one in tensors]
        pairs = zip(tensors, is_narrow, strict=True)
        result = plain(self, tuple(_cast(one, tl.float32) if narrow else one for one, narrow in pairs))
        pairs = zip(result, is_narrow, strict=False)
        results = tuple(_cast(one, tl.bfloat16) if narrow else one for one, narrow in pairs)
        return results if isinstance(given, tuple) else results[0]

    ReduceScanOpInterface.apply = mended


def _cast(tensor: tl.tensor, dtype: tl.dtype) -> tl.tensor:
    kind = tl.block_type(dtype, tensor.type.shape) if tensor.type.is_block() else dtype
    return tl.tensor(interpreter_builder.cast_impl(tensor.handle, dtype), kind)


@cache
def _mend_libdevice() -> None:
    """Make functions of libdevice raise an error, because the interpreter lacks them.

    Those that are the same for all devices only have a name and no body until Triton compiles, so they return None. A
    definition has imported them already, by any name: the functions themselves are changed.
    """
    for function in vars(libdevice).values():
        if inspect.isfunction(function):
            function.__code__ = _lacking.__code__


def _lacking(*_: Any) -> None:
    raise NotImplementedError("libdevice not supported in interpreter mode")


def _origin(error: BaseException) -> BaseException:
    """What was raised in the function itself, or in one that it calls: its traceback has the line."""
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _function_of(program: Program, where: Where) -> InterpretedFunction[Any]:
    function = program.function
    if not isinstance(function, InterpretedFunction):
        message = f"the Program's function is of type {type(function).__module__}.{type(function).__qualname__}"
        raise DefinitionError(message, where, "pass a function that is decorated with @triton.jit")
    return function


def _symbols(declared: Mapping[str, Tensor | Scalar], given: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that the arguments of a call tell, and those of a device that is not there."""
    symbols = dict[str, int]()
    strides = declared_strides(declared)
    for name, value in declared.items():
        if isinstance(value, Tensor) and value.given:
            array = given[name]
            pairs = zip(value.shape, array.shape, strict=True)
            symbols |= {str(size): int(number) for size, number in pairs if str(size).isidentifier()}
            for axis, stride in enumerate(array.strides):
                named = strides[name][axis] if strides[name] else None
                symbols[stride_name(name, axis)] = stride
                if isinstance(named, str) and named.isidentifier():
                    symbols.setdefault(named, stride)
        elif isinstance(value, Scalar) and "int" in value.dtype:
            symbols[name] = int(given[name])
    for name, (argument, axis, told) in lines_of(declared).items():
        symbols.setdefault(name, told.solved(int(given[argument].shape[axis])))
    return {MULTIPROCESSORS: 4, OCCUPANCY: 2} | symbols


def _value(size: Any, symbols: Mapping[str, int]) -> int:
    value: int = Computed(text_of(size)).value(symbols)
    return value


def _passed(value: Any, given: Any, symbols: Mapping[str, int]) -> Any:
    """What a parameter of the function gets."""
    if isinstance(value, Workspace):
        return given
    if isinstance(value, Tensor):
        return given.first
    if isinstance(value, Described):
        lists = given.shape, given.strides, list(value.block_shape)
        return TensorDescriptor(given.first, *lists, value.padding)
    if isinstance(value, Size):
        return _number(_value(value, symbols), value.dtype)
    return _number(given, value.dtype) if isinstance(value, Scalar) else value


class View(NamedTuple):
    """An array of any strides. A function gets its address only, so PyTorch need not know how to make it.

    Arguments:
        first: the first element, or an empty tensor.
        shape, strides: as the array has them.
    """

    first: torch.Tensor
    shape: Sequence[int]
    strides: Sequence[int]


def view_of(memory: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> View:
    """An array in some memory, which begins at the lowest address of the array."""
    kind, count = getattr(torch, dtype), len(memory)
    whole = torch.frombuffer(memory, dtype=kind) if count else torch.empty(0, dtype=kind)
    first = before_first(shape, strides) if count else 0
    return View(whole[first : first + 1], shape, strides)


def _view(array: Any, dtype: str) -> View:
    """An array of NumPy or tvm-ffi, unless it is one already."""
    if isinstance(array, View):
        return array
    return view_of(memory_of(array, dtype), dtype, [int(size) for size in array.shape], strides_of(array))


def _number(value: Any, dtype: str) -> tl.tensor:
    """A number of a type, which the interpreter by itself has for int32 only."""
    kind = tl.str_to_ty(DTYPES[dtype], None)
    return tl.tensor(TensorHandle(np.array([value], dtype), kind), kind)
