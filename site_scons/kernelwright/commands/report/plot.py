"""Plots of a tuned config: times over sizes, and the same times over those of the default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...core.quantity import plural
from ...state.tuning_result import DEFAULT, CandidateResult, SizeResult
from .text import fixed, short_time, words
from .tuning import ConfigView

GREY = 200
"""The most candidates without a colour that are drawn."""

SLOWEST_RATIO = 2.5
"""How slow a candidate may be to be seen whole among the ratios; slower ones leave the plot at its top."""


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


@dataclass(frozen=True)
class Spot:
    """The mark of a candidate at some sizes, with what is shown beside the pointer."""

    x: float
    y: float
    is_chosen: bool
    tip: str


@dataclass(frozen=True)
class Line:
    """The line of a candidate, with a gap where it was not measured, and a dot for a size on its own."""

    number: int
    path: str
    spots: list[Spot]


@dataclass(frozen=True)
class Panel:
    """Sizes of which one symbol varies; there are two plots of them.

    Arguments:
        view: the config.
        symbol: the symbol that varies.
        fixed: the values of the other symbols that vary elsewhere, in words.
        sizes: in rising order of the symbol.
    """

    view: ConfigView
    symbol: str
    fixed: str
    sizes: tuple[SizeResult, ...]

    @property
    def plots(self) -> tuple[Plot, Plot]:
        """The times, and their ratios to those of the default."""
        return Plot(self, True), Plot(self, False)


class Plot:
    """One plot.

    Arguments:
        panel: what it shows.
        is_time: whether it shows times in microseconds; otherwise it shows ratios.
    """

    width, height = 540, 300
    left, right, top, bottom = 58, width - 14, 12, height - 42
    """The edges of the part that has lines."""

    def __init__(self, panel: Panel, is_time: bool) -> None:
        self.panel, self.is_time = panel, is_time
        what = "Time of a call" if is_time else "Time over the default's time"
        self.title = f"{what} over {panel.symbol}, {' '.join(filter(None, (panel.view.title, panel.fixed)))}"
        pairs = [(size, candidate.ratio) for size in panel.sizes for candidate in size.candidates]
        drawn = [self._value(*pair) for pair in pairs if is_time or pair[1] <= SLOWEST_RATIO]
        leaves = not is_time and len(drawn) < len(pairs)
        ratios = "Time, as a multiple of the default\u2019s" + ". What is much slower leaves the plot" * leaves
        self.caption = "Time of a call" if is_time else ratios
        self._down = axis([*drawn, *(self._value(size, 1.0) for size in panel.sizes)], self.bottom, self.top)
        self._across = axis([size.sizes[panel.symbol] for size in panel.sizes], self.left, self.right, 0.04)

    def _value(self, size: SizeResult, ratio: float) -> float:
        # So candidates can be compared by their times, though they were not measured in the same minute.
        return size.default_us * ratio if self.is_time else ratio

    @property
    def rows(self) -> list[tuple[float, str]]:
        """Where the horizontal lines are, and their texts."""
        text = short_time if self.is_time else "{:.6g}\u00d7".format
        return [(self._down.at(tick), text(tick)) for tick in ticks(self._down.low, self._down.high)]

    @property
    def columns(self) -> list[tuple[float, float, str]]:
        """Where the vertical lines and their texts are; a text is empty where there is no room."""
        sizes = sorted({size.sizes[self.panel.symbol] for size in self.panel.sizes})
        places = [(self._across.at(size), fixed(size)) for size in sizes]
        shown = readable(places)
        return [
            (x, min(x, self.width - 4 - len(text) * LETTER / 2), text if (x, text) in shown else "")
            for x, text in places
        ]

    @property
    def lines(self) -> Iterator[Line]:
        """The lines. The best comes last, so that no other line covers it; grey ones have no marks."""
        view = self.panel.view
        for number in view.others[:GREY]:
            yield Line(number, self._path(number), [])
        for number in [DEFAULT, *reversed(view.colours)]:
            spots = [self._spot(size, size.of_number[number]) for size in self.panel.sizes if number in size.of_number]
            yield Line(number, self._path(number), spots)

    def _path(self, number: int) -> str:
        parts = []
        for is_known, sizes in groupby(self.panel.sizes, lambda size: number in size.of_number):
            if is_known:
                places = ["{:.1f} {:.1f}".format(*self._place(size, size.of_number[number])) for size in sizes]
                parts.append(f"M{'L'.join(places)}{'h0' if len(places) == 1 else ''}")
        return "".join(parts)

    def _place(self, size: SizeResult, candidate: CandidateResult) -> tuple[float, float]:
        return self._across.at(size.sizes[self.panel.symbol]), self._down.at(self._value(size, candidate.ratio))

    def _spot(self, size: SizeResult, candidate: CandidateResult) -> Spot:
        is_chosen = size.chosen == candidate.number
        return Spot(*self._place(size, candidate), is_chosen, tip_of(self.panel.view, size, candidate))


def tip_of(view: ConfigView, size: SizeResult, candidate: CandidateResult) -> str:
    """The name and the numbers of a candidate at some sizes, in lines."""
    marks = ["the default"] * (candidate.number == DEFAULT) + ["chosen"] * (candidate.number == size.chosen)
    lines = [
        view.name(candidate.number) + (f" ({', '.join(marks)})" if marks else ""),
        words(size.sizes) or "its fixed sizes",
        f"{short_time(candidate.us)} in {plural(candidate.rounds, 'round')}, spread {candidate.spread:.1%}",
        f"{candidate.ratio:.3f} of the default\u2019s time",
    ]
    lines += [f"{short_time(candidate.warm_us)} with warm caches"] if candidate.warm_us else []
    return "\n".join(lines)


def panels(view: ConfigView) -> list[Panel]:
    """The pairs of plots of a config: none if there are not two sizes to draw a line between."""
    sizes = view.result.sizes
    counts = {name: len({size.sizes[name] for size in sizes}) for name in view.result.symbols}
    varied = [name for name, count in counts.items() if count > 1]
    if not varied:
        return []
    # Plots are over the symbol that decides, or else over that with most values.
    by = view.result.by
    symbol = by[0] if len(by) == 1 and by[0] in varied else max(varied, key=lambda name: counts[name])
    rest = [name for name in varied if name != symbol]

    def others(size: SizeResult) -> str:
        return words({name: size.sizes[name] for name in rest})

    ordered = sorted(sizes, key=lambda size: ([size.sizes[name] for name in rest], size.sizes[symbol]))
    groups = [Panel(view, symbol, text, tuple(group)) for text, group in groupby(ordered, others)]
    if all(len(panel.sizes) == 1 for panel in groups):
        # The symbols vary together, so each value of this one stands for values of the others.
        return [Panel(view, symbol, "", tuple(sorted(ordered, key=lambda size: size.sizes[symbol])))]
    return [panel for panel in groups if len(panel.sizes) > 1]
