"""Turns typed dataclasses into JSON data, and JSON data into typed dataclasses.

The types of the fields say everything: nobody writes a reader or a writer for a record. What is read is checked to the
last value, because a file may have been damaged, or written by somebody else. These types may be used:

- ``str``, ``int``, ``float``, ``bool``, None, ``Any``, and unions of them, such as ``int | str``,
- ``bytes``: a string in base64,
- ``tuple[str, ...]``, ``tuple[str, int]``, ``list[str]`` and ``Sequence[str]``: a list,
- ``Mapping[str, int]`` and ``dict[str, int]``: an object with any names; ``Annotated`` may have a condition for them,
- a dataclass: an object with the names of its fields. A field that has its default may be missing,
- ``Annotated[str, that("a relative path", is_relative)]``: a value that has to pass a function.

A dataclass that has to see that its fields fit together does so in ``__post_init__``, with a ValueError. One
that cannot be called with its fields has a class method ``of_fields`` that can.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")

Reader = Callable[[Any], Any]
_SCALARS: Mapping[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    bytes: "a string in base64",
    NoneType: "null",
    dict: "an object",
}


class MisfitError(ValueError):
    """A value that is not of the type that is expected.

    Arguments:
        problem: what is wrong with it.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._problem = problem
        self._place = ""

    def within(self, part: str) -> MisfitError:
        """The same error, seen from the object or list that the value is a part of: ``.name`` or ``[3]``."""
        self._place = part + self._place
        return self

    @property
    def place(self) -> str:
        """Where the value is in the document: ``rules[2].upto``; empty for the document itself."""
        return self._place.removeprefix(".")

    def __str__(self) -> str:
        return f"{self.place or 'the document'} {self._problem}"


@dataclass(frozen=True)
class That:
    """A condition for values, for ``Annotated``; :func:`that` makes one.

    Arguments:
        expected: what the values have to be, with an article.
        holds: whether a value is so.
    """

    expected: str
    holds: Callable[[Any], bool]


def that(expected: str, holds: Callable[[Any], bool]) -> That:
    """A condition for values: ``Annotated[int, that("a positive integer", lambda value: value > 0)]``."""
    return That(expected, holds)


LARGEST = 2**53
"""Up to here a number is exact in every reader of JSON, JavaScript among them."""

Count = Annotated[int, that(f"an integer from 0 to {LARGEST}", lambda value: 0 <= value <= LARGEST)]
Amount = Annotated[float, that(f"a number from 0 to {LARGEST}", lambda value: 0 <= value <= LARGEST)]


def from_json(kind: type[Kind], value: Any) -> Kind:
    """An object of a dataclass, or a value of another type, out of JSON data.

    Arguments:
        kind: the type, see the module.
        value: what a JSON parser gave.

    Raises:
        ValueError: the value does not fit; the message has the place in the document.
    """
    reader: Reader = _reader(kind)  # type: ignore[arg-type]
    found: Kind = reader(value)
    return found


def to_json(value: Any) -> Any:
    """JSON data for a value. Fields that have their defaults are left out, so equal objects give equal data."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return to_json(_unwrapped(value))


def json_text(value: Any) -> str:
    """The JSON text of what :func:`to_json` gives. It takes less time, because most of a record is JSON already."""
    return json.dumps(value, separators=(",", ":"), default=_unwrapped)


def _unwrapped(value: Any) -> Any:
    """JSON data for a value that is none itself; what is in it stays as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            name: found
            for name, default in _defaults(type(value)).items()
            if (found := getattr(value, name)) != default or type(found) is not type(default)
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


@cache
def shape(kind: Any) -> str:
    """A digest of what JSON data of a type looks like. It tells data of another revision of our code from today's."""
    return hashlib.sha256(_described(kind).encode()).hexdigest()[:16]


