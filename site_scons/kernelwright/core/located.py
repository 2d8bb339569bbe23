"""Reads JSON that people edit: every value knows its line, and so does every error."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .converter import LARGEST
from .errors import is_text, shown

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


@dataclass(frozen=True)
class Located:
    """A value and its line. The methods raise a :class:`LocatedError` for what does not fit.

    Arguments:
        value: a dict or a list of others, a string, a number, a bool or None.
        line: the line where it begins, from 1 on.
        name: what it is, for messages: ``rules[2].upto``; empty for the document itself.
    """

    value: Any
    line: int
    name: str = ""

    def has(self, key: str) -> bool:
        """Whether this object has a value of that name."""
        return key in self.value

    def member(self, key: str) -> Located:
        """The value of that name."""
        if key not in self.value:
            raise LocatedError(f"{self.name or 'the document'} has no {key!r}", self.line)
        found: Located = self.value[key]
        return found

    def require_object(self, *keys: str, optional: tuple[str, ...] = ()) -> None:
        """Raise an error if this is no object, or has not just these keys."""
        self.mapping()
        for key in keys:
            self.member(key)
        for key, found in self.value.items():
            if key not in (*keys, *optional):
                known = ", ".join((*keys, *optional))
                raise LocatedError(f"{self._inner(key)} is not expected; what may be there is {known}", found.line)

    def mapping(self) -> dict[str, Located]:
        """An object."""
        if not isinstance(self.value, dict):
            self._misfit("an object")
        found: dict[str, Located] = self.value
        return found

    def items(self) -> list[Located]:
        """A list."""
        if not isinstance(self.value, list):
            self._misfit("a list")
        found: list[Located] = self.value
        return found

    def text(self) -> str:
        """A string, which can be written to a file."""
        if not isinstance(self.value, str) or not is_text(self.value):
            self._misfit("a text")
        found: str = self.value
        return found

    def count(self, least: int = 0) -> int:
        """An integer that is not below ``least`` and exact in every reader of JSON."""
        if type(self.value) is not int or not least <= self.value <= LARGEST:
            self._misfit(f"an integer from {least} to {LARGEST}")
        found: int = self.value
        return found

    def number(self) -> float:
        """A number that is not negative."""
        if type(self.value) not in (int, float) or not 0 <= self.value <= LARGEST:
            self._misfit("a number that is not negative")
        return float(self.value)

    def scalars(self) -> dict[str, bool | int | float | str]:
        """An object of bools, numbers and texts, as configs are."""
        found = {}
        for key, item in self.mapping().items():
            if not isinstance(item.value, (bool, int, float, str)) or (
                type(item.value) is str and not is_text(item.value)
            ):
                item._misfit("a bool, a number or a text")
            found[key] = item.value
        return found

    def _misfit(self, expected: str) -> None:
        raw = plain(self)
        raise LocatedError(f"{self.name or 'the document'} is {shown(raw)}, expected {expected}", self.line)

    def _inner(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def plain(value: Located) -> Any:
    """A value without the lines."""
    if isinstance(value.value, dict):
        return {key: plain(item) for key, item in value.value.items()}
    return [plain(item) for item in value.value] if isinstance(value.value, list) else value.value


def located(content: bytes) -> Located:
    """The document that a JSON text is.

    Raises:
        LocatedError: it is none, an object has one key twice, a number is none that JSON has, or it is nested too
            deeply.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LocatedError("it is not UTF-8", content.count(b"\n", 0, error.start) + 1) from error
    return _Parser(text).document()


class _Parser:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._breaks = [found.start() for found in re.finditer("\n", text)]

    def document(self) -> Located:
        self._skip()
        found = self._value("", 0)
        self._skip()
        if self._at < len(self._text):
            raise self._error("there is more behind the document")
        return found

    def _value(self, name: str, depth: int) -> Located:
        line = self._line()
        if depth > DEEPEST:
            raise self._error("it is nested too deeply")
        first = self._text[self._at : self._at + 1]
        if first == "{":
            return Located(dict(self._members(name, depth)), line, name)
        if first == "[":
            return Located(list(self._elements(name, depth)), line, name)
        return Located(self._string() if first == '"' else self._scalar(), line, name)

    def _members(self, name: str, depth: int) -> Iterator[tuple[str, Located]]:
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

    def _elements(self, name: str, depth: int) -> Iterator[Located]:
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
        found = STRING.match(self._text, self._at)
        if found is None:
            raise self._error("a text has no end in its line")
        try:
            text = json.loads(found[0])
        except ValueError as error:
            raise self._error(f"{shown(found[0])} is no text of JSON") from error
        self._at = found.end()
        return str(text)

    def _scalar(self) -> Any:
        for word, value in WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        found = NUMBER.match(self._text, self._at)
        if found is None:
            rest = self._text[self._at : self._at + 20].split("\n")[0]
            raise self._error(f"expected a value, not {shown(rest)}" if rest else "expected a value")
        text = found[0]
        number = float(text) if found[1] or found[2] else int(text[:LONGEST_NUMBER])
        if len(text) > LONGEST_NUMBER or not math.isfinite(number):
            raise self._error(f"{shown(text[:LONGEST_NUMBER])} is too large a number")
        self._at = found.end()
        return number

    def _skip(self) -> None:
        found = BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _line(self, place: int | None = None) -> int:
        return bisect.bisect_left(self._breaks, self._at if place is None else place) + 1

    def _error(self, message: str, place: int | None = None) -> LocatedError:
        return LocatedError(message, self._line(place))
