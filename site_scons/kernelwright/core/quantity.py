"""Amounts of memory as a user writes them, such as ``16G``."""

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
