"""Heat maps of a tuned config: the best time over two tuning parameters, for all sizes together and for each."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...state.tuning_result import DEFAULT, SizeResult
from .text import UNKNOWN, short_time, value_key, words
from .tuning import ConfigView, means_of, spaced

WITHIN = (0.03, 0.1, 0.25, 0.5, 1.0)
"""How much slower than the fastest cell one may be for each shade; the last shade has no limit."""

MAPS = 8
"""The most sizes that have a map of their own."""

CELLS = 4000
"""The most cells of all maps of a config."""

LONGEST_AXIS = 64
"""The most values of a parameter of a map."""

DENSE = 8
"""Beyond so many values across, cells have no room for their times."""

SIGNS = {"\u2715": "no candidate works", UNKNOWN: "not measured"}
"""What is in cells without a time."""

FAILED, UNMEASURED = SIGNS


@dataclass(frozen=True)
class Cell:
    """A cell: its classes, its text, and what is shown beside the pointer."""

    kinds: str
    text: str
    tip: str


class HeatMaps:
    """The maps of a config.

    Arguments:
        view: the config, of which two parameters vary at least.
    """

    def __init__(self, view: ConfigView) -> None:
        self.view = view
        varied = view.parameters
        effects = {name: self._effect(name) for name in varied}
        pair = sorted(sorted(varied, key=lambda name: -effects[name])[:2], key=varied.index)
        self.pair = sorted(pair, key=lambda name: -len(self.values(name)))
        self.across, self.down = map(self.values, self.pair)
        self.others = [name for name in varied if name not in self.pair]

    def _effect(self, name: str) -> float:
        """By how much the time depends on a parameter, if the others are the best for it."""
        found = self._best([name], self.view.result.sizes)
        return max(found.values()) / min(found.values()) if found else 1.0

    def values(self, name: str) -> list[str]:
        """The values of a parameter, as keys: numbers by their size, anything else in the order of the space."""
        values: dict[str, Any] = {value_key(point, name): point.get(name) for point in self.view.result.points}
        is_numeric = all(isinstance(value, (int, float)) for value in values.values())
        return sorted(values, key=lambda key: values[key]) if is_numeric else list(values)

    def shown(self, key: str) -> str:
        """A value as definitions write it, but without the quotes of a string."""
        return key if key == UNKNOWN else str(json.loads(key))

    def _best(self, names: Sequence[str], sizes: Sequence[SizeResult]) -> dict[tuple[str, ...], float]:
        """Values of some parameters -> the best ratio to the default of the candidates that have them.

        Over several sizes it is the geometric mean, of values for which there is a time at each of them.
        """
        maps: list[dict[tuple[str, ...], float]] = []
        for size in sizes:
            best: dict[tuple[str, ...], float] = {}
            for candidate in size.candidates:
                values = self._values_of(candidate.number, names)
                best[values] = min(best.get(values, math.inf), candidate.ratio)
            maps.append(best)
        return means_of(maps)

    def _values_of(self, number: int, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(value_key(self.view.result.points[number], name) for name in names)

    @cached_property
    def _numbers(self) -> Mapping[tuple[str, ...], set[int]]:
        """Values of the pair -> the candidates that have them."""
        numbers: dict[tuple[str, ...], set[int]] = {}
        for number in range(len(self.view.result.points)):
            numbers.setdefault(self._values_of(number, self.pair), set()).add(number)
        return numbers

    def maps(self) -> dict[str, list[list[Cell | None]]]:
        """Title -> the rows of a map: first that of all sizes together, if there are several."""
        sizes = self.view.result.sizes
        most = max(1, min(MAPS, CELLS // (len(self.across) * len(self.down)) - 1))
        shown = [[size] for size in spaced(sizes, most)]
        return {self._title(own): self._rows(own) for own in [*([list(sizes)] if len(sizes) > 1 else []), *shown]}

    def _title(self, sizes: Sequence[SizeResult]) -> str:
        together = "All sizes, as a multiple of the default\u2019s time"
        return together if len(sizes) > 1 else words(sizes[0].sizes) or "Its fixed sizes"

    def _rows(self, sizes: Sequence[SizeResult]) -> list[list[Cell | None]]:
        best = self._best(self.pair, sizes)
        return [[self._cell((one, other), best, sizes) for one in self.across] for other in self.down]

    def _cell(
        self, values: tuple[str, str], best: Mapping[tuple[str, ...], float], sizes: Sequence[SizeResult]
    ) -> Cell | None:
        """One cell; None: the space has no such point."""
        numbers, ratio = self._numbers.get(values), best.get(values)
        if numbers is None:
            return None
        marks = ["chosen"] if len(sizes) == 1 and sizes[0].chosen in numbers else []
        marks += ["default"] if DEFAULT in numbers else []
        name = words(dict(zip(self.pair, map(self.shown, values), strict=True)))
        name += f" ({', '.join(marks)})" if marks else ""
        if ratio is None:
            text = FAILED if numbers <= {failure.number for failure in self.view.result.failures} else UNMEASURED
            return Cell(" ".join(["none", *marks]), text, f"{name}\n{self._title(sizes)}\n{SIGNS[text]}")
        shade = f"h{bisect.bisect_left(WITHIN, ratio / min(best.values()) - 1)}"
        text = f"{ratio:.2f}\u00d7" if len(sizes) > 1 else short_time(sizes[0].default_us * ratio)
        tip = f"{name}\n{self._title(sizes)}\n{text}\n{ratio:.3f} of the default\u2019s time"
        return Cell(" ".join([shade, *marks]), text, tip)


def heat_maps(view: ConfigView) -> HeatMaps | None:
    """The maps of a config; None: fewer than two parameters vary, or one has too many values."""
    if len(view.parameters) < 2 or not view.result.sizes:
        return None
    found = HeatMaps(view)
    return found if max(len(found.across), len(found.down)) <= LONGEST_AXIS else None
