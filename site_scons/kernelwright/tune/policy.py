"""How is measured: what every number of a table rests on. Its text is a part of each table and of each kept timing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

VARIABLE = "KERNELWRIGHT_TEST_TUNE"
"""The variable with which our tests make it short: JSON with some of the fields."""


@dataclass(frozen=True)
class Policy:
    """How is measured.

    Arguments:
        rounds: how often each candidate has its turn. In a round the default comes first, and then each candidate of
            the group, so that a slow minute hits all of them.
        confirm: how many more turns, in another process, a candidate has that would change an answer, and the one that
            stands. Where memory lies in a process makes some code a few percent slower in all rounds of it.
        group: candidates that are measured in turns with one default.
        batches: batches of a turn, fewer if calls take long; the fastest one counts, because nothing makes code faster
            than it is.
        batch_us: microseconds that a batch takes at least: as many calls as that needs.
        waiting: the part of a batch's time that its threads may have waited for a CPU; with more it does not count.
        drop: a candidate that takes more than so many times the default's time in its first round has no second one.
        limit_s: seconds that a turn may take, with loading, comparing and warming up; then the process is ended.
    """

    rounds: int = 5
    confirm: int = 5
    group: int = 8
    batches: int = 20
    batch_us: int = 1000
    waiting: float = 0.02
    drop: float = 2.0
    limit_s: float = 120.0

    @property
    def text(self) -> str:
        """The policy as tables have it."""
        return (
            f"3: {self.rounds} rounds, and {self.confirm} in another process for what changes an answer; "
            f"fastest of {self.batches} batches of {self.batch_us} us, or of fewer in 0.2 s; "
            "CPU: pinned threads, warm caches, "
            f"no batch that waited for a CPU for over {self.waiting:.0%} of its time; "
            "CUDA: events, L2 flushed at each call"
        )

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Policy:
        """The policy, as our tests may have changed it."""
        given = json.loads(environment.get(VARIABLE) or "{}")
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
