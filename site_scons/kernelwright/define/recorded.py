"""Reads and writes the file of configs that a program has used, and has ``recorded()`` for definitions.

The file has a line for each config, in a fixed order, so that it can be kept with the sources and be compared.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..core.converter import that
from ..core.errors import DefinitionError, Where, shown
from ..core.records import Record, decoded

SCHEMA = 1
"""Revision of the file's form."""

LARGEST = 64 << 20
"""Bytes that such a file may have."""

VARIABLE = "KERNELWRIGHT_RECORD"
"""The variable of the environment that names the file into which a program's configs are recorded."""

CALL = "call"
"""The only key of the configs of functions that a program calls: the form of the calls that a variant is for."""

Check = Callable[[Callable[..., Any], Any, Where], tuple[Mapping[str, Any], ...]]
"""Finds out whether configs suit a definition."""

OfDefault = Callable[[tuple[Mapping[str, Any], ...]], tuple[Mapping[str, Any], ...]]


def is_value(value: Any) -> bool:
    """Whether a config can have a value: bools, numbers and texts that JSON gives back as they are."""
    return isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


Value = Annotated[Any, that("a bool, a number or a text", is_value)]

Configs = dict[str, list[dict[str, Value]]]
"""Name of a kernel -> its configs."""


def recorded(path: str, *, default: Iterable[Mapping[str, Any]] | None = None) -> Recorded:
    """The configs that were recorded for a kernel, for its decorator: ``@kernel(configs=recorded("configs.json"))``.

    A program that runs with ``KERNELWRIGHT_RECORD=configs.json`` writes such a file.

    Arguments:
        path: the file, relative to the folder of the definition file.
        default: the configs as long as there is no such file, or it does not name the kernel. Without it, that is an
            error.

    Raises:
        DefinitionError: the path is no text.
    """
    if not isinstance(path, str) or not path or "\0" in path or "\\" in path or path.startswith("/"):
        message = f"recorded() got {shown(path)}, expected a path relative to the folder of the definition file"
        raise DefinitionError(message, Where(stage="discover"), 'write for example recorded("configs.json")')
    return Recorded(path, None if default is None else tuple(default))


@dataclass(frozen=True)
class Recorded:
    """A stand-in for recorded configs, until the name of their kernel is known.

    Arguments:
        path: the file, relative to the folder of the definition file.
        default: the configs where the file, or the kernel in it, is missing.
    """

    path: str
    default: tuple[Mapping[str, Any], ...] | None = None

    def configs(
        self, function: Callable[..., Any], where: Where, check: Check, of_default: OfDefault
    ) -> tuple[Mapping[str, Any], ...]:
        """The configs of a kernel, with keys in the order of those of ``default``, or else of the parameters.

        Arguments:
            function: the definition.
            where: its place.
            check: finds out whether configs suit the definition.
            of_default: makes the configs of variants of those of ``default``; what was recorded is of variants.

        Raises:
            DefinitionError: the file is missing or damaged, or does not name the kernel, or a config does not suit it.
        """
        configs = self._found(function, where)
        if configs is None:
            return of_default(check(function, self.default, where))
        try:
            return check(function, configs, where)
        except DefinitionError as error:
            remedy = self._remedy("take it out of the file, and ")
            raise DefinitionError(f"{self.path}: {error.message}", error.where, remedy) from error

    def _found(self, function: Callable[..., Any], where: Where) -> Sequence[Mapping[str, Any]] | None:
        """The configs in the file; None: there are none, and a default."""
        name = where.kernel or function.__name__
        try:
            kernels_in_file = parse(read_recorded(folder_of(function) / self.path))
        except FileNotFoundError:
            self._missing(f"there is no file {self.path}", where)
            return None
        except (OSError, ValueError) as error:
            raise DefinitionError(f"{self.path} {damage(error)}", where, self._remedy("delete it, and ")) from error
        if name not in kernels_in_file:
            self._missing(f"{self.path} has no configs of {name!r}", where)
            return None
        first = self.default[0] if self.default and isinstance(self.default[0], Mapping) else {}
        order = list(dict.fromkeys((*first, *inspect.signature(function).parameters)))
        return [_ordered(config, order) for config in kernels_in_file[name]]

    def _missing(self, message: str, where: Where) -> None:
        if self.default is None:
            remedy = self._remedy("") + f", and until then give some: recorded({self.path!r}, default=[...])"
            raise DefinitionError(message, where, remedy)

    def _remedy(self, first: str) -> str:
        return f"{first}run your program with {VARIABLE}={self.path}"


def read_recorded(path: Path) -> bytes:
    """The content of a file whose entries become configs.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large.
    """
    # The reads of this module are the only ones of which a worker takes no notice as contents: see worker/events.py.
    with open(path, "rb") as stream:  # noqa: PTH123
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST:,} bytes")
    return content


def folder_of(function: Callable[..., Any]) -> Path:
    """The folder of the file that a function is defined in; the current one if it is in none, as in a notebook."""
    file = Path(function.__code__.co_filename)
    return file.parent if file.is_file() else Path()


def parse(content: bytes | str) -> Configs:
    """The content of a file of recorded configs.

    Raises:
        ValueError: it is damaged; the message says how.
    """
    document = Record(decoded(content), "")
    if document.count("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.count('schema')}, expected {SCHEMA}")
    return document.typed(Configs, "kernels")


def text_of(kernels: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The file with some configs: sorted, each once and on a line of its own."""
    blocks = []
    for name in sorted(kernels):
        unique = {config_text(config): config for config in kernels[name]}
        lines = [config_text(config) for config in sorted(unique.values(), key=rank_of)]
        blocks.append(f"  {json.dumps(name)}: [\n" + ",\n".join(f"   {line}" for line in lines) + "\n  ]")
    text = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    return f'{{\n "schema": {SCHEMA},\n "kernels": {text}\n}}\n'


def config_text(config: Mapping[str, Any]) -> str:
    """A config on a line; equal for equal configs, and different for 1, 1.0 and true."""
    return json.dumps(dict(config), sort_keys=True, allow_nan=False)


def damage(error: OSError | ValueError) -> str:
    """The rest of a message about a file that cannot be read, to be put behind its name."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"is damaged: {error}"


def _ordered(config: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    known = [key for key in order if key in config]
    return {key: config[key] for key in (*known, *(key for key in config if key not in known))}


def rank_of(config: Mapping[str, Any]) -> list[tuple[str, bool, float, str, str]]:
    """The key that configs are sorted by; numbers are sorted by their size."""
    ranked = []
    for key in sorted(config):
        value = config[key]
        is_text = isinstance(value, str)
        ranked.append((key, is_text, 0 if is_text else value, value if is_text else "", type(value).__name__))
    return ranked
