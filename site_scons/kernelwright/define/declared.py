"""What a definition declares of all arguments together: the sizes and strides that they tell, and what is wrong."""

from __future__ import annotations

import itertools
import keyword
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

from ..core.errors import DefinitionError, Where, shown
from ..runtime.dtype import integer_range, number_kind
from ..runtime.size import MULTIPROCESSORS, OCCUPANCY, Line, line, lines_in, stride_name, translate
from .arguments import DTYPES, EXAMPLE, MOST_ALIGNED, SCALARS, Scalar, Tensor
from .strides import COMPACT, all_strides, check_strides, check_told, strides_of
from .unit import Unit


class Declared:
    """The base of what definitions return if they declare arguments by name."""

    arguments: Mapping[str, Any]

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """The arguments of the kernel, by their names."""
        return declared_in(self.arguments)

    @property
    def told_sizes(self) -> frozenset[str]:
        """The names of sizes that a call tells: those in shapes, of strides, and of integers among the arguments; and
        what its device tells."""
        return told_by(self.declared) | self._of_device

    @property
    def sure_sizes(self) -> frozenset[str]:
        """Those of them that calls with None tell, too: not the strides of arrays that may be None."""
        sure = {n: v for n, v in self.declared.items() if isinstance(v, Scalar) or not _tells_optionally(v)}
        return told_by(sure) | self._of_device

    @property
    def _of_device(self) -> frozenset[str]:
        """What the device of a call tells, unless an argument has that name, or tells something by it."""
        return frozenset({MULTIPROCESSORS, OCCUPANCY} - self.declared.keys() - told_by(self.declared))

    def check(self, outputs: Sequence[str], where: Where) -> None:
        """Raise a DefinitionError for what no kernel can be made of.

        Arguments:
            outputs: the names of the outputs.
            where: the definition.
        """
        check_arguments(self.declared, outputs, where)
        self.check_launch(self.told_sizes, self.sure_sizes, where)

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """Raise a DefinitionError for what no launch can be made of, though the arguments are right.

        Arguments:
            names: the sizes that a call tells, which a function can get.
            sure: those that every call tells, of which a launch or a workspace can be.
        """

    def checked(self, unit: Unit) -> Unit:
        """A unit of this definition, with the names of its outputs in place of positions.

        Raises:
            DefinitionError: as :meth:`check`, or an output is no argument.
        """
        outputs = unit.named(list(self.declared))
        self.check(outputs, unit.where)
        return replace(unit, outputs=outputs)


def declared_in(values: Mapping[str, Any]) -> dict[str, Tensor | Scalar]:
    """The arguments among what a function gets; of what it gets by a map or descriptor, the tensor."""
    told = {name: getattr(value, "tensor", value) for name, value in values.items()}
    return {name: value for name, value in told.items() if isinstance(value, (Tensor, Scalar))}


def _tells_optionally(tensor: Tensor) -> bool:
    return tensor.optional and tensor.strides != COMPACT


def told_by(declared: Mapping[str, Tensor | Scalar]) -> frozenset[str]:
    """The names of sizes that some arguments tell."""
    tensors = [value for value in declared.values() if isinstance(value, Tensor)]
    named = {size for tensor in tensors for size in tensor.shape if isinstance(size, str) and size.isidentifier()}
    strides = stride_symbols(declared) | told_strides(declared).keys()
    return frozenset(named | integers_of(declared) | lines_of(declared).keys() | strides)


def lines_of(
    declared: Mapping[str, Tensor | Scalar], outputs: Collection[str] = ()
) -> dict[str, tuple[str, int, Line]]:
    """The names that only sizes such as ``2 * d`` tell -> the first argument and the dimension that does.

    Arguments:
        outputs: the names of the outputs, which a call may leave out.
    """
    names = list(declared)
    firm = (n for n, v in declared.items() if isinstance(v, Tensor) and v.passed and n not in outputs)
    shapes: dict[str, tuple[int | str, ...]] = {name: getattr(declared[name], "shape", ()) for name in firm}
    found = lines_in((shapes.get(name, ()) for name in names), integers_of(declared))
    return {name: (names[position], axis, told) for name, (position, axis, told) in found.items()}


