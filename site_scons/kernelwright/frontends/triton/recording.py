"""A recording: what a program in Triton has asked the compiler for. Reads, writes and merges its file.

The file has a line for each specialization, in a fixed order, so that it can be kept with the sources and be compared.
Only :func:`encoded` imports Triton.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ...core.arch import arch_order
from ...core.converter import that
from ...core.errors import is_text, shown
from ...core.files import canonical_json
from ...core.records import Record, decoded
from ...runtime.arch import CudaArch, is_ptx
from .source_digest import name_of

SCHEMA = 1
"""Revision of the file's form."""

DIVISIBLE = " 16"
"""What follows the type of an argument that Triton knows to be divisible by 16."""

CONSTANT = "constant"
"""The key of an element of a tuple that is a constant."""

DTYPE, FUNCTION, FLOAT = "dtype", "function", "float"
"""The keys of constants for which JSON has no value of its own."""

NOT_FINITE = ("inf", "-inf", "nan")

_TYPE = re.compile(r"(?:(?:\*k?)*[a-z][a-z0-9]*|tensordesc[a-z0-9_]*<[ -~]+>)(?: 16)?")
_NAME = re.compile(r"[^\s:]+:[^\s:]+")


def is_function_name(text: str) -> bool:
    """Whether a text names a function: ``module:qualname``."""
    return _NAME.fullmatch(text) is not None and text.isprintable()


def is_constant(value: Any) -> bool:
    """Whether a value is a constant as a recording has them, see the documentation of the file's form."""
    if isinstance(value, list):
        return all(map(is_constant, value))
    if isinstance(value, dict):
        return len(value) == 1 and all(key in _TAGGED and _TAGGED[key](inner) for key, inner in value.items())
    if isinstance(value, str):
        return is_text(value)
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def is_type(value: Any) -> bool:
    """Whether a value is the type of an argument: a text, or a list for a tuple."""
    if isinstance(value, list):
        return all(is_type(item) or _is_constant_element(item) for item in value)
    return isinstance(value, str) and _TYPE.fullmatch(value) is not None


def _is_constant_element(item: Any) -> bool:
    return isinstance(item, dict) and [*item] == [CONSTANT] and is_constant(item[CONSTANT])


_TAGGED: Mapping[str, Callable[[Any], bool]] = {
    DTYPE: lambda inner: isinstance(inner, str) and re.fullmatch("[a-z][a-z0-9]*", inner) is not None,
    FUNCTION: lambda inner: isinstance(inner, str) and is_function_name(inner),
    FLOAT: lambda inner: inner in NOT_FINITE,
}


def _is_archs(archs: tuple[str, ...]) -> bool:
    known = all(CudaArch.of(arch) and not is_ptx(arch) for arch in archs)
    return bool(archs) and known and list(archs) == _sorted(archs)


def _sorted(archs: Iterable[str]) -> list[str]:
    return sorted({*archs}, key=arch_order)


FunctionName = Annotated[str, that("a function as module:qualname", is_function_name)]
Types = Annotated[
    Mapping[str, Any], that("an object of Triton's types", lambda types: all(map(is_type, types.values())))
]
Constants = Annotated[
    Mapping[str, Any], that("an object of constants", lambda values: all(map(is_constant, values.values())))
]
Archs = Annotated[tuple[str, ...], that("a sorted list of archs such as sm_90a", _is_archs)]
Parameters = Annotated[tuple[str, ...], that("a list of different names", lambda names: len({*names}) == len(names))]
Key = Annotated[tuple[Any, ...], that("a list of constants", lambda values: all(map(is_constant, values)))]
Digest = Annotated[str, that("16 hexadecimal digits", lambda text: re.fullmatch("[0-9a-f]{16}", text) is not None)]


@dataclass(frozen=True)
class Specialization:
    """One set of types and constants that a function is compiled for.

    Arguments:
        types: each parameter that the compiled function takes, and Triton's type of it: ``"*fp32 16"`` if its value is
            divisible by 16, ``"*fp32"`` if that is not known; a list for a tuple.
        constants: every other parameter, and its value.
        options: the options of the compilation that are not the default.
        archs: those that it was recorded for, sorted.
    """

    types: Types
    constants: Constants
    options: Constants
    archs: Archs


@dataclass(frozen=True)
class ChosenConfig:
    """The config of a tuned function that was the fastest for some calls.

    Arguments:
        key: the values of the parameters that Triton tunes by, and behind them the dtypes of all tensors, in order.
        config: the constants and options.
        archs: the GPUs that it was measured on, sorted.
    """

    key: Key
    config: Constants
    archs: Archs


@dataclass(frozen=True)
class RecordedFunction:
    """What is known of one function.

    Arguments:
        parameters: the names of all parameters, in order.
        source: the first 16 digits of the SHA-256 of the function's text.
        specializations: what it was asked for.
        choices: what measurements of a tuned function found.

    Raises:
        ValueError: a specialization does not say of each parameter, once, what it is.
    """

    parameters: Parameters
    source: Digest
    specializations: tuple[Specialization, ...]
    choices: tuple[ChosenConfig, ...] = ()

    def __post_init__(self) -> None:
        for index, one in enumerate(self.specializations):
            if twice := one.types.keys() & one.constants.keys():
                raise ValueError(f"specializations[{index}] has {min(twice)!r} as a type and as a constant")
            named = {*one.types, *one.constants}
            for name in sorted(named ^ {*self.parameters}):
                what = "names no parameter" if name in named else "does not have the parameter"
                raise ValueError(f"specializations[{index}] {what} {name!r}")


