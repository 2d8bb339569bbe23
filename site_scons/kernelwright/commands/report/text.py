"""Numbers and names as readers see them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

UNKNOWN = "\u2013"
"""An en dash: what stands for a value that is not known, or that is not there."""


def fixed(value: float, digits: int = 0) -> str:
    """A number with so many digits behind the point."""
    return f"{value:,.{digits}f}"


def percent(share: float, digits: int = 0) -> str:
    """A part of a whole."""
    return f"{share:,.{digits}%}"


def duration(seconds: float) -> str:
    """A time: ``0.42 s``, ``41.2 s``, ``3 min 5 s``."""
    if seconds < 119.95:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def microseconds(us: float) -> str:
    """A time in a column of microseconds, with four significant digits."""
    return fixed(us, min(max(3 - math.floor(math.log10(us)), 0), 6))


def short_time(us: float) -> str:
    """A time in microseconds with its unit: ``12.3 \u00b5s``."""
    units = ((1, 1e3, "ns"), (1e3, 1, "\u00b5s"), (1e6, 1e-3, "ms"), (math.inf, 1e-6, "s"))
    factor, unit = next((factor, unit) for limit, factor, unit in units if us < limit * 0.9995)
    return f"{float(f'{us * factor:.3g}'):,g} {unit}"


def words(values: Mapping[str, Any]) -> str:
    """Parameters in a line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def value_key(point: Mapping[str, Any], name: str) -> str:
    """The value of a parameter as a text; 1, 1.0 and True differ."""
    return json.dumps(point[name], ensure_ascii=False) if name in point else UNKNOWN


def code_split(text: str) -> list[str]:
    """The parts of a text in which ````x```` is code, as in reStructuredText; every second one is code."""
    return re.split(r"``(.+?)``", text)
