"""Rooflines: what a kernel achieves over its arithmetic intensity, below what memory and arithmetic units allow.

The picture is that of Williams, Waterman and Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ...state.bench_result import Limits, Results, Row
from .plot import Spot, axis, ticks
from .text import percent, short_time, words
from .tuning import COLOURED

Marks = list[tuple[float, str]]
"""Where lines of the grid are, with their texts."""


@dataclass(frozen=True)
class BenchView:
    """Results of a run, with what follows from them."""

    results: Results

    def share(self, row: Row) -> float | None:
        """The part of what the device can do for work of this intensity; None: that is not known.

        It can be more than all of it, see docs/bench.md.
        """
        limits = self.results.limits
        if limits is None:
            return None
        return max(row.gb_s / limits.gb_s, row.gflop_s / limits.gflop_s)

    @property
    def rooflines(self) -> list[Roofline]:
        """The picture of each kernel that says how many operations its calls do."""
        limits = self.results.limits
        rows = [row for row in self.results.rows if row.gflop_s and row.gb_s]
        names = dict.fromkeys(row.kernel for row in rows) if limits else {}
        return [Roofline(self, limits, name, [row for row in rows if row.kernel == name]) for name in names if limits]


class Roofline:
    """The picture of one kernel on one device.

    Arguments:
        view: the results, with the limits of the device.
        kernel: the kernel.
        rows: what was measured of it.
    """

    width, height = 540, 300
    left, right, top, bottom = 58, width - 14, 12, height - 42
    """The edges of the part that has lines."""

    def __init__(self, view: BenchView, limits: Limits, kernel: str, rows: list[Row]) -> None:
        self.kernel, self._view, self._rows, self._limits = kernel, view, rows, limits
        self._ridge = limits.gflop_s / limits.gb_s
        """Operations for each byte from which on arithmetic is the limit."""
        self._across = axis([self._ridge / 4, self._ridge * 2, *map(_intensity, rows)], self.left, self.right)
        self._down = axis([limits.gflop_s, *(row.gflop_s for row in rows)], self.bottom, self.top)

    @cached_property
    def colours(self) -> dict[str, str]:
        """Who did the work -> class of the colour."""
        whats = dict.fromkeys(row.what for row in self._rows)
        return {what: f"t{number}" if number < COLOURED else "tother" for number, what in enumerate(whats)}

    @property
    def roof(self) -> str:
        """The line of the limits. It begins at the left edge, which may be far below the picture."""
        low = self._across.low
        points = [(low, low * self._limits.gb_s), (self._ridge, self._limits.gflop_s)]
        places = [f"{self._across.at(x):.1f} {self._down.at(y):.1f}" for x, y in points]
        return f"M{'L'.join(places)}H{self.right}"

    @property
    def columns(self) -> Marks:
        """The vertical lines: operations for each byte."""
        return [(self._across.at(tick), f"{tick:.6g}") for tick in ticks(self._across.low, self._across.high)]

    @property
    def rows(self) -> Marks:
        """The horizontal lines: 10^9 operations per second."""
        return [(self._down.at(tick), f"{tick:,.6g}") for tick in ticks(self._down.low, self._down.high)]

    def spots(self, what: str) -> Iterator[Spot]:
        """The marks of one of those that did the work."""
        for row in (one for one in self._rows if one.what == what):
            place = self._across.at(_intensity(row)), self._down.at(row.gflop_s)
            yield Spot(*place, False, self._tip(row))

    def _tip(self, row: Row) -> str:
        lines = [
            row.what,
            words(row.config),
            words(row.sizes) or "its fixed sizes",
            f"{short_time(row.us)}, spread {row.spread:.1%}",
            f"{row.gflop_s:,.3g} GFLOP/s, {row.gb_s:,.3g} GB/s, {_intensity(row):.3g} FLOP for each byte",
            f"{percent(self._view.share(row) or 0)} of the limit",
        ]
        return "\n".join(filter(None, lines))


def _intensity(row: Row) -> float:
    return row.gflop_s / row.gb_s
