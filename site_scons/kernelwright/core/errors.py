"""The one exception hierarchy: every failure that a user can cause is a KernelwrightError."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST_SHOWN = 500
"""Characters of a user's value that a message shows."""


@dataclass(frozen=True)
class Where:
    """The place in the pipeline that an error belongs to; unknown parts stay None.

    Arguments:
        kernel: name of the kernel.
        variant: slug of the variant.
        stage: ``settings``, ``discover``, ``lower``, ``nvcc``, ``nvrtc``, ``wrap``, ``compile``, ``link``,
            ``assemble``, ``check`` or ``tuning``.
        location: ``path:line`` in the user's own source.
    """

    kernel: str | None = None
    variant: str | None = None
    stage: str | None = None
    location: str | None = None

    def __str__(self) -> str:
        subject = "/".join(part for part in (self.kernel, self.variant) if part)
        stage = f"[{self.stage}]" if self.stage else ""
        return " ".join(part for part in (printable(self.location or ""), subject, stage) if part)


def shown(value: object) -> str:
    """What a user gave, for a message: not too long, and never an error itself, which ``repr`` may be."""
    try:
        text = repr(value)
    except Exception:  # of a class of the user's, or of an integer with thousands of digits
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def text_of(error: BaseException) -> str:
    """What an exception of code that is not ours says of itself."""
    try:
        return str(error)
    except Exception as failure:  # its class is not ours, either
        return f"(it has no text: its __str__ raised {type(failure).__name__})"


def one_of(given: str, listing: str, known: Iterable[str]) -> str:
    """What to do about a name that there is not: the nearest one that there is, and all of them behind a text."""
    from difflib import get_close_matches  # runs without a mistake need none

    names = list(known)
    near = get_close_matches(given, names, 1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}{listing} {', '.join(names)}"


def printable(text: str) -> str:
    """A name of a file as a line of output can have it: with escapes if it has line breaks or other control codes."""
    return text if text.isprintable() else ascii(text)[1:-1]


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: control characters other than newline and tab, and changes of the
direction of writing. And halves of characters, which no file can hold."""


def escaped(text: str) -> str:
    """What a program printed, for a terminal: with escapes in place of control characters."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def is_text(text: str) -> bool:
    """Whether a string can be written to a file and given to a program: it has no NUL and no half of a character."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False


class KernelwrightError(Exception):
    """A failure with a place, a cause and a remedy.

    Arguments:
        message: what is wrong, in one sentence.
        where: the place it belongs to.
        remedy: what the user can do about it, or None when the message already says so.
        detail: longer text shown indented below (a compiler's output, a user's own traceback).
    """

    def __init__(
        self, message: str, where: Where | None = None, remedy: str | None = None, detail: str | None = None
    ) -> None:
        message = escaped(message)  # in it, and in the detail, may be what a definition or a compiler printed
        super().__init__(message)
        self.message = message
        self.where = where or Where()
        self.remedy = None if remedy is None else escaped(remedy)
        self.detail = None if detail is None else escaped(detail)

    def __str__(self) -> str:
        place = str(self.where)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.detail:
            lines += ["    " + line for line in self.detail.rstrip().splitlines()]
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


def refused(error: OSError, where: Where | None = None, place: str = "") -> KernelwrightError:
    """The error for what the operating system did not do.

    Arguments:
        error: what it said.
        where: the place in the pipeline.
        place: the path to name if the error has none, as when a disk is full.
    """
    path = error.filename or place
    message = f"the operating system said: {error.strerror or error}{f' ({path})' if path else ''}"
    return KernelwrightError(message, where, "mend that and try again")


class SettingsError(KernelwrightError):
    """A value in pyproject.toml, on the command line or in a build file is not valid."""


class DefinitionError(KernelwrightError):
    """A definition file, or a decorator in it, is not valid."""


class EditedError(DefinitionError):
    """A file of a definition is not what it was when its kernels were discovered: they have to be discovered again."""


class UnimplementedError(DefinitionError):
    """Code that a definition has called raised NotImplementedError: an interpreter does so for what it cannot run."""


class LoweringError(KernelwrightError):
    """A kernel function could not be scheduled or lowered."""


class ToolchainError(KernelwrightError):
    """A compiler is missing, broken, or does not fit the others."""


class WorkerError(KernelwrightError):
    """A worker process died, timed out or answered nonsense."""


class CheckError(KernelwrightError):
    """A built variant does not agree with its reference."""


class ToolError(KernelwrightError):
    """An external program ended with an error.

    Arguments:
        command: the argument vector that was run.
        status: its exit status (negative: the signal that ended it).
        output: what it printed, both streams together.
        where, remedy: as for :class:`KernelwrightError`.
        called: what the user calls the program; empty: as its file is called.
    """

    def __init__(
        self,
        command: Sequence[str],
        status: int,
        output: str,
        where: Where,
        remedy: str | None = None,
        called: str = "",
    ) -> None:
        import shlex

        ending = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        text = f"$ {shlex.join(command)}\n{output.strip() or '(no output)'}"
        super().__init__(f"{called or command[0].rsplit('/', 1)[-1]} {ending}", where, remedy, text)
        self.command = tuple(command)
        self.status = status
