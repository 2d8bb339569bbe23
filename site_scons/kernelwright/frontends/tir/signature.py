"""What a TIR function takes: names, types and shapes of its arguments, and which of them it writes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir.stmt import MatchBufferRegion
from tvm.tirx.tile_primitive import TilePrimitiveCall

from ...core.errors import DefinitionError
from ...runtime.size import Line, translate
from ..unit import Unit
from .alignment import element_alignment, required_alignment, views_of
from .tensor_maps import ENCODE, STORING

ARITHMETIC = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%"}
FUNCTIONS = {tirx.Min: "min", tirx.Max: "max"}
"""TVM's operations that sizes have (``runtime/size.py``)."""

_INFIX = {
    **ARITHMETIC,
    # Sizes are not negative, so rounding towards zero and rounding down are the same.
    tirx.Div: "//",
    tirx.Mod: "%",
}

_READING = re.compile(
    r"tirx\.(ptx(_legacy)?\.(cp_async_(ca|cg|bulk_g2s|bulk_tensor_g2s)|ld|prefetch)|(cuda|s_tir)\.ldg|prefetch)"
)
"""Operations that only read global memory through the pointers that they are given."""

WRITE_ACCESS = 2
"""Bit of the access mask of ``tvm_access_ptr``."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, in the order of the call.

    Arguments:
        name: its name.
        dtype: its type, such as ``float16``.
        shape: sizes, as integers or TIR expressions, or None for a scalar.
        output: whether callers may leave it out.
        written: whether the function may write to it.
        text: the shape for signature.json.
        alignment: bytes to which a tensor's data must be aligned, where that is more than its elements ask for.
        strides: those that are declared, in elements, as integers or TIR expressions; empty: those of a compact array.
        stride_text: the strides for signature.json.
        given, default: as in signature.json.
    """

    name: str
    dtype: str
    shape: tuple[Any, ...] | None
    output: bool
    written: bool
    text: tuple[int | str, ...] = ()
    alignment: int | None = None
    strides: tuple[Any, ...] = ()
    stride_text: tuple[int | str, ...] = ()
    given: bool | None = True
    folds: bool = False
    default: bool | int | float | None = None

    def to_json(self) -> dict[str, Any]:
        """The argument in signature.json."""
        tensor: dict[str, Any] = {} if self.shape is None else {"shape": list(self.text)}
        if self.alignment is not None:
            tensor["alignment"] = self.alignment
        if self.strides:
            tensor["strides"] = list(self.stride_text)
        if self.given is not True:
            tensor["given"] = self.given
        if self.folds:
            tensor["folds"] = True
        if self.default is not None:
            tensor["default"] = self.default
        kind = "scalar" if self.shape is None else "tensor"
        plain = {"dtype": self.dtype, "kind": kind, "name": self.name, "output": self.output, "written": self.written}
        return dict(sorted({**plain, **tensor}.items()))


def arguments_of(function: tirx.PrimFunc, unit: Unit, absent: Mapping[str, str] | None = None) -> list[Argument]:
    """The arguments of a function.

    Arguments:
        absent: the dtypes of tensors that are null pointers in each call, by name.

    Raises:
        DefinitionError: a parameter is of another kind, names are not usable or do not fit the decorator, or two size
            variables have one name.
    """
    outputs = unit.named([str(parameter.name) for parameter in function.params])
    named = replace(unit, outputs=outputs)
    written = _written_buffers(function)
    never = {name: Argument(name, dtype, (), False, False, given=False) for name, dtype in (absent or {}).items()}
    arguments = [
        never.get(str(p.name)) or _argument(p, any(p.same_as(buffer) for buffer in written), named)
        for p in function.params
    ]
    _check_names(arguments, outputs, unit)
    _check_strides(arguments, unit)
    symbols_of(arguments, unit)
    return arguments


def with_alignments(arguments: list[Argument], function: tirx.PrimFunc, gpu: bool) -> list[Argument]:
    """The arguments of a scheduled function, with the alignment that its code needs."""

    def aligned(argument: Argument, parameter: Any) -> Argument:
        if argument.shape is None:
            return argument
        needed = required_alignment(function, parameter, gpu)
        return replace(argument, alignment=needed if needed > element_alignment(parameter) else None)

    return [aligned(argument, parameter) for argument, parameter in zip(arguments, function.params, strict=True)]


def symbols_of(arguments: list[Argument], unit: Unit) -> dict[str, str]:
    """The size variables of the arguments' shapes with their types, in order of first appearance.

    Raises:
        DefinitionError: two variables have one name.
    """
    variables: dict[str, Any] = {}
    for variable in variables_of(
        size for argument in arguments for size in (*(argument.shape or ()), *argument.strides)
    ):
        if not variables.setdefault(_symbol(variable), variable).same_as(variable):
            raise DefinitionError(
                f"two different size variables are named {variable.name!r}", unit.where, "give each its own name"
            )
    named = {_symbol(variable) for variable in variables_of(size for a in arguments for size in a.shape or ())}
    return {name: str(variable.ty.dtype) for name, variable in variables.items() if name in named}