def declared_strides(declared: Mapping[str, Tensor | Scalar]) -> dict[str, tuple[int | str, ...]]:
    """The strides of each tensor among some arguments, by its name; none of one that has to be compact."""
    tensors = ((name, value) for name, value in declared.items() if isinstance(value, Tensor))
    return {name: strides_of(name, value.shape, value.strides) for name, value in tensors}


def stride_symbols(declared: Mapping[str, Tensor | Scalar]) -> set[str]:
    """The names that stand alone among the strides of some arguments."""
    strides = itertools.chain.from_iterable(declared_strides(declared).values())
    return {stride for stride in strides if isinstance(stride, str) and stride.isidentifier()}


def told_strides(declared: Mapping[str, Tensor | Scalar]) -> dict[str, int | str]:
    """The name of each ``Stride`` of some arguments -> what it is by their declarations: a number, or an expression."""
    return {
        stride_name(name, axis): stride
        for name, value in declared.items()
        if isinstance(value, Tensor)
        for axis, stride in enumerate(all_strides(name, value.shape, value.strides))
    }


def check_launch_only(launch: Any, arguments: Collection[str], where: Where) -> None:
    """Raise a DefinitionError unless something names integers that callers pass, and that only a launch needs.

    Arguments:
        launch: the value of ``launch``.
        arguments: the names of the function's parameters.
    """
    remedy = 'write, for example, launch={"longest": Scalar("int32")}, and use the name in grid'
    for name, value in launch.items() if isinstance(launch, Mapping) else [("launch", launch)]:
        if not (isinstance(value, Scalar) and value.dtype in SCALARS and "int" in value.dtype):
            raise DefinitionError(f"launch has {shown(name)}: {shown(value)}, expected an integer", where, remedy)
        if not (isinstance(name, str) and name.isidentifier()) or name in arguments:
            raise DefinitionError(f"launch has {shown(name)}, which is no name, or that of a parameter", where, remedy)


def first_difference(
    given: Collection[str], parameters: Collection[str], passed: Sequence[str], order: Sequence[str]
) -> str:
    """The first place where the arguments of a definition are not the parameters of its function; empty: there is none.

    Arguments:
        given, parameters: their names.
        passed, order: those whose order counts, as the definition and as the function has them.
    """
    unknown = (f"it has no parameter {name!r}" for name in given if name not in parameters)
    missing = (f"its parameter {name!r} gets nothing" for name in parameters if name not in given)
    moved = (
        f"{one!r} is given where it has {other!r}" for one, other in zip(passed, order, strict=False) if one != other
    )
    return next(itertools.chain(unknown, missing, moved), "")


def integers_of(declared: Mapping[str, Tensor | Scalar]) -> set[str]:
    """The names of the integers among arguments."""
    return {name for name, value in declared.items() if isinstance(value, Scalar) and "int" in value.dtype}