Recording = Mapping[str, RecordedFunction]
"""``module:qualname`` of a function -> what is known of it."""


def parse(content: bytes | str) -> Recording:
    """The content of a file.

    Raises:
        ValueError: it is damaged; the message says how.
    """
    document = Record(decoded(content), "")
    if document.count("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.count('schema')}, expected {SCHEMA}")
    document.require_names("schema", "functions")
    functions = document.typed(dict[FunctionName, RecordedFunction], "functions")
    return {name: _in_order(function) for name, function in functions.items()}


def text_of(recording: Recording) -> str:
    """The file: functions and specializations in order, and a line for each of the latter."""
    blocks = [_block(name, _in_order(recording[name])) for name in sorted(recording)]
    functions = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    return f'{{\n "schema": {SCHEMA},\n "functions": {functions}\n}}\n'


def _block(name: str, function: RecordedFunction) -> str:
    members = {
        "parameters": json.dumps(function.parameters),
        "source": json.dumps(function.source),
        "specializations": _listed([_line(one, function.parameters) for one in function.specializations]),
        "choices": _listed([json.dumps(vars(choice), allow_nan=False) for choice in function.choices]),
    }
    if not function.choices:
        del members["choices"]
    lines = ",\n".join(f"   {json.dumps(member)}: {text}" for member, text in members.items())
    return f"  {json.dumps(name)}: {{\n{lines}\n  }}"


def _listed(lines: Sequence[str]) -> str:
    """A list with a line for each of its elements."""
    return "[\n" + ",\n".join(f"    {line}" for line in lines) + "\n   ]" if lines else "[]"


def _line(one: Specialization, parameters: Iterable[str]) -> str:
    in_order = {
        "types": {name: one.types[name] for name in parameters if name in one.types},
        "constants": {name: one.constants[name] for name in parameters if name in one.constants},
        "options": {name: one.options[name] for name in sorted(one.options)},
        "archs": one.archs,
    }
    return json.dumps(in_order, allow_nan=False)


def merged(one: Recording, other: Recording) -> Recording:
    """Both recordings in one. If the source of a function is another one in ``other``, that has all of it.

    Arguments:
        one: what was known.
        other: what is newer.

    Raises:
        ValueError: they disagree about the parameters of a function.
    """
    result = dict(one)
    for name, newer in other.items():
        known = result.get(name)
        if known is not None and known.parameters != newer.parameters:
            texts = [", ".join(function.parameters) for function in (known, newer)]
            raise ValueError(f"{name} has the parameters ({texts[0]}) in one and ({texts[1]}) in the other")
        if known is not None and known.source == newer.source:
            both = known.specializations + newer.specializations, known.choices + newer.choices
            newer = replace(known, specializations=both[0], choices=both[1])
        result[name] = _in_order(newer)
    return result


def _in_order(function: RecordedFunction) -> RecordedFunction:
    """The same with sorted specializations, those that ask for the same code in one with the archs of all."""
    found: dict[str, Specialization] = {}
    for one in function.specializations:
        text = text_of_specialization(one)
        archs = {*one.archs, *found[text].archs} if text in found else one.archs
        found[text] = replace(one, archs=tuple(_sorted(archs)))
    specializations = tuple(found[text] for text in sorted(found))
    return replace(function, specializations=specializations, choices=tuple(_chosen(function.choices)))


def _chosen(choices: Iterable[ChosenConfig]) -> Iterator[ChosenConfig]:
    """The last choice for each key and arch, those of equal configs in one."""
    last = {(canonical_json(choice.key), arch): choice for choice in choices for arch in choice.archs}
    alike: dict[str, tuple[ChosenConfig, list[str]]] = {}
    for (key, arch), choice in last.items():
        alike.setdefault(f"{key} {canonical_json(choice.config)}", (choice, []))[1].append(arch)
    yield from (replace(choice, archs=tuple(_sorted(archs))) for _, (choice, archs) in sorted(alike.items()))


def text_of_specialization(specialization: Specialization) -> str:
    """One line of canonical JSON without the archs; equal texts ask for the same code."""
    one = specialization
    return canonical_json({"types": one.types, "constants": one.constants, "options": one.options})


class UnwritableError(ValueError):
    """A call has something that a recording cannot have; the text is what follows the name of the function."""


def encoded(value: Any) -> Any:
    """A constant as a recording has it."""
    from triton.language import constexpr, dtype
    from triton.runtime.jit import JITFunction

    if isinstance(value, constexpr):
        return encoded(value.value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and is_text(value)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT: str(float(value))}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    if isinstance(value, dtype) and dtype.is_dtype(str(value)):
        return {DTYPE: str(value)}
    if isinstance(value, JITFunction):
        return {FUNCTION: name_of(value)}
    raise UnwritableError(f"is {shown(value)}, which a recording cannot have")
