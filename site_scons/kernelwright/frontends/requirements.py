"""What a variant requires of the sizes of a call, with the values of its config put in; it gets into its signature."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..core.converter import from_json
from ..core.errors import DefinitionError, shown
from ..core.files import pretty_json
from ..core.signature import Signature
from ..define.kernel_options import REQUIRE
from ..runtime.dtype import integer_range
from ..runtime.size import INT32_LIMIT, Requirement, Size, translate
from .base import SIGNATURE
from .unit import LoweredKernel, Unit

MOST = 2**63 - 1
"""The largest integer that the launcher computes with."""


class Span(NamedTuple):
    """The integers from one to another, both included."""

    low: int
    high: int

    def cut(self, sign: str, other: Span) -> Span:
        """Those of them that may compare so with one of the others; an empty span, if there are none."""
        match sign:
            case "<" | "<=":
                return Span(self.low, min(self.high, other.high - (sign == "<")))
            case ">" | ">=":
                return Span(max(self.low, other.low + (sign == ">")), self.high)
            case "==":
                return Span(max(self.low, other.low), min(self.high, other.high))
        return Span(1, 0) if self == other and self.low == self.high else self


def with_requirements(lowered: LoweredKernel, unit: Unit, constants: Mapping[str, Any]) -> LoweredKernel:
    """What a front end has made of a unit, with the requirements and the constants in the signature.

    Arguments:
        constants: what the definition compiles the code for, by name; integers among it count.

    Raises:
        DefinitionError: a requirement has a name that no call tells, or no size fulfils the requirements.
    """
    integers = {name: value for name, value in constants.items() if type(value) is int and abs(value) <= MOST}
    content = json.loads(lowered.files[SIGNATURE])
    signature = from_json(Signature, content)
    required = [one.text for text in unit.requires if (one := _checked(text, unit, signature, integers)).names]
    # Multiples of sizes and strides are compared with arrays, those of numbers with the call.
    numbers = [argument.name for argument in signature.arguments if argument.launcher_kind == "KW_INT"]
    required += [f"{name} % {signature.multiples[name]} == 0" for name in numbers if name in signature.multiples]
    if not (required or integers):
        return lowered
    if required:
        _require_possible(list(map(Requirement, required)), signature, unit)
    content |= {"requires": required} if required else {}
    content |= {"constants": integers} if integers else {}
    files = {**lowered.files, SIGNATURE: pretty_json(dict(sorted(content.items()))).encode()}
    return replace(lowered, files=files)


def _checked(text: str, unit: Unit, signature: Signature, constants: Mapping[str, int]) -> Requirement:
    """A requirement with the integers of the config, and the constants, in the place of their names.

    Raises:
        DefinitionError: it has another name than those, and those that a call tells; or it holds for no call.
    """
    told, names = _told(signature), Requirement(text).names
    both = sorted({*told} & {*unit.config} & {*names})
    if both:
        message = f"requires has {text!r}, and {both[0]!r} is a size of the call and a key of the config"
        raise DefinitionError(message, unit.where, "give one of them another name")
    values = {**{name: value for name, value in constants.items() if name not in told}, **unit.config}
    for name in names:
        if name not in told:
            _require_integer(text, name, values, unit, signature)
    requirement = Requirement(text, {name: int(values[name]) for name in names if name not in told})
    if not requirement.names and not requirement.holds({}):
        raise _impossible([text], unit, f"it is {requirement.text} here")
    return requirement


def _told(signature: Signature) -> dict[str, Span]:
    """The names that a call tells, and from what to what they can be."""
    sizes = {name: Span(0, INT32_LIMIT if kind == "int32" else MOST) for name, kind in signature.symbols.items()}
    numbers = {a.name: Span(*integer_range(a.dtype)) for a in signature.arguments if a.launcher_kind == "KW_INT"}
    inputs = [n for n, argument in enumerate(signature.arguments) if not argument.output and argument.given is True]
    places = signature.stride_places().items()
    strides = {name: Span(-MOST, MOST) for name, told in places if any(number in inputs for number, _ in told)}
    return {**strides, **{name: (sizes | numbers)[name] for name in signature.symbol_places()}}


def _require_integer(text: str, name: str, values: Mapping[str, Any], unit: Unit, signature: Signature) -> None:
    if type(values.get(name)) is int:
        return
    integers = [key for key, value in values.items() if type(value) is int]
    known = ", ".join((*_told(signature), *integers)) or "none"
    problem = "is no size, stride or integer of a call, and no integer that the variant is compiled for"
    if name in values:
        problem = f"is {shown(values[name])}, which is no integer"
    elif name in signature.symbols:
        problem = "only outputs tell, which a call may leave out"
    message = f"requires has {text!r}, and {name!r} {problem} (the names that are known: {known})"
    raise DefinitionError(message, unit.where, REQUIRE)


def _require_possible(requirements: list[Requirement], signature: Signature, unit: Unit) -> None:
    """Raise a DefinitionError if no call fulfils all requirements, as far as each by itself and limits can tell."""
    spans = _told(signature)
    for requirement in requirements:
        for name, sign, other in _limits(requirement):
            spans[name] = spans[name].cut(sign, other)
    for requirement in requirements:
        left, right = (_span(side, spans) for side in requirement.sides)
        empty = [name for name in requirement.names if spans[name].low > spans[name].high]
        cut = left.cut(requirement.sign, right)
        if empty or cut.low > cut.high:
            named = [each.text for each in requirements if each is requirement or {*empty} & {*each.names}]
            raise _impossible(named, unit, "")


def _limits(requirement: Requirement) -> Iterable[tuple[str, str, Span]]:
    """The names that a requirement compares with a number: the name, the comparison and the number."""
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    left, right = requirement.sides
    for one, other, sign in (left, right, requirement.sign), (right, left, mirrored.get(requirement.sign)):
        if one.text.isidentifier() and not other.names:
            yield one.text, sign or requirement.sign, _span(other, {})


def _impossible(texts: list[str], unit: Unit, more: str) -> DefinitionError:
    message = f"no size fulfils what it requires: {' and '.join(texts)}" + (f" ({more})" if more else "")
    return DefinitionError(message, unit.where, "mend requires, or leave this config out")


def _span(size: Size, spans: Mapping[str, Span]) -> Span:
    """Between which numbers a size is, for the values that its names can have."""
    return translate(size.text, lambda number: Span(number, number), spans.__getitem__, _computed)


def _computed(operation: str, operands: list[Span]) -> Span:
    first, *rest = operands
    if not rest:
        return Span(-first.high, -first.low)
    for second in rest:
        first = _OPERATIONS[operation](first, second)
    return first


def _product(a: Span, b: Span) -> Span:
    ends = [one * other for one in a for other in b]
    return Span(min(ends), max(ends))


def _quotient(a: Span, b: Span) -> Span:
    if b.low <= 0 <= b.high:
        most = max(map(abs, a))
        return Span(-most, most)
    ends = [one // other for one in a for other in b]
    return Span(min(ends), max(ends))


def _remainder(a: Span, b: Span) -> Span:
    if a.low >= 0 and a.high < b.low:
        return a
    return Span(min(0, b.low + 1), max(0, b.high - 1))


_OPERATIONS: dict[str, Callable[[Span, Span], Span]] = {
    "+": lambda a, b: Span(a.low + b.low, a.high + b.high),
    "-": lambda a, b: Span(a.low - b.high, a.high - b.low),
    "*": _product,
    "//": _quotient,
    "%": _remainder,
    "min": lambda a, b: Span(min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: Span(max(a.low, b.low), max(a.high, b.high)),
}
