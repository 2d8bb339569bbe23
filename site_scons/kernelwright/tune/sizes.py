"""The sizes that are measured, and how long that may take, as a user writes them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from ..core.errors import SettingsError, Where, shown

MOST_VALUES = 1000
"""Sizes of one symbol; more is a slip."""

LARGEST = 2**40

REMEDY = "write m=1,16,64, or m=1:8192:x2 (each twice the one before), or m=1:100:+10 (ten more each time)"

SECONDS = {"s": 1, "m": 60, "h": 3600}


def read_sizes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The values of each symbol, of texts such as ``m=1:8192:x2``.

    Raises:
        SettingsError: a text is none of these, or names a symbol a second time.
    """
    values_of: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip().isidentifier() or name.strip() in values_of:
            raise _wrong(text)
        values_of[name.strip()] = _values(values, text)
    return values_of


def _values(values: str, text: str) -> tuple[int, ...]:
    stepped = re.fullmatch(r"(\d{1,13}):(\d{1,13}):([x+])(\d{1,13})", values.replace(" ", ""))
    if stepped is None:
        numbers = [value.strip() for value in values.split(",")]
        if not all(re.fullmatch(r"\d{1,13}", value) for value in numbers):
            raise _wrong(text)
        return _checked(map(int, numbers), text)
    first, last, step = int(stepped[1]), int(stepped[2]), int(stepped[4])
    multiplies = stepped[3] == "x"
    if step < (2 if multiplies else 1) or not 1 <= first <= last:
        raise _wrong(text)
    values_up = itertools.accumulate(itertools.repeat(step), lambda v, s: v * s if multiplies else v + s, initial=first)
    return _checked(itertools.takewhile(lambda value: value <= last, values_up), text)


def _checked(values: Iterable[int], text: str) -> tuple[int, ...]:
    sizes = tuple(sorted(set(itertools.islice(values, MOST_VALUES + 1))))
    if not sizes or sizes[0] < 1 or sizes[-1] > LARGEST or len(sizes) > MOST_VALUES:
        raise _wrong(text)
    return sizes


def _wrong(text: str) -> SettingsError:
    return SettingsError(f"the sizes {shown(text)} are none", Where(stage="settings", location="--sizes"), REMEDY)


def combinations(sizes: Mapping[str, Sequence[int]], symbols: Sequence[str], where: Where) -> list[dict[str, int]]:
    """Every combination of the values of a kernel's symbols, in the order of the symbols.

    Raises:
        SettingsError: a symbol has no values, or there is none of a name.
    """
    unknown = sorted(set(sizes) - set(symbols))
    missing = [name for name in symbols if name not in sizes]
    if unknown or missing:
        named = f"its sizes are {', '.join(symbols)}" if symbols else "all its sizes are fixed"
        what = f"it has no size {unknown[0]!r}" if unknown else f"nothing says which {missing[0]} to measure"
        remedy = " ".join(f"--sizes {name}=1:8192:x2" for name in symbols) or "leave --sizes out"
        raise SettingsError(f"{what}; {named}", where, f"{remedy}, or @{where.kernel}.sizes in the definition file")
    return [dict(zip(symbols, values, strict=True)) for values in itertools.product(*(sizes[s] for s in symbols))]


def read_seconds(text: str) -> float:
    """Seconds of a text such as ``90s``, ``10m`` or ``1.5h``.

    Raises:
        SettingsError: it is none.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text.strip())
    if match is None or not float(match[1]):
        where = Where(stage="settings", location="--budget")
        raise SettingsError(f"the budget {shown(text)} is no time", where, "write 90s, 10m or 1h")
    return float(match[1]) * SECONDS[match[2]]


def size_text(sizes: Mapping[str, int]) -> str:
    """Sizes in a line: ``m=16, n=4``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its fixed sizes"
