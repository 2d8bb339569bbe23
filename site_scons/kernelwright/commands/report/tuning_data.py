"""What the report shows of a tuned config: names and colours of candidates, the two parameters that matter, numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...state.tuning_result import DEFAULT, ConfigResult, SizeResult

COLOURED = 6
"""Candidates that have a colour of their own, besides the default: as many as people can tell apart."""

ABSENT = "\u2013"
"""What stands for a parameter that a point does not have."""


@dataclass(frozen=True)
class ConfigView:
    """A config with what follows from its numbers."""

    result: ConfigResult

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that vary, in the order of the definition."""
        points = self.result.points
        names = dict.fromkeys(name for point in points for name in point)
        return tuple(name for name in names if len({value_key(point, name) for point in points}) > 1)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The size symbols that vary."""
        sizes = self.result.sizes
        return tuple(name for name in self.result.symbols if len({size.sizes[name] for size in sizes}) > 1)

    def name(self, number: int) -> str:
        """A candidate by the parameters that vary."""
        return self.name_of(self.result.points[number])

    def name_of(self, point: Mapping[str, Any]) -> str:
        """A point by the parameters that vary."""
        shown = {name: point[name] for name in self.parameters if name in point}
        return words(shown) or ("the only point" if len(self.result.points) == 1 else "no parameters")

    @cached_property
    def times_chosen(self) -> Mapping[int, int]:
        """Number -> at how many sizes it was chosen."""
        return Counter(size.chosen for size in self.result.sizes)

    @cached_property
    def colours(self) -> Mapping[int, int]:
        """Number -> number of its colour: those that were chosen, then those that are fastest, but not the default."""
        chosen = sorted(self.times_chosen, key=lambda number: -self.times_chosen[number])
        fastest = [_fastest(size) for size in self.result.sizes]
        means = means_of(self.result.sizes)
        rest = sorted(means, key=lambda number: means[number])
        partly = [candidate.number for size in self.result.sizes for candidate in size.candidates]
        ranked = dict.fromkeys([*chosen, *fastest, *rest, *partly])
        shown = [number for number in ranked if number is not None and number != DEFAULT][:COLOURED]
        return {number: colour for colour, number in enumerate(shown)}

    @property
    def others(self) -> list[int]:
        """The numbers of measured candidates without a colour."""
        measured = {candidate.number for size in self.result.sizes for candidate in size.candidates}
        return sorted(measured - self.colours.keys() - {DEFAULT})

    def colour(self, number: int) -> str:
        """The class of a candidate's colour."""
        if number == DEFAULT:
            return "tdefault"
        return f"t{self.colours[number]}" if number in self.colours else "tother"

    @cached_property
    def pair(self) -> tuple[str, str] | None:
        """The two parameters of the heat map, that with more values first; None: fewer than two vary."""
        if len(self.parameters) < 2:
            return None
        effects = {name: self._effect(name) for name in self.parameters}
        top = sorted(self.parameters, key=lambda name: -effects[name])[:2]
        across, down = sorted(top, key=self.parameters.index)
        more_down = len(self.values(down)) > len(self.values(across))
        return (down, across) if more_down else (across, down)

    def _effect(self, name: str) -> float:
        """By how much the time depends on a parameter, if the others are the best for it."""
        found = cells(self.result, self.result.sizes, lambda point: value_key(point, name))
        return max(found.values()) / min(found.values()) if found else 1.0

    def values(self, name: str) -> list[str]:
        """The values of a parameter, as keys: numbers by their size, anything else in the order of the space."""
        values: dict[str, Any] = {value_key(point, name): point.get(name) for point in self.result.points}
        if not all(isinstance(value, (int, float)) for value in values.values()):
            return list(values)
        return [key for key, _ in sorted(values.items(), key=lambda item: item[1])]


def cells(result: ConfigResult, sizes: Sequence[SizeResult], cell_of: Any) -> dict[Any, float]:
    """The best ratio to the default of each group of candidates: over several sizes the geometric mean of these.

    Arguments:
        cell_of: gives the group of a point.
    """
    logs: dict[Any, list[float]] = {}
    for size in sizes:
        best: dict[Any, float] = {}
        for candidate in size.candidates:
            cell = cell_of(result.points[candidate.number])
            best[cell] = min(best.get(cell, math.inf), candidate.ratio)
        for cell, ratio in best.items():
            logs.setdefault(cell, []).append(math.log(ratio))
    return {cell: _exp_mean(found) for cell, found in logs.items() if len(found) == len(sizes)}


def means_of(sizes: Sequence[SizeResult]) -> dict[int, float]:
    """Number -> geometric mean of the ratios of a candidate that was measured to the end at all sizes."""
    logs: dict[int, list[float]] = {}
    for candidate in itertools.chain.from_iterable(size.complete for size in sizes):
        logs.setdefault(candidate.number, []).append(math.log(candidate.ratio))
    return {number: _exp_mean(found) for number, found in logs.items() if len(found) == len(sizes)}


def regret(size: SizeResult, number: int) -> float | None:
    """How much longer a candidate takes than the fastest one at these sizes, as a part of that one's time."""
    best, own = size.best_ratio, size.of_number.get(number)
    return None if best is None or own is None else max(0.0, own.ratio / best - 1)


def scaled_us(size: SizeResult, ratio: float) -> float:
    """A time that is comparable with those of all candidates, though they were not measured in the same minute."""
    return size.default_us * ratio


def words(values: Mapping[str, Any]) -> str:
    """Parameters in a line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def value_key(point: Mapping[str, Any], name: str) -> str:
    """The value of a parameter as a text; 1, 1.0 and True differ."""
    return json.dumps(point[name], ensure_ascii=False) if name in point else ABSENT


def microseconds(us: float) -> str:
    """A time as tables show it, with four significant digits."""
    digits = 3 - math.floor(math.log10(us))
    return f"{us:,.{min(max(digits, 0), 6)}f}"


def short_time(us: float) -> str:
    """A time with its unit: ``12.3 \u00b5s``."""
    for limit, factor, unit in ((1, 1000, "ns"), (1e3, 1, "\u00b5s"), (1e6, 1e-3, "ms")):
        if us < limit * 0.9995:
            return f"{_three_digits(us * factor)} {unit}"
    return f"{_three_digits(us * 1e-6)} s"


def spaced(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of a list, evenly spaced, the first and the last among them."""
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _three_digits(number: float) -> str:
    return f"{float(f'{number:.3g}'):,g}"


def _fastest(size: SizeResult) -> int | None:
    return min(size.complete, key=lambda candidate: candidate.ratio).number if size.complete else None


def _exp_mean(logs: Iterable[float]) -> float:
    found = list(logs)
    return math.exp(sum(found) / len(found))
