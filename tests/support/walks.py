"""How state machines of Hypothesis are run: a little as a rule, and much with ``KERNELWRIGHT_FUZZ=thorough``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hypothesis import HealthCheck, Verbosity, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

THOROUGH = os.environ.get("KERNELWRIGHT_FUZZ") == "thorough"


def walk(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Take random walks: the same ones in each run, or, in a thorough one, twenty times as many others."""
    chosen = settings(
        max_examples=examples * (20 if THOROUGH else 1),
        stateful_step_count=steps,
        derandomize=not THOROUGH,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal,
    )
    run_state_machine_as_test(machine, settings=chosen)


def spoil(paths: Iterable[Path], which: int, place: int, cut: bool) -> None:
    """Damage one of some files: flip a bit, or cut it off there. Both numbers may be larger than there are."""
    files = sorted(path for path in paths if path.is_file())
    if files:
        path = files[which % len(files)]
        data = bytearray(path.read_bytes())
        place %= max(1, len(data))
        if cut:
            del data[place:]
        elif data:
            data[place] ^= 1
        path.write_bytes(data)
