"""Reads JSON that a build or a package wrote, and checks every value that is taken out of it."""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .converter import LARGEST, MisfitError, from_json
from .errors import KernelwrightError
from .files import Stamp, read_record

Parsed = TypeVar("Parsed")

Output = tuple[Stamp, str]
"""What is known of an output: its stamp and the SHA-256 of its content."""


def read_json(path: Path, parse: Callable[[Record], Parsed], remedy: str) -> Parsed:
    """Read a file that holds one JSON object.

    Arguments:
        parse: makes the result of the object; it raises ValueError for what does not fit.
        remedy: what to do about a missing or damaged file.

    Raises:
        KernelwrightError: the file cannot be read, is not JSON, or does not fit; the message names it.
    """
    with damage_named(path, remedy):
        return parse(Record(decoded(read_record(path)), ""))


def decoded(content: str | bytes) -> Any:
    """What a JSON text says. Raises ValueError if it is none: also for NaN, and for what is nested too deeply."""
    try:
        text: str = content if isinstance(content, str) else content.decode()
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextlib.contextmanager
def damage_named(path: Path, remedy: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read and checked into a KernelwrightError that names the file."""
    try:
        yield
    except OSError as error:
        raise KernelwrightError(
            f"{error.filename or path}: cannot be read ({error.strerror})", remedy=remedy
        ) from error
    except ValueError as error:
        raise KernelwrightError(f"{path}: is damaged: {error}", remedy=remedy) from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


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

    def count(self, name: str, most: int = LARGEST) -> int:
        """An integer that is neither negative nor larger than ``most``."""
        value = self._value.get(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
        return value if fits else self._misfit(name, f"an integer from 0 to {most}")  # type: ignore[return-value]

    def number(self, name: str, most: float = LARGEST) -> float:
        """A number that is neither negative nor larger than ``most``."""
        value = self._value.get(name)
        # Compared before it is converted: a huge integer does not fit into a float.
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
        return float(value) if fits else self._misfit(name, f"a number from 0 to {most:g}")  # type: ignore[arg-type]

    def record(self, name: str) -> Record:
        """An object."""
        return Record(self._value.get(name), self._path(name))

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, whose values are unchecked."""
        value = self._value.get(name)
        return value if isinstance(value, dict) else self._misfit(name, "an object")

    def records(self, name: str) -> list[Record]:
        """A list of objects."""
        return [Record(item, f"{self._path(name)}[{index}]") for index, item in enumerate(self._items(name))]

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        items = self._items(name)
        return items if all(isinstance(item, str) for item in items) else self._misfit(name, "a list of strings")

    def typed(self, kind: type[Parsed], name: str) -> Parsed:
        """A value of any type that ``core/converter.py`` reads."""
        return _typed(kind, self._value.get(name), self._path(name))

    def all_but(self, kind: type[Parsed], *names: str) -> Parsed:
        """The object as a dataclass, without the values of these names."""
        value = {name: item for name, item in self._value.items() if name not in names}
        return _typed(kind, value, self.place)

    def optional(self, read: Callable[[str], Parsed], name: str) -> Parsed | None:
        """What one of the methods above reads, if there is a value of that name."""
        return read(name) if self.has(name) else None

    def require_names(self, *names: str) -> None:
        """Raise a ValueError if there are other values than those of these names."""
        if more := self._value.keys() - set(names):
            raise ValueError(f"{self._path(min(more))} is not expected")

    def members(self, name: str | None = None) -> Iterator[tuple[str, Record]]:
        """The objects of an object, with their names; without a name, those of this one."""
        inner = self if name is None else self.record(name)
        return ((key, inner.record(key)) for key in inner.raw)

    def _items(self, name: str) -> list[Any]:
        value = self._value.get(name)
        return value if isinstance(value, list) else self._misfit(name, "a list")

    def _path(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def _misfit(self, name: str, expected: str) -> Any:
        value = reprlib.repr(self._value[name]) if name in self._value else "missing"
        raise ValueError(f"{self._path(name)} is {value}, expected {expected}")


def _typed(kind: type[Parsed], value: Any, place: str) -> Parsed:
    try:
        return from_json(kind, value)
    except MisfitError as misfit:
        raise (misfit.within(place) if place else misfit) from None


def is_file_name(text: str) -> bool:
    """Whether a text can name something in a folder, without leading out of it."""
    return text not in ("", ".", "..") and text.isprintable() and "/" not in text and len(text.encode()) <= 255
