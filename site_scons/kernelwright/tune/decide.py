"""From timings to answers: which candidate runs at which sizes. Nothing here measures, reads or writes anything.

Candidates are numbers: their places in the space of the kernel. The first one, 0, is the default. Every timing has the
default beside it, in the same rounds, so only ratios count: a minute in which the machine was slow changes none.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ..runtime.tables import Rules
from ..state.tuning_result import DEFAULT

MARGIN = 0.03
"""How much faster an answer has to be than the one that stands, as a part of that one's time."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Timing:
    """What was measured of a candidate at one combination of sizes.

    Arguments:
        us: microseconds of a call, one number a round.
        default_us: those of the default in the same rounds.
        noisy: for each round, whether it or the default was disturbed all the time; empty: none was. Such rounds do not
            count, unless they are half of all: then the timing changes no answer.
    """

    us: tuple[float, ...] = ()
    default_us: tuple[float, ...] = ()
    noisy: tuple[bool, ...] = ()

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """Time over that of the default, of each round that counts: less is faster."""
        ratios = [own / default for own, default in zip(self.us, self.default_us, strict=True)]
        if self.is_noisy or not self.noisy:
            return tuple(ratios)
        return tuple(ratio for ratio, noisy in zip(ratios, self.noisy, strict=True) if not noisy)

    @property
    def is_noisy(self) -> bool:
        """Whether half of the rounds are."""
        return 2 * sum(self.noisy) >= max(1, len(self.noisy))

    @cached_property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)

    @property
    def spread(self) -> float:
        """How far apart the ratios are, as a part of their median."""
        return (max(self.ratios) - min(self.ratios)) / self.ratio

    def beats(self, other: Timing) -> bool:
        """Whether this is faster by MARGIN at least, and each of its rounds is faster than every one of the other.

        What is noisy beats nothing, and nothing beats it.
        """
        if self.is_noisy or other.is_noisy:
            return False
        return self.ratio <= (1 - MARGIN) * other.ratio and max(self.ratios) < min(other.ratios)


def choose(timings: Mapping[int, Timing], standing: int = DEFAULT) -> int:
    """The candidate that is to run at one combination of sizes.

    The one that stands stays unless another one beats it. Of those that do, and that are not beaten by the fastest of
    them, it is the one that comes first in the space, which is the simpler one.

    Arguments:
        timings: those of all candidates that were measured to the end; that of the default is among them.
        standing: the answer up to now; one without a timing counts as the default.
    """
    holder = timings[standing if standing in timings else DEFAULT]
    better = {number: timing for number, timing in timings.items() if timing.beats(holder)}
    if not better:
        return standing if standing in timings else DEFAULT
    fastest = min(better.values(), key=lambda timing: timing.ratio)
    return min(number for number, timing in better.items() if not fastest.beats(timing))


def rules_of(answers: Sequence[tuple[Sizes, int]]) -> Rules:
    """Rules that give measured sizes their answers, and cover all others.

    If one symbol explains all answers, that one decides, the first of several; otherwise it is the product of all
    symbols of which several values were measured. Sizes with one product get the answer that most of them have. Between
    two measured products the border is their geometric mean.
    """
    if len({answer for _, answer in answers}) == 1:
        return Rules((), ((None, answers[0][1]),))
    varied = [name for name in answers[0][0] if len({sizes[name] for sizes, _ in answers}) > 1]
    by = next(((name,) for name in varied if _explains(name, answers)), tuple(varied))
    return Rules(by, _merged(_by_product(by, answers)))


def _explains(name: str, answers: Sequence[tuple[Sizes, int]]) -> bool:
    """Whether all sizes with one value of a symbol have one answer."""
    return len({(sizes[name], answer) for sizes, answer in answers}) == len({sizes[name] for sizes, _ in answers})


def _by_product(by: Sequence[str], answers: Sequence[tuple[Sizes, int]]) -> list[tuple[int, int]]:
    """Each measured product with its answer, in rising order."""
    votes: dict[int, list[int]] = defaultdict(list)
    for sizes, answer in answers:
        votes[math.prod(sizes[name] for name in by)].append(answer)
    return [(product, _most_frequent(votes[product])) for product in sorted(votes)]


def _most_frequent(answers: Sequence[int]) -> int:
    counts = Counter(answers)
    return min(counts, key=lambda answer: (-counts[answer], answer))


def _merged(answers: Sequence[tuple[int, int]]) -> tuple[tuple[int | None, int], ...]:
    """Ranges of neighbours that have one answer."""
    ranges = [
        (math.isqrt(product * following), answer)
        for (product, answer), (following, next_answer) in itertools.pairwise(answers)
        if answer != next_answer
    ]
    return (*ranges, (None, answers[-1][1]))
