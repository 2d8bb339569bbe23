"""``kernelwright tune --check``: measures the answers of a table again, beside the best that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import KernelwrightError, SettingsError
from ..define.space import Choice
from ..define.tuning import MEND, TableFile, TunedConfig, same
from ..state.tuning_result import DEFAULT
from .bench import Bench
from .candidates import Built
from .contest import Contest
from .decide import Timing
from .kept import Kept, Key
from .table import folder_of
from .tuner import Tuner, number_of

DEFAULT_TIMING = Timing((1.0,), (1.0,))
"""The timing of the default beside itself."""


@dataclass(frozen=True)
class Regret:
    """What an answer of a table costs at some sizes.

    Arguments:
        config: the caller's.
        sizes: the sizes.
        tune: the answer.
        ratio: its time over that of the default, measured now.
        best: that of the fastest candidate that is known.
        best_tune: which one that is.
    """

    config: Mapping[str, Any]
    sizes: Mapping[str, int]
    tune: Mapping[str, Any]
    ratio: float
    best: float
    best_tune: Mapping[str, Any]

    @property
    def regret(self) -> float:
        """How much longer the answer takes than the best one, as a part of that one's time."""
        return self.ratio / self.best - 1


def regrets(tuner: Tuner, table: TableFile) -> list[Regret]:
    """The regret of each answer for which a table has evidence.

    Raises:
        KernelwrightError: an answer cannot be built or measured.
    """
    bench = Bench(tuner.root, tuner.request.policy, tuner.origin.settings.environment)
    all_regrets: list[Regret] = []
    try:
        for choice in tuner.choices:
            config = table.of(choice.config)
            if config is not None and config.evidence:
                all_regrets += _Recheck(tuner, table, config, choice, bench).regrets()
    finally:
        bench.renew()
    if not all_regrets:
        raise SettingsError(
            "the table has no evidence to check", table.where(table.line), "measure it: kernelwright tune"
        )
    return all_regrets


class _Recheck:
    """The check of one config."""

    def __init__(self, tuner: Tuner, table: TableFile, config: TunedConfig, choice: Choice, bench: Bench) -> None:
        self._tuner, self._table, self._config, self._choice, self._bench = tuner, table, config, choice, bench
        self._candidates = tuner.candidates_of(choice)
        self._known = Kept(folder_of(tuner))
        self._built = self._build()

    def _build(self) -> dict[int, Built]:
        """The default and the answers; and all others, if there are timings that they may have."""
        used = {number_of(self._candidates, rule.tune) for rule in self._config.rules} | {DEFAULT}
        candidates = [c for c in self._candidates if c.number in used or self._known.has_timings]
        built: dict[int, Built] = {}
        for candidate, result in zip(candidates, self._tuner.workshop().build(candidates), strict=True):
            if not isinstance(result, KernelwrightError):
                built[candidate.number] = result
            elif candidate.number in used:
                raise result
        return built

    def _key(self, number: int, sizes: Mapping[str, int]) -> Key:
        built = self._built[number]
        return self._tuner.key(built, self._built[DEFAULT], sizes)

    def regrets(self) -> list[Regret]:
        """The regret at each combination of sizes that there is evidence for.

        Raises:
            SettingsError: the table names a size that the kernel does not have.
        """
        symbols = set(self._built[DEFAULT].request.signature.symbols)
        for named in ({*self._config.by}, *({*row.sizes} for row in self._config.evidence)):
            if unknown := sorted(named - symbols):
                where = self._table.where(self._config.line)
                raise SettingsError(f"{self._table.kernel} has no size {unknown[0]!r}", where, MEND)
        return [self._regret(row.sizes) for row in self._config.evidence]

    def _regret(self, sizes: Mapping[str, int]) -> Regret:
        number = number_of(self._candidates, self._config.answer(sizes))
        answer = self._measured(number, sizes)
        timings = {DEFAULT: DEFAULT_TIMING} | {n: timing for n in self._built if (timing := self._kept(n, sizes))}
        # What a run would not put in the answer's place is not better: its time was a matter of luck.
        better = {n: timing for n, timing in timings.items() if timing.beats(answer)} | {number: answer}
        best = min(better, key=lambda one: better[one].ratio)
        points = [candidate.tune for candidate in self._candidates]
        return Regret(self._choice.config, sizes, points[number], answer.ratio, better[best].ratio, points[best])

    def _kept(self, number: int, sizes: Mapping[str, int]) -> Timing | None:
        """What an earlier run has measured of a candidate to the end."""
        entry = self._known.get(self._key(number, sizes))
        return entry if entry and not entry.failed and len(entry.us) >= self._tuner.request.policy.rounds else None

    def _measured(self, number: int, sizes: Mapping[str, int]) -> Timing:
        """What is measured of a candidate now."""
        if number == DEFAULT:
            return DEFAULT_TIMING
        problems: list[KernelwrightError] = []
        again = Kept(folder_of(self._tuner), anew=True, writes=False)
        contest = Contest(
            *(self._bench, self._tuner.request.policy, again, self._key),
            out=lambda _, error: problems.append(error),
            step=lambda turns: None,
        )
        entry = contest.run({n: self._built[n] for n in (DEFAULT, number)}, sizes, float("inf"))[number]
        if problems:
            raise problems[0]
        return entry


def text_of(regret: Regret) -> str:
    """A line about a regret."""
    at = ", ".join(f"{name}={value}" for name, value in {**regret.config, **regret.sizes}.items())
    best = "" if same(regret.tune, regret.best_tune) else f", {words(regret.best_tune)} {regret.best:.3f}"
    return (
        f"{at}: {words(regret.tune)} takes {regret.ratio:.3f} of the default's time{best}: regret {regret.regret:.1%}"
    )


def words(point: Mapping[str, Any]) -> str:
    """A point in a line."""
    return " ".join(f"{name}={value}" for name, value in point.items()) or "no parameters"
