"""Writes and reads what a build keeps for itself: JSON with its digest, so that damage is found and counts as a miss.

A sealed line is a JSON list. Its first item is the SHA-256 of the rest: of all bytes between the comma that follows it
and the closing bracket. A sealed file is one such line; its further items are a schema and an object.

Two files that are read back have formats of their own, because others read them, too: the manifest of a package, with
its digest in its last line (``runtime/loader.py``), and ``trace.json``, which browsers show (``state/trace.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .files import read_record, write_atomically
from .records import Record, decoded

Parsed = TypeVar("Parsed")

HEAD = len('["') + 64 + len('",')
"""Bytes in front of the text of a line: a bracket and the digest."""


def sealed(text: str) -> bytes:
    """A line with a digest in front; the text is one or more JSON values with commas between them."""
    data = text.encode()
    return _head(data) + data + b"]\n"


def unsealed(line: bytes) -> str:
    """The text that :func:`sealed` took. Raises ValueError if the line was damaged."""
    require_intact(line)
    return line[HEAD:-2].decode()


def require_intact(line: bytes) -> None:
    """Raise a ValueError if a sealed line was damaged."""
    if line[:HEAD] != _head(memoryview(line)[HEAD:-2]) or line[-2:] != b"]\n":
        raise ValueError("the content does not fit its digest")


def _head(data: bytes | memoryview) -> bytes:
    return b'["%s",' % hashlib.sha256(data).hexdigest().encode()


def sealed_object(schema: str, value: Mapping[str, Any]) -> bytes:
    """A sealed line with an object; the schema names the kind of the object and the revision of its form."""
    return sealed(json.dumps([schema, value], separators=(",", ":"))[1:-1])


def unsealed_object(line: bytes, schema: str) -> Record:
    """The object that :func:`sealed_object` took. Raises ValueError if it was damaged, or has another schema."""
    require_intact(line)
    _, found, value = decoded(line)
    if found != schema:
        raise ValueError(f"it has the schema {found!r}, expected {schema!r}")
    return Record(value, "")


def write_sealed(path: Path, schema: str, value: Mapping[str, Any]) -> None:
    """Write an object to a file. Raises OSError if that is not possible."""
    write_atomically(path, sealed_object(schema, value))


def read_sealed(path: Path, schema: str, parse: Callable[[Record], Parsed]) -> Parsed | None:
    """What ``parse`` makes of the object in a file.

    None, if the file is missing or damaged, has another schema, or if ``parse`` raises a ValueError.
    """
    try:
        return parse(unsealed_object(read_record(path), schema))
    except (OSError, ValueError):
        return None