def stride_symbols_of(arguments: list[Argument]) -> dict[str, str]:
    """The variables that only strides have, with their types."""
    named = {_symbol(variable) for variable in variables_of(size for a in arguments for size in a.shape or ())}
    named |= {argument.name for argument in arguments if argument.shape is None}
    variables = variables_of(stride for argument in arguments for stride in argument.strides)
    return {_symbol(variable): str(variable.ty.dtype) for variable in variables if _symbol(variable) not in named}


_LINE = re.compile(r"(\w+)__times_(\d+)_(plus|minus)_(\d+)")
"""The name of a variable that stands for a size of which host code computes the symbol."""


def line_variable(name: str, told: Line) -> str:
    """The name of the variable for a size that tells a symbol; generated C has it, too."""
    return f"{name}__times_{told.times}_{'minus' if told.plus < 0 else 'plus'}_{abs(told.plus)}"


def told_by(variable: Any) -> Line:
    """What a variable of a size tells: most tell their own names."""
    found = _LINE.fullmatch(str(variable.name))
    if not found:
        return Line(str(variable.name), 1, 0)
    return Line(found[1], int(found[2]), int(found[4]) * (-1 if found[3] == "minus" else 1))


def _symbol(variable: Any) -> str:
    return str(told_by(variable).name)


def variables_of(sizes: Iterable[Any]) -> list[Any]:
    """The variables in some sizes, strides or other code, as often as they are there."""
    variables: list[Any] = []
    for size in sizes:
        if not isinstance(size, int):
            tvm_ffi.structural_walk(size, (tvm.ir.Var, variables.append))
    return variables


def expression(size: Any, unit: Unit, argument: str) -> str:
    """A size as an expression in Python syntax.

    Raises:
        DefinitionError: it has an operation or a name that signatures do not have, or too many terms inside of one
            another.
    """

    def text(node: Any) -> str:
        if isinstance(node, tirx.IntImm):
            return str(int(node.value))
        if isinstance(node, tvm.ir.Var) and (told := _LINE.fullmatch(str(node.name))):
            return f"({told[1]} * {told[2]} {'-' if told[3] == 'minus' else '+'} {told[4]})"
        if isinstance(node, tvm.ir.Var):
            if not node.name.isidentifier() or keyword.iskeyword(node.name):
                message = f"a size variable is named {str(node.name)!r}, which cannot be a name in Python"
                raise DefinitionError(message, unit.where, "give it another name, such as te.var('n')")
            return str(node.name)
        if isinstance(node, tirx.Cast):
            return text(node.value)
        for kind, operator in _INFIX.items():
            if isinstance(node, kind):
                return f"({text(node.a)} {operator} {text(node.b)})"
        for kind, name in FUNCTIONS.items():
            if isinstance(node, kind):
                return f"{name}({text(node.a)}, {text(node.b)})"
        raise DefinitionError(
            f"a size of argument {argument!r} is {node}, which no signature can say",
            unit.where,
            "use integers, variables, + - * // % T.min and T.max",
        )

    try:
        result = text(size)
        plain = result[1:-1] if result.startswith("(") else result
        translate(plain, str, str, lambda *_: "")
    except (ValueError, RecursionError) as error:
        message = f"a size of argument {argument!r} has too many terms inside of one another"
        raise DefinitionError(message, unit.where, "pass it as a number, or write it with fewer terms") from error
    return plain


def _argument(parameter: Any, written: bool, unit: Unit) -> Argument:
    name = str(parameter.name)
    if tirx.buffer.is_buffer_var(parameter):
        shape = tuple(map(_plain, parameter.shape))
        text = tuple(size if isinstance(size, int) else expression(size, unit, name) for size in shape)
        strides = () if are_compact(parameter) else tuple(map(_plain, parameter.strides))
        steps = tuple(stride if isinstance(stride, int) else expression(stride, unit, name) for stride in strides)
        output = name in unit.outputs
        return Argument(name, str(parameter.dtype), shape, output, written, text, strides=strides, stride_text=steps)
    if isinstance(parameter.ty, tvm.ir.PrimType):
        return Argument(name, str(parameter.ty.dtype), None, False, False)
    raise DefinitionError(
        f"argument {name!r} is a plain pointer",
        unit.where,
        "give it a shape and a type: declare it as T.Buffer, or bind it with T.match_buffer",
    )


def _plain(size: Any) -> Any:
    return int(size.value) if isinstance(size, tirx.IntImm) else size


def are_compact(parameter: Any) -> bool:
    """Whether a buffer declares no strides, or constants that are those of a compact array."""
    if not len(parameter.strides):
        return True
    expected: int | None = 1
    for size, stride in zip(reversed(parameter.shape), reversed(parameter.strides), strict=True):
        if not isinstance(stride, tirx.IntImm) or int(stride.value) != expected:
            return False
        expected = expected * int(size.value) if isinstance(size, tirx.IntImm) else None
    return True


