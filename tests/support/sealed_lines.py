"""Sealed lines with another content than the product writes, and a digest that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelwright.core.sealed import sealed


def record_in(line: bytes) -> tuple[str, Any]:
    """The form that a sealed line gives, and the JSON data of its record."""
    _, form, value = json.loads(line)
    return form, value


def line_with(form: str, value: Any) -> bytes:
    """A sealed line with them."""
    return sealed(json.dumps([form, value], separators=(",", ":"))[1:-1])


def reseal(path: Path, change: Callable[[Any], Any]) -> None:
    """Give the record in the first line of a file other JSON data; what follows the line stays."""
    line, newline, rest = path.read_bytes().partition(b"\n")
    form, value = record_in(line + newline)
    path.write_bytes(line_with(form, change(value)) + rest)
