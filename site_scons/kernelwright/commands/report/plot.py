"""Plots of a tuned config: times over sizes, and the same times over those of the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from ...core.quantity import plural
from ...state.tuning_result import DEFAULT, CandidateResult, SizeResult
from .axes import Axis, axis, readable, ticks
from .tuning_data import ConfigView, scaled_us, short_time, words

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 42
LETTER = 6.6
"""About the width of a letter, in the drawing's units."""

GREY = 200
"""The most candidates without a colour that are drawn."""

PANELS = 6
"""The most pairs of plots of one config."""

SLOWEST_RATIO = 2.5
"""How slow a candidate may be to be seen whole among the ratios; slower ones leave the plot at its top."""


@dataclass(frozen=True)
class Panel:
    """Sizes of which one symbol varies.

    Arguments:
        symbol: that one.
        fixed: the values of the other symbols that vary elsewhere, in words.
        sizes: in rising order of the symbol.
    """

    symbol: str
    fixed: str
    sizes: tuple[SizeResult, ...]


def panels(view: ConfigView) -> list[Panel]:
    """The pairs of plots of a config: none if there are not two sizes to draw a line between."""
    if not view.varied:
        return []
    symbol = _symbol(view)
    rest = [name for name in view.varied if name != symbol]

    def others(size: SizeResult) -> tuple[int, ...]:
        return tuple(size.sizes[name] for name in rest)

    ordered = sorted(view.result.sizes, key=lambda size: (others(size), size.sizes[symbol]))
    groups = [(values, tuple(sizes)) for values, sizes in groupby(ordered, others)]
    if all(len(sizes) == 1 for _, sizes in groups):
        # The symbols vary together, so each value of this one stands for values of the others.
        return [Panel(symbol, "", tuple(sorted(ordered, key=lambda size: size.sizes[symbol])))]
    fixed = [words(dict(zip(rest, values, strict=True))) for values, _ in groups]
    return [Panel(symbol, text, sizes) for text, (_, sizes) in zip(fixed, groups, strict=True) if len(sizes) > 1]


def _symbol(view: ConfigView) -> str:
    """The symbol that plots are over: the one that decides, or else that with most values."""
    by = view.result.by
    if len(by) == 1 and by[0] in view.varied:
        return by[0]
    return max(view.varied, key=lambda name: len({size.sizes[name] for size in view.result.sizes}))


def plots(view: ConfigView, panel: Panel, title: str) -> str:
    """The two plots of a panel, side by side."""
    times = _Plot(view, panel, scaled_us, f"Time of a call over {panel.symbol}, {title}", short_time)
    ratios = _Plot(
        view,
        panel,
        lambda size, ratio: ratio,
        f"Time over the default's time over {panel.symbol}, {title}",
        lambda value: f"{value:.6g}\u00d7",
        SLOWEST_RATIO,
    )
    leaves = any(one.ratio > SLOWEST_RATIO for size in panel.sizes for one in size.candidates)
    cut = ". What is much slower leaves the plot" if leaves else ""
    captions = ("Time of a call", f"Time, as a multiple of the default\u2019s{cut}")
    figures = [
        f"<figure><figcaption>{caption}</figcaption>\n{plot.svg()}</figure>"
        for caption, plot in zip(captions, (times, ratios), strict=True)
    ]
    return "\n".join(['<div class="plots">', *figures, "</div>"])


def legend(view: ConfigView) -> str:
    """Which line is which candidate."""
    items = [_legend_item(view, number) for number in [DEFAULT, *view.colours]]
    grey = len(view.others)
    if grey:
        shown = f", {GREY:,} of them drawn" if grey > GREY else ""
        items.append(f'<li class="tother">{_swatch("tother")}{plural(grey, "other candidate")}{shown}</li>')
    items.append(f"<li>{_RING}chosen for this size</li>")
    return f'<ul class="key">{"".join(items)}</ul>'


_RING = '<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true"><circle class="ring" cx="13" cy="6" r="4.5"/></svg>'


def _legend_item(view: ConfigView, number: int) -> str:
    chosen = view.times_chosen.get(number, 0)
    often = f" <small>chosen {'once' if chosen == 1 else f'{chosen:,} times'}</small>" if chosen else ""
    default = " <small>default</small>" if number == DEFAULT else ""
    colour = view.colour(number)
    name = f'<span class="name">{escape(view.name(number))}</span>'
    return f'<li class="{colour}" data-candidate="{number}" tabindex="0">{_swatch(colour)}{name}{default}{often}</li>'


