"""What is seen of a running program, written to a file as it is seen, so that no end of the program takes it away.

All processes that the program forks write to the same file. Each note is a line of JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...core.converter import from_json, json_text
from ...core.errors import DefinitionError, KernelwrightError, Where
from ...core.records import decoded
from .recording import ChosenConfig, RecordedFunction, Recording, Specialization, merged
from .timings import WANTED

WHERE = Where(stage="record")

MOST = 10
"""Functions that are named if many were left out."""

MOST_UNTIMED = 4
"""Tuned calls without times that a message names."""


@dataclass(frozen=True)
class Note:
    """What is new.

    Arguments:
        process, calls: who says so, and how many calls of functions it has seen until then.
        name, function: ``module:name`` of a function, with a specialization or a choice; or nothing.
        problem: what cannot be recorded.
        left_out: the function that no build could find, with the reason.
        timed, untimed: a tuned call that took its config from times of Triton's tuner, or for which there were none.
    """

    process: int
    calls: int
    name: str = ""
    function: RecordedFunction | None = None
    problem: str = ""
    left_out: str = ""
    timed: str = ""
    untimed: str = ""


@dataclass(frozen=True)
class Seen:
    """All that was seen of a program.

    Arguments:
        recording: what it has asked for.
        calls: how many calls of functions there were, those of the tuner among them.
        problems: what cannot be recorded, each once and in order.
        left_out: the functions that no build could find, with the reasons, each once and in order.
        timed, untimed: the tuned calls that took their config from times of Triton's tuner, and those for which there
            were none, each once and in order.
    """

    recording: Recording = field(default_factory=dict)
    calls: int = 0
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()

    def with_more(self, other: Seen) -> Seen:
        """Both in one. If a function differs, it is that of the other one."""
        return Seen(
            merged(self.recording, other.recording),
            self.calls + other.calls,
            _once((*self.problems, *other.problems)),
            _once((*self.left_out, *other.left_out)),
            _once((*self.timed, *other.timed)),
            _once((*self.untimed, *other.untimed)),
        )

    def require_complete(self) -> None:
        """Raise a KernelwrightError if there was no call, or if there are some that cannot be recorded."""
        if not self.calls:
            remedy = "record a program that calls a function with @triton.jit in its own process"
            raise DefinitionError("no call of a function of Triton was seen", WHERE, remedy)
        if self.problems:
            remedy = "pass numbers, texts, None, dtypes of Triton, functions with @triton.jit, or tuples of them"
            raise DefinitionError("some calls cannot be recorded", WHERE, remedy, "\n".join(self.problems))
        if not self.recording:
            raise self.lack()

    def lack(self) -> DefinitionError:
        """The error, or the warning, about functions that no build could find."""
        more = len(self.left_out) - MOST
        lines = (*self.left_out[:MOST], *([f"and {more} more"] if more > 0 else []))
        message = "these functions are not recorded, because no build could import them"
        remedy = "move a function that you want in the package to the top of a module, in a file that stays"
        return DefinitionError(message, WHERE, remedy, "\n".join(lines))

    def require_timed(self, folder: str | Path) -> str:
        """A warning about tuned calls for which a folder has no times; empty: there is none.

        Raises:
            KernelwrightError: there were none for any call.
        """
        more = len(self.untimed) - MOST_UNTIMED
        lacking = "; ".join([*self.untimed[:MOST_UNTIMED], *([f"and {more} more"] if more > 0 else [])])
        text = f"{folder} has no times of {lacking or 'these calls'}"
        others = (
            "those of another arch, text, list of configs, environment, or release of Triton or Python do not count"
        )
        if not self.timed:
            raise KernelwrightError(f"{text}; {others}", WHERE, WANTED)
        return f"{text}, so the first config is taken; {others}" if lacking else ""


class Notes:
    """Writes down what is seen of a program.

    Arguments:
        arch: that which it is recorded for.
        file: where the notes are.
    """

    def __init__(self, arch: str, file: Path) -> None:
        self.arch = arch
        self._file = file
        self._process = 0
        self._start_counting()
        self._known: dict[str, tuple[Sequence[str], str]] = {}
        self._timed: set[tuple[str, bool]] = set()
        file.touch()

    @property
    def calls(self) -> int:
        """How many calls this process has made."""
        return self._calls

    @property
    def seen(self) -> Seen:
        """What was seen until now, by this process and those that it forked."""
        return seen_in(self._file)

    def _start_counting(self) -> None:
        """Begin at 0, also in a fork, which has the numbers of its parent."""
        if self._process != os.getpid():
            self._process, self._counter, self._calls = os.getpid(), itertools.count(1), 0

    def count(self) -> None:
        """Add a call."""
        self._start_counting()
        self._calls = next(self._counter)

    def note(self, name: str, parameters: Sequence[str], source: str, specialization: Specialization) -> None:
        """Add what was asked for of a function."""
        if self._known.setdefault(name, (parameters, source)) != (parameters, source):
            self.refuse(f"{name} is the name of two different functions")
            return
        self._add(name=name, function=RecordedFunction(tuple(parameters), source, (specialization,)))

    def refuse(self, problem: str) -> None:
        """Add a problem."""
        self._add(problem=problem)

    def leave_out(self, name: str, reason: str) -> None:
        """Add a function that no build could find."""
        self._add(left_out=f"{name} {reason}")

    def parameters_of(self, name: str) -> Sequence[str]:
        """Those of a function of which there is a note; otherwise none."""
        return self._known.get(name, ((), ""))[0]

    def choose(self, name: str, key: tuple[Any, ...], config: Mapping[str, Any]) -> None:
        """Add which config of a tuned function was the fastest."""
        parameters, source = self._known[name]
        choice = ChosenConfig(key, config, (self.arch,))
        self._add(name=name, function=RecordedFunction(tuple(parameters), source, (), (choice,)))

    def time(self, call: str, is_timed: bool) -> None:
        """Add whether Triton's tuner kept times of a tuned call."""
        if (call, is_timed) not in self._timed:
            self._timed.add((call, is_timed))
            self._add(**{"timed" if is_timed else "untimed": call})

    def end(self) -> None:
        """Add how many calls there were."""
        self._add()

    def _add(self, **more: Any) -> None:
        self._start_counting()
        line = json_text(Note(self._process, self._calls, **more)).encode()
        with contextlib.suppress(FileNotFoundError):  # a process may outlive the recording
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND)
            try:
                # Lines of other processes come in between, and what a killed process has begun is a line of its own.
                os.write(file, b"\n" + line + b"\n")
            finally:
                os.close(file)


