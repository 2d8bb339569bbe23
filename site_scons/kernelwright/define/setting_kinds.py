"""The kinds of settings: how the value of each kind is read, checked and written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

from ..core.errors import KernelwrightError, SettingsError, Where, one_of, shown
from ..core.plugins import Names
from ..core.quantity import parse_size


# Every run of scons imports these two: a frozen dataclass takes 0.6 ms to make, and a named tuple 0.1.
class Kind(NamedTuple):
    """A kind of settings.

    Arguments:
        word: what the docs call it, in Markdown.
        read: makes the value of what was given for a setting; called with the setting's name, what was given (from
            TOML, a keyword of a build file, or the text of a command line), and the place that an error names.
        text: writes a value as a command line gives it.
        hint: what ``scons -h`` says of all settings of this kind.
    """

    word: str
    read: Callable[[str, Any, Where], Any]
    text: Callable[[Any], str] = str
    hint: str = ""


class Setting(NamedTuple):
    """The declaration of a setting, besides its default.

    Arguments:
        kind: how its values are written.
        help: what it is, for ``scons -h`` and the docs.
        check: raises a SettingsError for a value that is of the kind, and wrong all the same.
        affects_output: whether what is built depends on it.
        on_command_line: whether ``scons NAME=value`` gives it.
        of_run: whether it is one for all packages of a run: no two can give different values.
    """

    kind: Kind
    help: str
    check: Callable[[Any, Where], None] | None = None
    affects_output: bool = True
    on_command_line: bool = True
    of_run: bool = False

    @property
    def help_line(self) -> str:
        """The help that ``scons -h`` shows."""
        first, semicolon, rest = self.help.partition(";")
        return f"{first} ({self.kind.hint}){semicolon}{rest}" if self.kind.hint else self.help

    def read(self, name: str, raw: Any, where: Where) -> Any:
        """The checked value of what was given; raises a SettingsError. The arguments are those of :class:`Kind`."""
        value = self.kind.read(name, raw, where)
        if self.kind is WORDS and not value:
            raise SettingsError(f"{name} is empty", where, self.help)
        if self.check:
            self.check(value, where)
        return value


def choice(*words: str) -> Kind:
    """One of a few words."""

    def read(name: str, raw: Any, where: Where) -> str:
        if not isinstance(raw, str):
            raise SettingsError(f"{name} is {shown(raw)}, expected one of {', '.join(words)}", where)
        require_known(name, [raw], words, where)
        return raw

    *others, last = (f"`{word}`" for word in words)
    return Kind(f"{', '.join(others)} or {last}", read, hint=f"one of {', '.join(words)}")


BACKEND_ALIASES = {"nvrtc": "cuda_core"}
"""Another name of an execution backend -> its name. Users of TileLang know the backend ``cuda_core`` as ``nvrtc``."""


def backend_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of backends for names that users give them, each once."""
    return tuple(dict.fromkeys(BACKEND_ALIASES.get(name, name) for name in names))


def backend(names: Names) -> Kind:
    """One of the backends, by its name or by another name of it."""
    kind = choice(*names)

    def read(name: str, raw: Any, where: Where) -> str:
        given = BACKEND_ALIASES.get(raw, raw) if isinstance(raw, str) else raw
        if isinstance(given, str):
            require_known(name, [given], names, where)
            return given
        value: str = kind.read(name, given, where)
        return value

    return kind._replace(read=read)


def require_known(
    what: str,
    names: Iterable[str],
    valid: tuple[str, ...],
    where: Where,
    kind: type[KernelwrightError] = SettingsError,
) -> None:
    """Raise an error of a kind for a name that is not among the valid ones; it lists plug-ins, too."""
    for name in names:
        if name not in valid:
            known = valid.listed if isinstance(valid, Names) else valid
            raise kind(f"unknown {what} {name!r}", where, one_of(name, "the valid ones are", known))


def _read_text(name: str, raw: Any, where: Where) -> str:
    raw = str(raw) if isinstance(raw, PurePath) else raw
    if not isinstance(raw, str) or "\0" in raw:
        raise SettingsError(f"{name} is {shown(raw)}, expected a string without NUL", where)
    return raw


def _read_words(name: str, raw: Any, where: Where) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_strings(name, raw, r"[,\s]+", where)))


def _read_flags(name: str, raw: Any, where: Where) -> tuple[str, ...]:
    return _strings(name, raw, r"\s+", where)


def _strings(name: str, raw: Any, separators: str, where: Where) -> tuple[str, ...]:
    items = re.split(separators, raw) if isinstance(raw, str) else raw
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and "\0" not in item for item in items):
        raise SettingsError(f"{name} is {shown(raw)}, expected a list of strings without NUL", where)
    return tuple(item for item in items if item)


def _read_seconds(name: str, raw: Any, where: Where) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if isinstance(raw, bool) or not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {shown(raw)}, expected a number of seconds above 0", where)
    return value


def _read_limit(name: str, raw: Any, where: Where) -> int | None:
    if raw == "" or raw is None:
        return None
    if isinstance(raw, str) and re.fullmatch("[0-9]{1,18}", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 10**18:
        raise SettingsError(f"{name} is {shown(raw)}, expected a number from 0 up", where)
    return raw


def _read_size(name: str, raw: Any, where: Where) -> str:
    try:
        if raw != "":
            parse_size(raw)
    except (TypeError, ValueError, AttributeError):
        raise SettingsError(f"{name} is {shown(raw)}, expected a size such as '512M' or '16G'", where) from None
    return str(raw)


TEXT = Kind("string", _read_text)
WORDS = Kind("list", _read_words, ",".join)
"""Different words, at least one. In a text they have commas or blanks between them."""
NAMES = Kind("list", _read_words, ",".join)
"""The same, perhaps none."""
FLAGS = Kind("list", _read_flags, " ".join)
"""Options of a command line, in their order. In a text they have blanks between them."""
SECONDS = Kind("number of seconds", _read_seconds, lambda value: str(value).removesuffix(".0"), hint="in seconds")
LIMIT = Kind("number", _read_limit, lambda value: "" if value is None else str(value))
"""A number from 0 up, or None: no limit, which is written as an empty text."""
SIZE = Kind("size", _read_size, hint="such as 512M or 16G")
"""An amount of memory such as ``16G``, or an empty text."""