def _swatch(colour: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true"><path class="line {colour}" d="M1 6H25"/></svg>'


@dataclass(frozen=True)
class _Plot:
    """One plot.

    Arguments:
        view, panel: what of.
        value: what is drawn of the ratio of a candidate to the default.
        title: for who does not see it.
        tick: the text of a tick.
        most: candidates with a larger ratio do not count for the axis, and leave the plot.
    """

    view: ConfigView
    panel: Panel
    value: Callable[[SizeResult, float], float]
    title: str
    tick: Callable[[float], str]
    most: float | None = None

    def svg(self) -> str:
        """The plot."""
        across, down = self._across(), self._down()
        inner = "\n".join([*self._grey(across, down), *self._coloured(across, down)])
        # An inner drawing cuts off what leaves it.
        box = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
        view = f'viewBox="{LEFT} {TOP} {WIDTH - LEFT - RIGHT} {HEIGHT - TOP - BOTTOM}"'
        return (
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">\n'
            f"{self._grid(across, down)}\n<svg {box} {view}>\n{inner}\n</svg>\n</svg>"
        )

    def _across(self) -> Axis:
        values = [size.sizes[self.panel.symbol] for size in self.panel.sizes]
        return axis(values, LEFT, WIDTH - RIGHT, 0.04)

    def _down(self) -> Axis:
        drawn = [
            self.value(size, candidate.ratio)
            for size in self.panel.sizes
            for candidate in size.candidates
            if self.most is None or candidate.ratio <= self.most
        ]
        return axis([*drawn, *(self.value(size, 1.0) for size in self.panel.sizes)], HEIGHT - BOTTOM, TOP)

    def _grid(self, across: Axis, down: Axis) -> str:
        lines = [
            f'<path class="grid" d="M{LEFT} {down.at(tick):.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 7}" y="{down.at(tick) + 4:.1f}" text-anchor="end">{escape(self.tick(tick))}</text>'
            for tick in ticks(down.low, down.high)
        ]
        sizes = sorted({float(size.sizes[self.panel.symbol]) for size in self.panel.sizes})
        named = set(readable(sizes, across.at, _size_text, LETTER))
        for size in sizes:
            lines.append(f'<path class="grid" d="M{across.at(size):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            if size in named:
                x, text = across.at(size), _size_text(size)
                x = min(x, WIDTH - 4 - len(text) * LETTER / 2)
                lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
        middle = (LEFT + WIDTH - RIGHT) // 2
        symbol = f'<text class="name" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(self.panel.symbol)}'
        return "\n".join([*lines, f"{symbol}</text>"])

    def _grey(self, across: Axis, down: Axis) -> Iterator[str]:
        for number in self.view.others[:GREY]:
            title = f"<title>{escape(self.view.name(number))}</title>"
            yield f'<g class="one tother" data-candidate="{number}">{title}{self._line(number, across, down)}</g>'

    def _coloured(self, across: Axis, down: Axis) -> Iterator[str]:
        # The best comes last, so that no other line covers it.
        for number in [DEFAULT, *reversed(self.view.colours)]:
            spots = "".join(self._spot(size, number, across, down) for size in self.panel.sizes)
            colour, line = self.view.colour(number), self._line(number, across, down)
            yield f'<g class="one {colour}" data-candidate="{number}">{line}{spots}</g>'

    def _line(self, number: int, across: Axis, down: Axis) -> str:
        """The line of a candidate, with a gap where it was not measured, and a dot for a size on its own."""
        measured = groupby(self.panel.sizes, lambda size: number in size.of_number)
        parts = [self._part(list(sizes), number, across, down) for known, sizes in measured if known]
        return f'<path class="line" d="{"".join(parts)}"/>' if parts else ""

    def _part(self, sizes: Sequence[SizeResult], number: int, across: Axis, down: Axis) -> str:
        places = [self._place(size, size.of_number[number], across, down) for size in sizes]
        return f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in places)}" + ("h0" if len(places) == 1 else "")

    def _place(self, size: SizeResult, candidate: CandidateResult, across: Axis, down: Axis) -> tuple[float, float]:
        return across.at(size.sizes[self.panel.symbol]), down.at(self.value(size, candidate.ratio))

    def _spot(self, size: SizeResult, number: int, across: Axis, down: Axis) -> str:
        """The mark of a candidate at some sizes, with what is shown beside the pointer."""
        candidate = size.of_number.get(number)
        if candidate is None:
            return ""
        x, y = self._place(size, candidate, across, down)
        kind, radius = ("ring", "5") if size.chosen == number else ("dot", "2.5")
        tip = escape(tip_of(self.view, size, candidate))
        place = f'cx="{x:.1f}" cy="{y:.1f}"'
        marks = f'<circle class="{kind}" {place} r="{radius}"/><circle class="hit" {place} r="9"/>'
        return f"<g><title>{tip}</title>{marks}</g>"


def tip_of(view: ConfigView, size: SizeResult, candidate: CandidateResult) -> str:
    """What is said of a candidate at some sizes, in lines."""
    marks = [text for text, true in (("the default", not candidate.number), ("chosen", _is(size, candidate))) if true]
    name = view.name(candidate.number) + (f" ({', '.join(marks)})" if marks else "")
    rounds = plural(candidate.rounds, "round")
    lines = [
        name,
        words(size.sizes) or "its fixed sizes",
        f"{short_time(candidate.us)} in {rounds}, spread {candidate.spread:.1%}",
        f"{candidate.ratio:.3f} of the default\u2019s time",
    ]
    if candidate.warm_us:
        lines.append(f"{short_time(candidate.warm_us)} with warm caches")
    return "\n".join(lines)


def _is(size: SizeResult, candidate: CandidateResult) -> bool:
    return size.chosen == candidate.number


def _size_text(size: float) -> str:
    return f"{int(size):,}"
