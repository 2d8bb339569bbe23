"""Logarithmic axes of plots, and where their ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_SPAN = 1.25
"""The smallest factor between the ends of an axis, so that noise does not look like a mountain."""

TICKS = 7
"""The most ticks of an axis whose values are not given."""

NARROW = 4.0
"""Up to this factor between the ends of an axis, its ticks are evenly spaced."""

LETTER = 6.6
"""About the width of a letter, in the drawing's units."""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis.

    Arguments:
        low, high: the values at its ends.
        start, end: where these are in the drawing.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value is."""
        return self.start + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.start)


def axis(values: Iterable[float], start: float, end: float, pad: float = 0.06) -> Axis:
    """An axis that has room for some positive values.

    Arguments:
        start, end: where its ends are in the drawing.
        pad: room at both ends, as a part of its length.
    """
    numbers = list(values)
    low, high = math.log(min(numbers)), math.log(max(numbers))
    missing = max(0.0, math.log(LEAST_SPAN) - (high - low)) / 2
    room = pad * (high - low + 2 * missing) + missing
    return Axis(math.exp(low - room), math.exp(high + room), start, end)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends, about five of them."""
    if high / low <= NARROW:
        return _even_ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        inside = [tick for tick in found if low <= tick <= high]
        if 3 <= len(inside) <= TICKS:
            return inside
    many = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
    return many[:: math.ceil(len(many) / TICKS)] if len(many) > TICKS else _even_ticks(low, high)


def _even_ticks(low: float, high: float) -> list[float]:
    """Evenly spaced ticks."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(factor * power for factor in (0.2, 0.5, 1, 2, 5) if (high - low) / (factor * power) <= TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def readable(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """As many texts, of some at rising places of an axis, as do not touch; the last text is always among them."""
    shown: list[tuple[float, str]] = []
    for place, text in reversed(places):
        if not shown or shown[-1][0] - place >= ((len(text) + len(shown[-1][1])) / 2 + 1.5) * LETTER:
            shown.append((place, text))
    return shown
