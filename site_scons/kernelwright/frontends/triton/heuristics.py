"""Computes the values of ``@triton.heuristics`` when a kernel is built. Triton itself computes them at each call.

A heuristic gets the constants of a Program unchanged. For a size it gets an object that knows as much as the variant:
which number the size is a multiple of, and which numbers it is no multiple of, because an earlier variant is for those.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ...core.errors import DefinitionError, Where
from ...define.arguments import multiples_of
from ...define.declared import told_strides
from ...define.divisible import ALL
from ...define.sizes import Size, divisor_of, text_of
from ..raised import line_of
from ..sequence import Launches, each_of
from ..unit import Unit
from .program import Passed, Program


class UnknownError(Exception):
    """A heuristic needs a value that is known in a call only.

    Arguments:
        what: what it asks for.
        remedy: how a variant can know it; empty: it cannot.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy


def multiples_in(program: Program, unit: Unit) -> dict[str, int]:
    """What each name is a multiple of that the sizes of a program have: sizes, and strides."""
    multiples = multiples_of(program.declared, unit.multiples)
    strides = {
        name: divisor_of(Size(stride), multiples)
        for name, stride in told_strides(program.declared).items()
        if name != stride
    }
    return multiples | strides


OPERATIONS = (
    *("bool", "int", "index", "float", "iter", "getitem", "neg", "eq", "ne", "lt", "le", "gt", "ge", "hash"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rand", "rpow"),
)
"""The operations of numbers."""


class _Unknown:
    """Something that has a value in each call. It is not None, and nothing else is known."""

    def __init__(self, what: str, remedy: str = "") -> None:
        self._error = UnknownError(what, remedy)

    def _fail(self, *_: Any) -> NoReturn:
        raise self._error

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownError(f"{name} of {self._error}")


for _operation in OPERATIONS:
    setattr(_Unknown, f"__{_operation}__", _Unknown._fail)


class _Rest(_Unknown):
    """A remainder that is not 0."""

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self._is_other(other, False)

    def __ne__(self, other: object) -> bool:
        return self._is_other(other, True)

    def __hash__(self) -> int:
        self._fail()

    def _is_other(self, other: object, answer: bool) -> bool:
        return answer if type(other) is int and other == 0 else self._fail()


class _Size(_Unknown):
    """A size.

    Arguments:
        text: its expression.
        divisor: what it is a multiple of.
        others: what it is no multiple of.
    """

    def __init__(self, text: str, divisor: int, others: Sequence[int]) -> None:
        super().__init__(f"the size {text}")
        self._text, self._divisor, self._others = text, divisor, others

    def __mod__(self, number: Any) -> Any:
        if type(number) is not int or number < 1:
            self._fail()
        if self._divisor % number == 0:
            return 0
        what = f"whether {self._text} is a multiple of {number}"
        remedy = f'declare @kernel(divisible={{"{self._text}": [{number}, 1]}}), which makes a variant for each'
        return (_Rest if any(number % other == 0 for other in self._others) else _Unknown)(what, remedy)


@dataclass(frozen=True)
class _Known:
    """What a variant knows of sizes: what each name is a multiple of, and no multiple of."""

    multiples: Mapping[str, int]
    others: Mapping[str, Sequence[int]]

    def of(self, name: str, value: Any) -> Any:
        """What a heuristic gets for an argument of a Program."""
        if isinstance(value, Size):
            text = text_of(value)
            return _Size(text, divisor_of(value, self.multiples), self.others.get(text, ()))
        return _Unknown(f"the argument {name}") if isinstance(value, Passed) else value


def specialized(program: Program, unit: Unit) -> tuple[Program, Unit]:
    """A program as a variant of ``specialize="auto"`` has it, for aligned data and whole rows or as it is.

    The unit has no multiples left but those of sizes.
    """
    step = unit.multiples.get(ALL, 1)
    multiples = {name: number for name, number in unit.multiples.items() if name != ALL}
    if step == 1:
        return program, replace(unit, multiples=multiples)
    outputs = unit.named(list(program.declared))
    strides = {name: math.lcm(step, multiples.get(name, 1)) for name in sorted(program.strides(outputs))}
    return program.specialized(step, outputs), replace(unit, multiples={**multiples, **strides})


def each_specialized(returned: Program | Launches[Program], unit: Unit) -> list[tuple[Program, Unit]]:
    """The programs of a definition as :func:`specialized` has them. Each knows all multiples that the variant has."""
    plain = list(each_of(returned, unit))
    pairs = [specialized(program, own) for program, own in plain]
    if unit.multiples.get(ALL, 1) > 1 and [
        (p.arguments, {ALL: unit.multiples[ALL], **o.multiples}) for p, o in pairs
    ] == [(p.arguments, dict(o.multiples)) for p, o in plain]:
        message = 'specialize="auto" makes two equal variants: its data is aligned, and it gets no size or stride'
        raise DefinitionError(message, unit.where, "leave specialize out, or pass the sizes with Size")
    multiples: dict[str, int] = {}
    for program, own in pairs:
        for name, number in multiples_of(program.declared, own.multiples).items():
            multiples[name] = math.lcm(number, multiples.get(name, 1))
    return [(program, replace(own, multiples=multiples)) for program, own in pairs]


def resolved(program: Program, unit: Unit) -> tuple[Program, Unit]:
    """A program whose function has no heuristics, with the values that they compute where it gives none itself.

    Arguments:
        program: as the definition returned it.
        unit: the variant. It is returned as :func:`specialized` returns it.

    Raises:
        DefinitionError: a heuristic needs what only a call tells, or fails.
    """
    from triton.runtime.autotuner import Autotuner, Heuristics

    program, unit = specialized(program, unit)
    result = copy.copy(program)
    heuristics: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    while isinstance(result.function, (Autotuner, Heuristics)):
        if isinstance(result.function, Heuristics):
            heuristics |= {name: rule for name, rule in result.function.values.items() if name not in heuristics}
        result.function = result.function.fn
    if heuristics:
        known = _known(result, unit)
        values = _defaults(result.function) | {name: known.of(name, value) for name, value in result.arguments.items()}
        for name, rule in heuristics.items():
            if name not in result.arguments:
                values[name] = _value(name, rule, values, unit.where)
                result = result.with_value(name, values[name])
    # As Triton does it for a call: what is a parameter, too, gets what was given for the launch.
    options = {name: result.options[name] for name in _parameters(result.function) if name in result.options}
    result.arguments = {**options, **result.arguments}
    return result, unit


def _known(program: Program, unit: Unit) -> _Known:
    multiples = multiples_in(program, unit)
    # The general variant of ``specialize`` is none of these: it also gets multiples of 16, if data is not aligned.
    classes = {name: numbers for name, numbers in unit.divisible.items() if name != ALL}
    others = {name: [n for n in numbers if n > multiples.get(name, 1)] for name, numbers in classes.items()}
    return _Known(multiples, others)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if it is no function."""
    function = getattr(function, "fn", function)
    return inspect.signature(function).parameters if inspect.isfunction(function) else {}


def _defaults(function: Any) -> dict[str, Any]:
    """The parameters of a function that have a default."""
    parameters = _parameters(function).values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _value(name: str, rule: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any], where: Where) -> Any:
    """What a heuristic computes."""
    remedy = f"give {name} to the Program, from keys of the config if it differs between variants"
    try:
        value = rule(dict(values))
    except UnknownError as error:
        message = f"the heuristic {name!r} of @triton.heuristics needs {error}, which only a call tells"
        remedy = f"{error.remedy}; or {remedy}" if error.remedy else remedy
        raise DefinitionError(message, _at(error, where), remedy) from error
    except Exception as error:  # it is the user's code
        message = f"the heuristic {name!r} of @triton.heuristics raised {type(error).__name__}: {error}"
        raise DefinitionError(message, _at(error, where), remedy) from error
    if isinstance(value, _Unknown):
        message = f"the heuristic {name!r} of @triton.heuristics is {value._error}, which only a call tells"
        raise DefinitionError(message, where, remedy)
    return value


def _at(error: BaseException, where: Where) -> Where:
    """The line of the heuristic."""
    return Where(where.kernel, where.variant, where.stage, line_of(error, "triton") or where.location)
