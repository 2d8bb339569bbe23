"""Amounts of memory, as users write them and as they read them, and numbers with their nouns."""

from __future__ import annotations

import re
from collections.abc import Mapping

UNITS: Mapping[str, int] = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}


def parse_size(text: str) -> int:
    """KiB of a size such as ``16G`` or ``1.5G``; the units K, M, G and T are powers of 1024.

    Raises:
        ValueError: it is no size, or 0.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)([KMGT])(?:i?B)?", text.strip(), re.I | re.A)
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if size == 0:
        raise ValueError(f"{text!r} is no size; a number and one of K, M, G or T are expected, such as 16G")
    return size


def in_words(amount: int) -> str:
    """Bytes for people: ``512 B``, ``14.2 KiB``, ``3.1 MiB``."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(number: int, noun: str) -> str:
    """A number with its noun: ``1 step``, ``12 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
