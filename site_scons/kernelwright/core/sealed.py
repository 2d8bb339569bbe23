"""Writes and reads what a build keeps for itself: JSON with its digest, so that damage is found and counts as a miss.

A sealed line is a JSON list. Its first item is the SHA-256 of the rest: of all bytes between the comma that follows it
and the closing bracket. A sealed file is one such line; its further items are the form of a record, and the record.

Two files that are read back have formats of their own, because others read them, too: the manifest of a package, with
its digest in its last line (``runtime/loader.py``), and ``trace.json``, which browsers show (``state/trace.py``).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

from .converter import from_json, json_text, shape
from .files import read_record, write_atomically
from .records import decoded

Kind = TypeVar("Kind")

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


def form_of(kind: Any) -> str:
    """What a sealed line says of its record: the kind, and a digest of its fields, so that another form has another."""
    return f"{kind.__name__} {shape(kind)}"


def sealed_record(value: Any) -> bytes:
    """A sealed line with a record, which is a dataclass."""
    return sealed(json_text([form_of(type(value)), value])[1:-1])


def unsealed_record(line: bytes, kind: type[Kind]) -> Kind:
    """The record that :func:`sealed_record` took. Raises ValueError if it was damaged, or has another form."""
    require_intact(line)
    _, form, value = decoded(line)
    if form != form_of(kind):
        raise ValueError(f"it has the form {form!r}, expected {form_of(kind)!r}")
    return from_json(kind, value)


def write_sealed(path: Path, value: Any) -> None:
    """Write a record to a file. Raises OSError if that is not possible."""
    write_atomically(path, sealed_record(value))


def read_sealed(path: Path, kind: type[Kind]) -> Kind | None:
    """The record in a file; None, if that is missing or damaged, or has another form."""
    try:
        return unsealed_record(read_record(path), kind)
    except (OSError, ValueError):
        return None
