"""The candidates of one config at one combination of sizes: who has how many turns, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..core.errors import KernelwrightError
from ..state.tuning_result import DEFAULT
from .bench import Bench, Turn
from .candidates import Built
from .kept import Entry, Kept, Key
from .policy import Policy

RECENT = 50
"""Turns whose time is looked at to estimate that of the next ones."""

OVERHEAD = 2.0
"""How much longer than its batches a turn takes, before one was seen."""

KeyOf = Callable[[int, Mapping[str, int]], Key]


@dataclass(frozen=True)
class Contest:
    """Measures candidates beside the default.

    Arguments:
        bench: gives them turns.
        policy: how many.
        kept: the timings of earlier runs, and of this one.
        key_of: what the timing of a candidate at some sizes is kept under.
        out: called with a candidate that failed and the reason.
        step: called after each round of a group.
    """

    bench: Bench
    policy: Policy
    kept: Kept
    key_of: KeyOf
    out: Callable[[int, KernelwrightError], None]
    step: Callable[[int], None]

    def run(
        self, built: Mapping[int, Built], sizes: Mapping[str, int], left_s: float, standing: int = DEFAULT
    ) -> dict[int, Entry]:
        """What is known of each candidate in the end; of those that there was no time for, nothing.

        If not all can have all their turns in the time that is left, each has one, the slower half is left out, and so
        on until the rest fits: successive halving. Where not even one turn each fits, those at the end have none. The
        answer that stands comes first and is never left out: without a timing it could not stay the answer.

        Arguments:
            built: the candidates in the order in which they are measured, the default among them.
            left_s: seconds.
            standing: the answer that the present table has.

        Raises:
            KernelwrightError: the default cannot be measured at these sizes.
        """
        deadline = time.monotonic() + left_s
        entries = {number: entry for number in built if (entry := self._final(number, sizes)) is not None}
        waiting = [number for number in built if number not in (DEFAULT, *entries)]
        waiting.sort(key=lambda number: number != standing)
        done = 0
        while waiting and done < self.policy.rounds:
            rest = self.policy.rounds - done
            turns = self._turns_until(deadline)
            fits = len(waiting) * rest <= turns
            if not fits and not done:
                waiting = waiting[: max(1, int(turns))]
            rounds = rest if fits or len(waiting) == 1 else 1
            for group in _chunks(waiting, self.policy.group):
                self._measure(group, built, sizes, rounds, entries)
            done += rounds
            alive = [n for n in waiting if self._goes_on(entries[n])]
            alive.sort(key=lambda n: (n != standing, entries[n].ratio))
            waiting = alive if done == self.policy.rounds else alive[: (len(alive) + 1) // 2]
        if DEFAULT not in entries:
            entries[DEFAULT] = self._of_default(built, sizes, entries)
        return entries

    def confirm(
        self, numbers: Sequence[int], built: Mapping[int, Built], sizes: Mapping[str, int], entries: dict[int, Entry]
    ) -> None:
        """Give some candidates more turns, beside the default, and add them to those that they had.

        Raises:
            KernelwrightError: the default cannot be measured any more.
        """
        self._measure(numbers, built, sizes, self.policy.confirm, entries)

    def _turns_until(self, deadline: float) -> float:
        """How many turns there is time for, besides those of the default."""
        recent = self.bench.seconds[-RECENT:]
        turn_s = median(recent) if recent else OVERHEAD * self.policy.batches * self.policy.batch_us / 1e6
        return (deadline - time.monotonic()) / turn_s / (1 + 1 / self.policy.group)

    def _final(self, number: int, sizes: Mapping[str, int]) -> Entry | None:
        """What an earlier run has found out about a candidate, if no turn is missing."""
        entry = self.kept.get(self.key_of(number, sizes))
        return entry if self.is_complete(entry) or (entry and not self._goes_on(entry)) else None

    def is_complete(self, entry: Entry | None) -> bool:
        """Whether a candidate had all its turns."""
        return entry is not None and not entry.failed and len(entry.us) >= self.policy.rounds

    def _goes_on(self, entry: Entry) -> bool:
        return not entry.failed and (entry.is_noisy or entry.ratio <= self.policy.drop)

    def _measure(
        self,
        group: Sequence[int],
        built: Mapping[int, Built],
        sizes: Mapping[str, int],
        rounds: int,
        entries: dict[int, Entry],
    ) -> None:
        """Give each of a group its turns in some rounds, beside the default, and keep what came of it."""
        alive = list(group)
        for _ in range(rounds):
            default = self.bench.turn(built[DEFAULT], sizes)
            for number in list(alive):
                entries[number] = self._after(entries.get(number, Entry()), built[number], sizes, default)
                if not self._goes_on(entries[number]):
                    alive.remove(number)
            self.step(len(group))
        for number in group:
            self.kept.put(self.key_of(number, sizes), entries[number])

    def _after(self, before: Entry, built: Built, sizes: Mapping[str, int], default: Turn) -> Entry:
        """An entry with one more round."""
        try:
            turn = self.bench.turn(built, sizes)
        except KernelwrightError as error:
            self.out(built.candidate.number, error)
            return replace(before, failed=error.message)
        clocks = [mhz for mhz in (*before.clock_mhz, turn.clock_mhz) if mhz]
        return Entry(
            (*before.us, turn.us),
            (*before.default_us, default.us),
            _flags((*(before.noisy or (False,) * len(before.us)), turn.noisy or default.noisy)),
            (*before.warm_us, turn.warm_us) if turn.warm_us else (),
            (min(clocks), max(clocks)) if clocks else (),
        )

    def _of_default(self, built: Mapping[int, Built], sizes: Mapping[str, int], entries: Mapping[int, Entry]) -> Entry:
        """The timing of the default: that beside other candidates, or else one of its own."""
        rounds = self.policy.rounds
        beside = next((entry.default_us[:rounds] for entry in entries.values() if len(entry.us) >= rounds), None)
        if beside is not None:
            return Entry(beside, beside)
        turns = [self.bench.turn(built[DEFAULT], sizes) for _ in range(rounds)]
        times = tuple(turn.us for turn in turns)
        warm, noisy = tuple(turn.warm_us for turn in turns if turn.warm_us), _flags(turn.noisy for turn in turns)
        entry = Entry(times, times, noisy, warm)
        self.kept.put(self.key_of(DEFAULT, sizes), entry)
        return entry


def _flags(values: Iterable[bool]) -> tuple[bool, ...]:
    """Which rounds are noisy; empty: none is."""
    flags = tuple(values)
    return flags if any(flags) else ()


def _chunks(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))