def seen_in(file: Path) -> Seen:
    """What the notes in a file say together."""
    notes = list(_notes_in(file.read_bytes().splitlines()))
    calls: dict[int, int] = {}
    parts: dict[str, list[RecordedFunction]] = {}
    for note in notes:
        calls[note.process] = max(note.calls, calls.get(note.process, 0))
        if note.function is not None:
            parts.setdefault(note.name, []).append(note.function)
    return Seen(
        merged({}, {name: _joined(functions) for name, functions in parts.items()}),
        sum(calls.values()),
        _once(note.problem for note in notes),
        _once(note.left_out for note in notes),
        _once(note.timed for note in notes),
        _once(note.untimed for note in notes),
    )


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    """Those that are not empty, each once and in order."""
    return tuple(dict.fromkeys(filter(None, texts)))


def _notes_in(lines: Iterable[bytes]) -> Iterable[Note]:
    for line in lines:
        with contextlib.suppress(ValueError):  # a killed process may have written half a line
            yield from [from_json(Note, decoded(line))] if line else []


def _joined(functions: Sequence[RecordedFunction]) -> RecordedFunction:
    """What several notes say of a function."""
    specializations = tuple(one for function in functions for one in function.specializations)
    choices = tuple(one for function in functions for one in function.choices)
    return replace(functions[0], specializations=specializations, choices=choices)