def _described(kind: Any) -> str:
    if is_dataclass(kind):
        hints, defaults = _hints(kind), _defaults(kind)  # type: ignore[arg-type]
        # Fields that have their defaults are left out, so data is read otherwise where a default is another one.
        texts = {name: "" if default is MISSING else f" = {default!r}" for name, default in defaults.items()}
        parts = (f"{name}: {_described(hint)}{texts[name]}" for name, hint in hints.items())
        return f"{kind.__name__}({', '.join(parts)})"  # type: ignore[union-attr]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_described(inner[0])} that is {', '.join(each.expected for each in inner[1:])}"
    name = getattr(origin or kind, "__name__", str(origin or kind))
    return f"{name}[{', '.join(map(_described, inner))}]" if inner else name


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of the fields that a dataclass is made with."""
    hints = get_type_hints(kind, include_extras=True)
    return {found.name: hints[found.name] for found in fields(kind) if found.init}


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """The defaults of those fields; ``MISSING`` for a field that has none."""

    def default(found: Any) -> Any:
        return found.default if found.default_factory is MISSING else found.default_factory()

    return {found.name: default(found) for found in fields(kind) if found.init}


@cache
def _reader(kind: Any) -> Reader:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        return _reader_that(_reader(inner[0]), inner[1:])
    if origin in (Union, UnionType):
        return _reader_of_union(inner)
    if is_dataclass(kind):
        return _reader_of_dataclass(kind)
    container = origin or kind
    if container in (Mapping, dict) and inner == (str, Any):
        return _reader_of_scalar(dict)
    if container in (Mapping, dict):
        return _reader_of_object(_reader(inner[0]), _reader(inner[1]))
    if container is tuple and inner[-1] is not ...:
        return _reader_of_row(inner)
    if container in (tuple, list, Sequence):
        return _reader_of_list(_reader(inner[0]), list if container is list else tuple)
    return _reader_of_scalar(kind)


def _expected(kind: Any) -> str:
    """What values of a type are, for messages."""
    if get_origin(kind) is Annotated:
        return " and ".join(condition.expected for condition in get_args(kind)[1:])
    container = get_origin(kind) or kind
    return _SCALARS.get(kind) or ("a list" if container in (tuple, list, Sequence) else "an object")


def _misfit(value: Any, expected: str) -> MisfitError:
    return MisfitError(f"is {reprlib.repr(value)}, expected {expected}")


def _reader_of_scalar(kind: Any) -> Reader:
    expected = _SCALARS[kind]

    def number(value: Any) -> float:
        # A huge integer does not fit into a float.
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise _misfit(value, expected)
        return float(value)

    def content(value: Any) -> bytes:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise _misfit(value, expected) from None

    def other(value: Any) -> Any:
        if type(value) is not kind:  # True is no number
            raise _misfit(value, expected)
        return value

    def text(value: Any) -> Any:
        if not isinstance(value, str):  # TVM's strings are of a class of their own
            raise _misfit(value, expected)
        return value

    return {float: number, str: text, bytes: content}.get(kind, other)


def _reader_that(read: Reader, conditions: Sequence[That]) -> Reader:
    def reader(value: Any) -> Any:
        found = read(value)
        for condition in conditions:
            if not condition.holds(found):
                raise _misfit(value, condition.expected)
        return found

    return reader


def _reader_of_union(kinds: Sequence[Any]) -> Reader:
    readers = tuple(map(_reader, kinds))
    expected = " or ".join(map(_expected, kinds))
    only = [kind for kind in kinds if kind is not NoneType]

    def optional(value: Any) -> Any:
        return None if value is None else read(value)

    def reader(value: Any) -> Any:
        for each in readers:
            try:
                return each(value)
            except MisfitError:
                continue
        raise _misfit(value, expected)

    if NoneType in kinds and len(only) == 1:
        read = _reader(only[0])
        return optional
    return reader


def _reader_of_object(read_name: Reader, read: Reader) -> Reader:
    def reader(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _misfit(value, "an object")
        found = {}
        for name, item in value.items():
            try:
                found[read_name(name)] = read(item)
            except MisfitError as misfit:
                raise misfit.within(f".{name}") from None
        return found

    return reader


def _reader_of_list(read: Reader, make: Callable[[list[Any]], Any]) -> Reader:
    def reader(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _misfit(value, "a list")
        found: list[Any] = []
        try:
            for item in value:
                found.append(read(item))  # its length is the place of what does not fit
        except MisfitError as misfit:
            raise misfit.within(f"[{len(found)}]") from None
        return make(found)

    return reader


def _reader_of_row(kinds: Sequence[Any]) -> Reader:
    readers = tuple(map(_reader, kinds))
    plain = list(kinds) if {*kinds} <= {int, str, bool} else None

    def reader(value: Any) -> tuple[Any, ...]:
        if type(value) is list and list(map(type, value)) == plain:
            return tuple(value)
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise _misfit(value, f"a list of {len(readers)}")
        found: list[Any] = []
        try:
            for read, item in zip(readers, value, strict=True):
                found.append(read(item))
        except MisfitError as misfit:
            raise misfit.within(f"[{len(found)}]") from None
        return tuple(found)

    return reader


def _reader_of_dataclass(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in _hints(kind).items()}
    required = [name for name, default in _defaults(kind).items() if default is MISSING]
    make = getattr(kind, "of_fields", kind)

    def reader(value: Any) -> Any:
        if type(value) is not dict:
            raise _misfit(value, "an object")
        found = {}
        for name, item in value.items():
            if name not in readers:
                raise MisfitError("is not expected").within(f".{name}")
            try:
                found[name] = readers[name](item)
            except MisfitError as misfit:
                raise misfit.within(f".{name}") from None
        for name in required:
            if name not in found:
                raise MisfitError("is missing").within(f".{name}")
        try:
            return make(**found)
        except MisfitError:
            raise
        except ValueError as error:
            raise MisfitError(f"does not fit: {error}") from error

    return reader
