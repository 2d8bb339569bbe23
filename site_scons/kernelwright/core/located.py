"""Reads JSON that people edit, with the line of each value, so that errors can name the line."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from .converter import MisfitError, from_json
from .errors import shown

Kind = TypeVar("Kind")

DEEPEST = 50
"""Objects and lists within each other; a parser that recurses without end dies."""

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LONGEST_NUMBER = 40
"""Characters; Python takes a second for an integer of a hundred thousand."""

STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
BLANKS = re.compile(r"[ \t\n\r]*")
WORDS = {"true": True, "false": False, "null": None}


class LocatedError(ValueError):
    """What is wrong with a file, and in which line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_located(kind: type[Kind], content: bytes) -> tuple[Kind, Mapping[str, int]]:
    """What a JSON text has, as a type that ``core/converter.py`` reads; and the lines of :func:`located`.

    Raises:
        LocatedError: it is no JSON, or a value does not fit the type.
    """
    value, lines = located(content)
    try:
        return from_json(kind, value), lines
    except MisfitError as misfit:
        place = misfit.place
        while place not in lines:  # what is missing has no line, and the object that it should be in has one
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        raise LocatedError(str(misfit), lines[place]) from misfit


def located(content: bytes) -> tuple[Any, Mapping[str, int]]:
    """What a JSON text says; and the line where each value begins, from 1 on, by its place, such as ``rules[2].upto``.

    Raises:
        LocatedError: it is no JSON, an object has one key twice, a number is none that JSON has, or it is nested too
            deeply.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LocatedError("it is not UTF-8", content.count(b"\n", 0, error.start) + 1) from error
    parser = _Parser(text)
    return parser.document(), parser.lines


class _Parser:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, int] = {}
        self._text = text
        self._at = 0
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def document(self) -> Any:
        self._skip()
        value = self._value("", 0)
        self._skip()
        if self._at < len(self._text):
            raise self._error("there is more behind the document")
        return value

    def _value(self, name: str, depth: int) -> Any:
        self.lines[name] = self._line()
        if depth > DEEPEST:
            raise self._error("it is nested too deeply")
        first = self._text[self._at : self._at + 1]
        if first == "{":
            return dict(self._members(name, depth))
        if first == "[":
            return list(self._elements(name, depth))
        return self._string() if first == '"' else self._scalar()

    def _members(self, name: str, depth: int) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for _ in self._entries("}"):
            if self._text[self._at : self._at + 1] != '"':
                raise self._error('expected a name in "..."')
            start, key = self._at, self._string()
            if key in seen:
                raise self._error(f"it has {key!r} twice", start)
            seen.add(key)
            self._skip()
            self._expect(":", f"behind {key!r}")
            yield key, self._value(f"{name}.{key}" if name else key, depth + 1)

    def _elements(self, name: str, depth: int) -> Iterator[Any]:
        for index, _ in enumerate(self._entries("]")):
            yield self._value(f"{name}[{index}]", depth + 1)

    def _entries(self, end: str) -> Iterator[None]:
        """Stop at each entry of an object or a list, whose first character is next, and go on behind its end."""
        self._at += 1
        self._skip()
        while self._text[self._at : self._at + 1] != end:
            yield
            self._skip()
            if self._text[self._at : self._at + 1] == end:
                break
            self._expect(",", f"or {end!r}")
            if self._text[self._at : self._at + 1] == end:
                raise self._error(f"expected an entry behind ',', not {end!r}")
        self._at += 1

    def _expect(self, character: str, place: str) -> None:
        if self._text[self._at : self._at + 1] != character:
            raise self._error(f"expected {character!r} {place}")
        self._at += 1
        self._skip()

    def _string(self) -> str:
        match = STRING.match(self._text, self._at)
        if match is None:
            raise self._error("a text has no end in its line")
        try:
            text = json.loads(match[0])
        except ValueError as error:
            raise self._error(f"{shown(match[0])} is no text of JSON") from error
        self._at = match.end()
        return str(text)

    def _scalar(self) -> Any:
        for word, value in WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = NUMBER.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at : self._at + 20].split("\n")[0]
            raise self._error(f"expected a value, not {shown(rest)}" if rest else "expected a value")
        text = match[0]
        number = float(text) if match[1] or match[2] else int(text[:LONGEST_NUMBER])
        if len(text) > LONGEST_NUMBER or not math.isfinite(number):
            raise self._error(f"{shown(text[:LONGEST_NUMBER])} is too large a number")
        self._at = match.end()
        return number

    def _skip(self) -> None:
        match = BLANKS.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _line(self, place: int | None = None) -> int:
        return bisect.bisect_left(self._breaks, self._at if place is None else place) + 1

    def _error(self, message: str, place: int | None = None) -> LocatedError:
        return LocatedError(message, self._line(place))
