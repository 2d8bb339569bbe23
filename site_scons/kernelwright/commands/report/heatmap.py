"""Heat maps of a tuned config: the best time over two tuning parameters, for all sizes together and for each."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from ...state.tuning_result import DEFAULT, SizeResult
from .markup import UNKNOWN
from .tuning_data import ABSENT, ConfigView, cells, scaled_us, short_time, spaced, value_key, words

WITHIN = (0.03, 0.1, 0.25, 0.5, 1.0)
"""How much slower than the fastest cell one may be for each shade; the last shade has no limit."""

MAPS = 8
"""The most sizes that have a map of their own."""

CELLS = 4000
"""The most cells of all maps of a config."""

LONGEST_AXIS = 64
"""The most values of a parameter of a map."""

CELL_HEIGHT = 24
HEAD = 38
ROOM = 340
"""The width that the cells of a map share, if there are many."""

LETTER = 6.2

FAILED = "\u2715"
"""A cross."""

SIGNS = {FAILED: "no candidate works", UNKNOWN: "not measured"}
"""What is in cells without a time."""


def heat_maps(view: ConfigView) -> str:
    """The maps of a config; empty if fewer than two parameters vary."""
    pair = view.pair
    if pair is None or not view.result.sizes:
        return ""
    across, down = (view.values(name) for name in pair)
    if max(len(across), len(down)) > LONGEST_AXIS:
        return ""
    sizes = view.result.sizes
    most = max(1, min(MAPS, CELLS // (len(across) * len(down)) - 1))
    single = [] if len(sizes) == 1 else [_Map(view, pair, tuple(sizes))]
    maps = [*single, *(_Map(view, pair, (size,)) for size in spaced(sizes, most))]
    figures = "\n".join(one.figure() for one in maps)
    note = f'<p class="note">{escape(_note(view, pair))}</p>'
    return f'<h4>Heat map</h4>\n{note}\n{_scale(figures)}\n<div class="maps">\n{figures}\n</div>'


def _note(view: ConfigView, pair: tuple[str, str]) -> str:
    others = [name for name in view.parameters if name not in pair]
    best = ""
    if others:
        names = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
        best = f" These two change the time most. Each cell has the best over {names}."
    return f"The best time over {pair[0]} and {pair[1]}.{best}"


def _scale(figures: str) -> str:
    """What the shades and marks of maps mean."""
    texts = [f"up to {limit:.0%} slower" for limit in WITHIN] + ["more"]
    chips = "".join(f'<li><i class="shade h{shade}"></i>{text}</li>' for shade, text in enumerate(texts))
    marks = '<li><i class="shade chosen"></i>chosen</li><li><i class="shade default"></i>default</li>'
    signs = "".join(f"<li>{sign} {text}</li>" for sign, text in SIGNS.items() if f">{sign}</text>" in figures)
    return f'<ul class="key">{chips}{marks}{signs}</ul>'


@dataclass(frozen=True)
class _Map:
    """One map.

    Arguments:
        view: what of.
        pair: the parameters, across and down.
        sizes: all sizes, or one.
    """

    view: ConfigView
    pair: tuple[str, str]
    sizes: tuple[SizeResult, ...]

    def figure(self) -> str:
        """The map with its heading."""
        title = self._title()
        return f"<figure><figcaption>{escape(title)}</figcaption>\n{self._svg(title)}</figure>"

    def _title(self) -> str:
        if len(self.sizes) > 1:
            return "All sizes, as a multiple of the default\u2019s time"
        return words(self.sizes[0].sizes) or "Its fixed sizes"

    def _svg(self, title: str) -> str:
        across, down = (self.view.values(name) for name in self.pair)
        left = 30 + LETTER * min(10, max(len(shown_value(value)) for value in down))
        width = max(10.0, min(62.0, ROOM / len(across)))
        found = cells(self.view.result, self.sizes, self._cell)
        drawn = [
            self._drawn((one, other), found, (left + x * width, HEAD + y * CELL_HEIGHT, width))
            for y, other in enumerate(down)
            for x, one in enumerate(across)
        ]
        total, height = left + len(across) * width + 2, HEAD + len(down) * CELL_HEIGHT + 2
        names = [*self._across_names(across, left, width), *self._down_names(down, left)]
        label = escape(f"Heat map over {self.pair[0]} and {self.pair[1]}: {title}")
        return (
            f'<svg class="map" viewBox="0 0 {total:.1f} {height}" width="{total:.0f}" height="{height}" role="img" '
            f'aria-label="{label}">\n' + "\n".join(part for part in (*names, *drawn) if part) + "\n</svg>"
        )

    def _cell(self, point: Any) -> tuple[str, str]:
        return value_key(point, self.pair[0]), value_key(point, self.pair[1])

    def _across_names(self, values: Sequence[str], left: float, width: float) -> list[str]:
        middle = left + len(values) * width / 2
        room = max(1, int(width / LETTER))
        every = -(-3 // room)
        return [
            f'<text class="name" x="{middle:.1f}" y="13" text-anchor="middle">{escape(self.pair[0])}</text>',
            *(
                f'<text x="{left + (index + 0.5) * width:.1f}" y="{HEAD - 7}" text-anchor="middle">'
                f"{_cut(value, max(3, room))}</text>"
                for index, value in enumerate(values)
                if index % every == 0
            ),
        ]

    def _down_names(self, values: Sequence[str], left: float) -> list[str]:
        middle = HEAD + len(values) * CELL_HEIGHT / 2
        room = max(4, int(len(values) * CELL_HEIGHT / LETTER))
        turned = f'text-anchor="middle" transform="rotate(-90 12 {middle:.1f})"'
        return [
            f'<text class="name" x="12" y="{middle:.1f}" {turned}>{_cut(self.pair[1], room, name=True)}</text>',
            *(
                f'<text x="{left - 7:.1f}" y="{HEAD + (index + 0.5) * CELL_HEIGHT + 4:.1f}" text-anchor="end">'
                f"{_cut(value, 10)}</text>"
                for index, value in enumerate(values)
            ),
        ]

    def _drawn(self, cell: tuple[str, str], found: dict[Any, float], place: tuple[float, float, float]) -> str:
        """One cell, or nothing if the space has no such point."""
        numbers = self._numbers.get(cell, [])
        if not numbers:
            return ""
        ratio, (x, y, width) = found.get(cell), place
        shade = f"h{bisect.bisect_left(WITHIN, ratio / min(found.values()) - 1)}" if ratio else "none"
        text = self._value(ratio) if ratio else FAILED if self._all_failed(numbers) else UNKNOWN
        marks = self._marks(numbers)
        kinds = " ".join([shade, *marks])
        inset = 2 if marks else 1
        box = f'x="{x + inset:.1f}" y="{y + inset}" width="{width - 2 * inset:.1f}" height="{CELL_HEIGHT - 2 * inset}"'
        room = len(text.replace("\u00a0", " ")) * LETTER <= width - 2
        shown = f'<text x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle">{text}</text>' if room else ""
        tip = escape(self._tip(cell, text, ratio, marks))
        return f'<g class="cell {kinds}"><title>{tip}</title><rect {box} rx="2"/>{shown}</g>'

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], list[int]]:
        """Cell -> its candidates."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for number, point in enumerate(self.view.result.points):
            numbers.setdefault(self._cell(point), []).append(number)
        return numbers

    def _value(self, ratio: float) -> str:
        return f"{ratio:.2f}\u00d7" if len(self.sizes) > 1 else short_time(scaled_us(self.sizes[0], ratio))

    def _all_failed(self, numbers: Sequence[int]) -> bool:
        return set(numbers) <= {failure.number for failure in self.view.result.failures}

    def _marks(self, numbers: Sequence[int]) -> list[str]:
        chosen = len(self.sizes) == 1 and self.sizes[0].chosen in numbers
        return [name for name, true in (("chosen", chosen), ("default", DEFAULT in numbers)) if true]

    def _tip(self, cell: tuple[str, str], text: str, ratio: float | None, marks: Sequence[str]) -> str:
        name = " ".join(f"{parameter}={shown_value(value)}" for parameter, value in zip(self.pair, cell, strict=True))
        lines = [name + (f" ({', '.join(marks)})" if marks else ""), self._title(), SIGNS.get(text, text)]
        if ratio is not None:
            lines.append(f"{ratio:.3f} of the default\u2019s time")
        return "\n".join(lines)


def shown_value(key: str) -> str:
    """The key of a value as definitions write it, but without the quotes of a text."""
    return key if key == ABSENT else str(json.loads(key))


def _cut(value: str, most: int, *, name: bool = False) -> str:
    """A value that fits into some letters, escaped."""
    text = value if name else shown_value(value)
    return escape(text if len(text) <= most else text[: most - 1] + "\u2026")
