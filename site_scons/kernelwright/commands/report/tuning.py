"""What the page shows of a tuned config: names and colours of its candidates, and how good the choices are."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...state.tuning_result import DEFAULT, CandidateResult, ConfigResult, SizeResult
from .text import value_key, words

COLOURED = 6
"""Candidates that have a colour of their own, besides the default: as many as people can tell apart."""

FASTEST = 10
"""Candidates that are listed where there are no two sizes to draw a line between."""


@dataclass(frozen=True)
class ConfigView:
    """A config of a kernel, with what follows from its numbers."""

    kernel: str
    result: ConfigResult

    @property
    def title(self) -> str:
        """What labels of tables and drawings call it."""
        return f"{self.kernel} {words(self.result.config)}".strip()

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that vary, in the order of the definition."""
        points = self.result.points
        names = dict.fromkeys(itertools.chain.from_iterable(points))
        return tuple(name for name in names if len({value_key(point, name) for point in points}) > 1)

    @property
    def common(self) -> Mapping[str, Any]:
        """The parameters that all candidates share."""
        return {name: value for name, value in self.result.points[DEFAULT].items() if name not in self.parameters}

    def name(self, number: int) -> str:
        """A candidate by the parameters that vary."""
        return self.name_of(self.result.points[number])

    def name_of(self, point: Mapping[str, Any]) -> str:
        """A point by the parameters that vary."""
        shown = {name: point[name] for name in self.parameters if name in point}
        return words(shown) or ("the only point" if len(self.result.points) == 1 else "no parameters")

    @cached_property
    def measured(self) -> list[int]:
        """The numbers of the candidates that were measured at any sizes."""
        return list(dict.fromkeys(candidate.number for size in self.result.sizes for candidate in size.candidates))

    @cached_property
    def times_chosen(self) -> Counter[int]:
        """Number -> at how many sizes it was chosen."""
        return Counter(size.chosen for size in self.result.sizes)

    @cached_property
    def colours(self) -> dict[int, str]:
        """Number -> class of its colour: those that were chosen, then those that are fastest, but not the default."""
        chosen = [number for number, _ in self.times_chosen.most_common()]
        fastest = [min(size.complete, key=_ratio).number for size in self.result.sizes if size.complete]
        means = means_of({c.number: c.ratio for c in size.complete} for size in self.result.sizes)
        ranked = dict.fromkeys([*chosen, *fastest, *sorted(means, key=lambda number: means[number]), *self.measured])
        shown = [number for number in ranked if number != DEFAULT][:COLOURED]
        return {number: f"t{colour}" for colour, number in enumerate(shown)}

    @property
    def others(self) -> list[int]:
        """The numbers of measured candidates without a colour."""
        return sorted({*self.measured} - self.colours.keys() - {DEFAULT})

    def colour(self, number: int) -> str:
        """The class of a candidate's colour."""
        return "tdefault" if number == DEFAULT else self.colours.get(number, "tother")

    def regret(self, size: SizeResult, number: int) -> float | None:
        """How much longer a candidate takes than the fastest one at some sizes, as a part of that one's time."""
        best, own = size.best_ratio, size.of_number.get(number)
        return None if best is None or own is None else max(0.0, own.ratio / best - 1)

    @property
    def regrets(self) -> list[float]:
        """The regret of the default at each combination of sizes where it is known."""
        found = (self.regret(size, DEFAULT) for size in self.result.sizes)
        return [regret for regret in found if regret is not None]

    def fastest(self, size: SizeResult) -> list[CandidateResult]:
        """The fastest candidates at some sizes, the default, and what was chosen, in the order of their times."""
        ranked = sorted(size.candidates, key=_ratio)
        return [one for place, one in enumerate(ranked) if place < FASTEST or one.number in (DEFAULT, size.chosen)]


def means_of(ratios: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
    """The geometric mean of each value over some mappings, of those keys that all mappings have."""
    maps = list(ratios)
    keys = [key for key in (maps[0] if maps else ()) if all(key in each for each in maps)]
    return {key: math.exp(sum(math.log(each[key]) for each in maps) / len(maps)) for key in keys}


def spaced(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of a list, evenly spaced, the first and the last among them."""
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _ratio(candidate: CandidateResult) -> float:
    return candidate.ratio