def _check_strides(arguments: list[Argument], unit: Unit) -> None:
    """Raise a DefinitionError if an output has other strides than a new array, which is compact."""
    used = [str(variable.name) for variable in variables_of(size for a in arguments for size in a.shape or ())]
    used += [str(variable.name) for variable in variables_of(stride for a in arguments for stride in a.strides)]
    for argument in (argument for argument in arguments if argument.output and argument.strides):
        expected: Any = 1
        for size, stride in zip(reversed(argument.shape or ()), reversed(argument.strides), strict=True):
            is_free = isinstance(stride, tvm.ir.Var) and used.count(str(stride.name)) == 1
            if not is_free and not sym.Analyzer().can_prove_equal(stride, expected):
                strides = ", ".join(map(str, argument.stride_text))
                raise DefinitionError(
                    f"output {argument.name!r} has the strides [{strides}], and new arrays are compact",
                    unit.where,
                    f"remove {argument.name!r} from outputs, so that callers pass it; or declare it without strides",
                )
            expected = expected * size


def _check_names(arguments: list[Argument], outputs: tuple[str, ...], unit: Unit) -> None:
    names = [argument.name for argument in arguments]
    tensors = [argument.name for argument in arguments if argument.shape is not None]
    for name in names:
        if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or names.count(name) > 1:
            raise DefinitionError(
                f"{name!r} cannot be the name of an argument (the arguments are {', '.join(names)})",
                unit.where,
                "give each argument a Python identifier of its own, with name=... in TE",
            )
    for name in outputs:
        if name not in tensors:
            raise DefinitionError(
                f"outputs names {name!r}, which is no tensor argument (the tensor arguments are {', '.join(tensors)})",
                unit.where,
                "use the names of the function's buffers, or their positions",
            )


def require_written(arguments: list[Argument], unit: Unit) -> None:
    """Raise a DefinitionError for an output that the function does not write: callers would get old memory.

    An argument counts as written if the function may write to it through a pointer. So there are no false alarms.
    """
    outputs = unit.named([argument.name for argument in arguments])
    by_name = {argument.name: argument for argument in arguments}
    written = [argument.name for argument in arguments if argument.written]
    for entry, name in zip(unit.outputs, outputs, strict=True):
        if not by_name[name].written:
            shown = f"{name!r}" if entry == name else f"{entry}, which is {name!r}"
            remedy = f"list what it writes: {', '.join(written)}" if written else "have the function store to it"
            raise DefinitionError(f"outputs lists {shown}, and the function does not write it", unit.where, remedy)


def _written_buffers(function: tirx.PrimFunc) -> list[Any]:
    """The buffers that a function stores to, or passes on in a way that allows others to write to them."""
    written: list[Any] = []
    mapped: list[Any] = []
    stores: list[str] = []

    def visit(node: Any) -> Any:
        if isinstance(node, tvm.ir.Var):
            return tvm_ffi.WalkResult.SKIP  # its type is not part of the code
        if isinstance(node, tirx.BufferStore):
            written.append(node.buffer)
        elif isinstance(node, (MatchBufferRegion, tirx.DeclBuffer)):
            return tvm_ffi.WalkResult.SKIP  # what is viewed counts as far as the view is written, see below
        elif isinstance(node, TilePrimitiveCall):
            tvm_ffi.structural_walk(node, (tvm.ir.TensorRegion, lambda region: written.append(region.source)))
        elif isinstance(node, tvm.ir.Call):
            name = str(getattr(node.op, "name", ""))
            if name.startswith(STORING):
                stores.append(name)
            if name == ENCODE:
                mapped.extend(getattr(node.args[1], "args", ()))
                return tvm_ffi.WalkResult.SKIP
            return _visit_call(node, written.append)
        return None

    tvm_ffi.structural_walk(function.body, (object, visit), order="pre")
    written += mapped if stores else []
    views = views_of(function)
    for buffer in written:  # which gets longer: a view may be one of another view
        for viewed in variables_of(source for view, source in views if view.same_as(buffer)):
            if not any(viewed.same_as(known) for known in written):
                written.append(viewed)
    return written


def _visit_call(call: Any, note: Callable[[Any], None]) -> Any:
    name = str(getattr(call.op, "name", ""))
    if name.startswith("tirx.ptx.") and call.args and isinstance(call.args[0], tvm.ir.TensorLoad):
        note(call.args[0].source)  # an instruction that has a result names first where to put it
    if _READING.match(name):
        return tvm_ffi.WalkResult.SKIP
    if name == "tirx.tvm_access_ptr":
        mask = call.args[4]
        if isinstance(mask, tirx.IntImm) and not int(mask.value) & WRITE_ACCESS:
            return tvm_ffi.WalkResult.SKIP
    elif name == "tirx.address_of" and isinstance(call.args[0], tvm.ir.TensorLoad):
        note(call.args[0].source)
    else:  # "buffer_data", or a function that gets the buffer itself
        for argument in call.args:
            note(argument)
    return None
