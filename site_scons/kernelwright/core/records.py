"""Reads a JSON file of a build, and checks every value that is taken out of it."""

from __future__ import annotations

import contextlib
import json
import math
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .errors import KernelwrightError
from .files import read_record

Parsed = TypeVar("Parsed")

LARGEST = 2**53
"""Up to here a number is exact in every reader of JSON, JavaScript among them."""


def read_json(path: Path, parse: Callable[[Record], Parsed], remedy: str) -> Parsed:
    """Read a file that holds one JSON object.

    Arguments:
        parse: makes the result of the object; it raises ValueError for what does not fit.
        remedy: what to do about a missing or damaged file.

    Raises:
        KernelwrightError: the file cannot be read, is not JSON, or does not fit; the message names it.
    """
    with damage_named(path, remedy):
        return parse(Record(json.loads(read_record(path).decode(), parse_constant=_refuse), ""))


@contextlib.contextmanager
def damage_named(path: Path, remedy: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read and checked into a KernelwrightError that names the file."""
    try:
        yield
    except OSError as error:
        raise KernelwrightError(
            f"{error.filename or path}: cannot be read ({error.strerror})", remedy=remedy
        ) from error
    except RecursionError as error:
        raise KernelwrightError(f"{path}: is damaged: it is nested too deeply", remedy=remedy) from error
    except ValueError as error:
        raise KernelwrightError(f"{path}: is damaged: {error}", remedy=remedy) from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


class Record:
    """Typed access to a JSON object; everything that does not fit is a ValueError that names the place.

    Arguments:
        value: what the parser gave.
        place: where it is in the document, such as ``kernels.gemm``; empty for the document itself.
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{place or 'the document'} is {reprlib.repr(value)}, expected an object")
        self._value: dict[str, Any] = value
        self.place = place

    @property
    def raw(self) -> dict[str, Any]:
        """The object itself, unchecked."""
        return self._value

    def has(self, name: str) -> bool:
        """Whether there is a value of that name."""
        return self._value.get(name) is not None

    def text(self, name: str) -> str:
        """A string."""
        value = self._value.get(name)
        return value if isinstance(value, str) else self._misfit(name, "a string")

    def file_name(self, name: str) -> str:
        """A string that names something in a folder, and can neither lead out of it nor be refused by the system."""
        value = self.text(name)
        return value if is_file_name(value) else self._misfit(name, "a name")

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._value.get(name)
        return value if isinstance(value, bool) else self._misfit(name, "true or false")

    def count(self, name: str) -> int:
        """An integer that is not negative, nor too large for a double."""
        value = self._value.get(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
        return value if fits else self._misfit(name, "an integer from 0 to 2**53")  # type: ignore[return-value]

    def number(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self._value.get(name)
        # Compared before it is converted: a huge integer does not fit into a float.
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST
        if not fits or not math.isfinite(value):  # type: ignore[arg-type]
            self._misfit(name, "a number from 0 to 2**53")
        return float(value)  # type: ignore[arg-type]

    def record(self, name: str) -> Record:
        """An object."""
        return Record(self._value.get(name), self._path(name))

    def records(self, name: str) -> list[Record]:
        """A list of objects."""
        return [Record(item, f"{self._path(name)}[{index}]") for index, item in enumerate(self._items(name))]

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        items = self._items(name)
        return items if all(isinstance(item, str) for item in items) else self._misfit(name, "a list of strings")

    def members(self, name: str) -> Iterator[tuple[str, Record]]:
        """The objects of an object, with their names."""
        inner = self.record(name)
        return ((key, inner.record(key)) for key in inner.raw)

    def _items(self, name: str) -> list[Any]:
        value = self._value.get(name)
        return value if isinstance(value, list) else self._misfit(name, "a list")

    def _path(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def _misfit(self, name: str, expected: str) -> Any:
        value = reprlib.repr(self._value[name]) if name in self._value else "missing"
        raise ValueError(f"{self._path(name)} is {value}, expected {expected}")


def is_file_name(text: str) -> bool:
    """Whether a text can name something in a folder, without leading out of it."""
    return text not in ("", ".", "..") and text.isprintable() and "/" not in text and len(text.encode()) <= 255