def check_arguments(declared: Mapping[str, Tensor | Scalar], outputs: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for arguments that no kernel can have.

    Arguments:
        declared: the arguments by their names.
        outputs: the names of the outputs.
    """
    for name, value in declared.items():
        known = SCALARS if isinstance(value, Scalar) else DTYPES
        if value.dtype not in known:
            what = "number" if isinstance(value, Scalar) else "tensor"
            message = f"argument {name!r} has the dtype {shown(value.dtype)}, which no {what} can have here"
            raise DefinitionError(message, where, f"use one of {', '.join(known)}")
        if isinstance(value, Scalar):
            _check_default(name, value, where)
        if isinstance(value, Tensor):
            _check_tensor(name, value, where)
            check_strides(name, value.shape, value.strides, bool(value.written) or name in outputs, where)
    _check_names(declared, where)
    _check_told(declared, outputs, where)
    tensors = [name for name, value in declared.items() if isinstance(value, Tensor)]
    for name in outputs:
        if name not in tensors:
            names = ", ".join(tensors) or "none"
            message = f"outputs names {name!r}, which is no tensor argument (the tensor arguments are {names})"
            raise DefinitionError(message, where, "use the names of the tensors, or their positions")
    if not tensors:
        remedy = "declare at least one Tensor: it tells on which device to run"
        raise DefinitionError("it has no tensor argument", where, remedy)
    _check_passed(declared, outputs, where)


def _check_default(name: str, value: Scalar, where: Where) -> None:
    """Raise a DefinitionError for a default that is no number of the argument's type."""
    kinds = {"bool": (bool,), "float": (int, float)}.get(number_kind(value.dtype), (int,))
    most = {"bool": 1, "float32": (2 - 2**-23) * 2**127, "float64": sys.float_info.max}.get(value.dtype)
    low, high = (-most, most) if most else integer_range(value.dtype)
    fits = type(value.default) in kinds and low <= (value.default or 0) <= high
    if value.default is not None and not fits:
        message = f"argument {name!r} has default={shown(value.default)}, which is no {value.dtype}"
        raise DefinitionError(message, where, "write a number of that type, or leave it out")
    if not value.is_multiple:
        message = f"argument {name!r} is {shown(value)}, which is a multiple of no such number"
        raise DefinitionError(message, where, "give multiple=16 to an integer whose default, if it has one, is one")


def _check_passed(declared: Mapping[str, Tensor | Scalar], outputs: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError if calls with None do not tell what they have to."""
    tensors = {name: value for name, value in declared.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if type(value.optional) is not bool or type(value.given) is not bool or (value.optional and not value.given):
            message = f"argument {name!r} has optional={shown(value.optional)} and given={shown(value.given)}"
            remedy = "write optional=True if calls may pass None, or given=False in a variant for calls that do"
            raise DefinitionError(message, where, remedy)
        if name in outputs and value.passed is not True:
            message = f"output {name!r} is optional, and an output that is left out is allocated"
            remedy = f"take {name!r} out of outputs and give it written=True, so that callers pass an array or None"
            raise DefinitionError(message, where, remedy)
    if all(value.passed is not True for value in tensors.values()):
        message = f"all its tensors may be None ({', '.join(tensors)}), and then none tells on which device to run"
        raise DefinitionError(message, where, "have at least one Tensor that is neither optional nor given=False")
    told = {size for name, tensor in tensors.items() if tensor.passed and name not in outputs for size in tensor.shape}
    told |= integers_of(declared) | lines_of(declared, outputs).keys()
    leading = {each.shape[0] for n, each in tensors.items() if each.folds and each.passed and n not in outputs}
    for name in outputs:
        if name in tensors and tensors[name].folds and tensors[name].shape[0] not in leading:
            message = (
                f"output {name!r} has leading dimensions that fold into {tensors[name].shape[0]!r}, and no input has"
            )
            remedy = "fold those of an input into that name: one that calls cannot leave out; or take it out of outputs"
            raise DefinitionError(message, where, remedy)
    for name, tensor in tensors.items():
        used = [one for size in tensor.shape for one in _names(str(size))] if tensor.optional else []
        if unknown := [one for one in used if one not in told]:
            message = f"the size {unknown[0]!r} is only in the shape of {name!r}, for which calls may pass None"
            remedy = "give another input that size, or declare an integer argument of that name"
            raise DefinitionError(message, where, remedy)


def refuse_optional(declared: Mapping[str, Tensor | Scalar], language: str, where: Where) -> None:
    """Raise a DefinitionError for an optional tensor of a language whose code cannot be told that a pointer is null."""
    for name, value in declared.items():
        if isinstance(value, Tensor) and value.optional:
            message = f"argument {name!r} is optional, and a function in {language} is compiled with None or without"
            remedy = (
                f"make a variant for each: given=has_{name} in the Tensor, and configs=grid(has_{name}=[True, False])"
            )
            raise DefinitionError(message, where, remedy)


def _check_told(declared: Mapping[str, Tensor | Scalar], outputs: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for a size that is computed of what no input tells."""
    shapes = {name: value.shape for name, value in declared.items() if isinstance(value, Tensor)}
    texts = {name: [size for size in shape if isinstance(size, str)] for name, shape in shapes.items()}
    told = integers_of(declared).union(*(texts[name] for name in texts if name not in outputs))
    told |= lines_of(declared, outputs).keys()
    for name, sizes in texts.items():
        for size in (size for size in sizes if not size.isidentifier()):
            unknown = next((used for used in _names(size) if used not in told), None)
            if unknown is not None:
                known = ", ".join(sorted(each for each in told if each.isidentifier())) or "none"
                message = f"a size of argument {name!r} is {size!r}, and no input tells {unknown!r} (known are {known})"
                remedy = f"make {unknown!r} a size of an input, or an argument that is an integer"
                raise DefinitionError(message, where, remedy)


def _names(size: str) -> list[str]:
    """The names in a size; none, if it is no expression that can be computed for all sizes of a call."""

    def number(value: int) -> int | None:
        return value

    def symbol(name: str) -> int | None:
        used.append(name)
        return None

    def operation(sign: str, operands: list[int | None]) -> int | None:
        if sign in ("//", "%") and not operands[1]:
            raise ValueError("a divisor may be 0")
        return None

    used: list[str] = []
    try:
        translate(size, number, symbol, operation)
    except ValueError:
        return []
    return used if all(name.isascii() and not keyword.iskeyword(name) for name in used) else []


def _check_tensor(name: str, value: Tensor, where: Where) -> None:
    folded = next((size for size in value.shape if isinstance(size, (EllipsisType, tuple))), None)
    if folded is not None or (value.folds and not str(value.shape[0]).isidentifier()):
        message = f"argument {name!r} has {shown(folded or (..., value.shape[0]))} among its sizes"
        remedy = f'write ..., or (..., "n") with a name, and only as the first size: Tensor({value.dtype!r}, ..., "h")'
        raise DefinitionError(message, where, remedy)
    for size in value.shape:
        if (type(size) is not int or not 0 < size < 1 << 63) and not (isinstance(size, str) and _names(size)):
            message = (
                f"a size of argument {name!r} is {shown(size)}, expected a positive integer, a name or an expression"
            )
            raise DefinitionError(message, where, EXAMPLE.format(value.dtype))
    alignment = value.alignment
    if alignment is not None and (type(alignment) is not int or alignment < 1 or alignment & (alignment - 1)):
        raise DefinitionError(f"argument {name!r} has alignment={shown(alignment)}, expected a power of two", where)
    if alignment is not None and alignment > MOST_ALIGNED:
        message = f"argument {name!r} has alignment={shown(alignment)}, and nobody allocates memory like that"
        raise DefinitionError(message, where, f"use a power of two up to {MOST_ALIGNED}")
    lines = (line(size) for size in value.shape if isinstance(size, str))
    of_lines = (told.name for told in lines if told is not None)
    known = (*value.shape, *of_lines, *(value.strides if isinstance(value.strides, tuple) else ()))
    for size, factor in value.multiples.items():
        if size not in known or not str(size).isidentifier() or type(factor) is not int or not 0 < factor < 1 << 31:
            message = f"argument {name!r} has multiples={shown(dict(value.multiples))}"
            raise DefinitionError(message, where, "name its sizes or strides, and give each a positive integer")


def _check_names(declared: Mapping[str, Tensor | Scalar], where: Where) -> None:
    """Raise a DefinitionError for a name in strides that nothing tells, and for one that only a stride may have."""
    symbols = stride_symbols(declared)
    sizes = {size for value in declared.values() if isinstance(value, Tensor) for size in value.shape}
    taken = next((name for name in told_strides(declared) if name in sizes or name in declared), None)
    if taken is not None:
        raise DefinitionError(f"{taken!r} is the name of a stride", where, "give the size or argument another name")
    numbers = {name for name, value in declared.items() if isinstance(value, Scalar) and "int" in value.dtype}
    for name, strides in declared_strides(declared).items():
        check_told(name, strides, {str(size) for size in sizes} | numbers | symbols, where)
