"""Strict mode: what a definition must not do, and which of its lines did it.

A definition must depend only on the files that it imports or declares. If the answer of the network or of a started
process changes, nothing is rebuilt.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.errors import DefinitionError, Where
from ..core.project import MACHINE, Culprit, Installation, Project, callers, culprit_of

MAX_TEXT = 200
"""How many characters of a command an error shows."""

MAX_MORE = 20
"""How many findings an error lists besides the first."""


@dataclass(frozen=True)
class Finding:
    """Something that a definition must not do in strict mode.

    Arguments:
        text: what it does, such as ``starts a process: uname``.
        remedy: what to do about it.
        location: ``path:line`` of the user's innermost line; None if no line of the user's is known.
        name: the file that it read without declaring it; None for what no declaration allows.
    """

    text: str
    remedy: str
    location: str | None = None
    name: str | None = None


Findings = dict[Finding, None]
"""Findings in their order, each once."""


class Strict:
    """Judges what a strict definition does.

    Arguments:
        project, installation: tell which files are the user's, and which are installed.
    """

    def __init__(self, project: Project, installation: Installation) -> None:
        self._project = project
        self._installation = installation

    def note_event(self, findings: Findings, event: str, arguments: Sequence[Any]) -> None:
        """Note the start of a process, or a use of the network, if that is what the audit event tells."""
        describe = FORBIDDEN_EVENTS.get(event)
        if describe is not None and not (event == "socket.sendmsg" and arguments[1] is None):  # connected: noted then
            remedy = 'leave it out, or keep its answer in a file of the project, declared with @kernel(reads=["..."])'
            self._note(findings, self._culprit(), Finding(describe(arguments), remedy))

    def note_machine(self, findings: Findings, text: str) -> None:
        """Note that a definition asks for what differs from machine to machine."""
        self._note(findings, self._culprit(), Finding(text, "leave it out, or make it a parameter of the definition"))

    def note_undeclared(self, findings: Findings, name: str) -> None:
        """Note that a user's file is read; only at the end is it known whether it is declared."""
        text = f"reads {name}, which is neither imported nor declared"
        self._note(findings, self._culprit(), Finding(text, "", name=name))

    def note_outside(self, findings: Findings, verb: str, path: str) -> None:
        """Note that something without lasting content is read or listed, unless an installed package does so."""
        culprit = self._culprit()
        of_package = culprit is not None and culprit.by_package and (path + os.sep).startswith(MACHINE)
        if not of_package and not self._installation.has(path):
            remedy = 'keep what it says in a file of the project, declared with @kernel(reads=["..."]), or leave it out'
            self._note(findings, culprit, Finding(f"{verb} {path}, which the system makes up when it is read", remedy))

    def error(
        self, findings: Findings, declared: set[str], file: str, subject: str, where: Where
    ) -> DefinitionError | None:
        """The error for what a definition must not do, or None if all of it is declared.

        Arguments:
            declared: names of the files that it declares.
            file: the definition file, relative to the project root.
            subject: what did it, such as ``the definition of gemm``.
            where: the place of the error if no line of the project is known.
        """
        forbidden = [finding for finding in findings if finding.name is None or finding.name not in declared]
        if not forbidden:
            return None
        first, *more = forbidden
        lines = [f"{self._project.location(finding.location) or file}: {finding.text}" for finding in more[:MAX_MORE]]
        return DefinitionError(
            f"{subject} {first.text} (strict mode)",
            replace(where, location=self._project.location(first.location) or where.location),
            first.remedy or _declaration(first.name or "", file),
            "\n".join(["it also does this:", *lines]) if lines else None,
        )

    def is_by_project(self) -> bool:
        """Whether a line of the user's is among the callers."""
        return any(self._is_users(frame.f_code.co_filename) for frame in _callers())

    def is_own_doing(self) -> bool:
        """Whether this is more than what an installed module does while it is imported."""
        return self._culprit() is not None

    def _is_users(self, file: str) -> bool:
        return self._project.name(file, self._installation) is not None

    @staticmethod
    def _note(findings: Findings, culprit: Culprit | None, finding: Finding) -> None:
        if culprit is not None:
            findings[replace(finding, location=culprit.location)] = None

    def _culprit(self) -> Culprit | None:
        return culprit_of(_callers(), self._project, self._installation)


def _callers() -> Iterator[FrameType]:
    """The callers, from the innermost up to the worker's server: the start of that is not the user's doing."""
    return itertools.takewhile(lambda frame: frame.f_code.co_filename != _SERVER, callers())


_SERVER = str(Path(__file__).with_name("server.py"))


def _declaration(name: str, file: str) -> str:
    path = name if name.startswith("/") else posixpath.relpath(name, posixpath.dirname(file) or ".")
    return f'declare it with @kernel(reads=["{path}"]), or leave it out'


def _process(command: Any) -> str:
    words = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
    return f"starts a process: {shlex.join(os.fsdecode(word) for word in words)[:MAX_TEXT]}"


def _connection(address: Any) -> str:
    return f"opens a network connection to {_address(address)}"


def _address(address: Any) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else repr(address)


def _lookup(host: Any) -> str:
    return f"looks up the network host {os.fsdecode(host) if isinstance(host, bytes) else host}"


FORBIDDEN_EVENTS: Mapping[str, Callable[[Sequence[Any]], str]] = {
    "subprocess.Popen": lambda arguments: _process(arguments[1]),
    "os.system": lambda arguments: _process(arguments[0]),
    "os.exec": lambda arguments: _process(arguments[1]),
    "os.posix_spawn": lambda arguments: _process(arguments[1]),
    "os.fork": lambda arguments: _process("os.fork"),
    "os.forkpty": lambda arguments: _process("os.forkpty"),
    "pty.spawn": lambda arguments: _process(arguments[0]),
    "socket.connect": lambda arguments: _connection(arguments[1]),
    "socket.bind": lambda arguments: f"waits for the network at {_address(arguments[1])}",
    "socket.sendto": lambda arguments: _connection(arguments[1]),
    "socket.sendmsg": lambda arguments: _connection(arguments[1]),
    "socket.getaddrinfo": lambda arguments: _lookup(arguments[0]),
    "socket.gethostbyname": lambda arguments: _lookup(arguments[0]),
    "socket.gethostbyaddr": lambda arguments: _lookup(arguments[0]),
    "socket.getnameinfo": lambda arguments: _lookup(_address(arguments[0])),
}
"""Audit events that strict mode never allows -> what they mean, given their arguments."""


__all__ = ["Finding", "Findings", "Strict"]
