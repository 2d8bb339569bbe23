"""Runs compilers so that they are bounded in time and memory, and never outlive the build.

Each run happens in a runner process (``processes/tool_process.py``), which kills the compiler and all that it started
when the time is over or the build is gone. Callers are threads of the build, which only wait.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.errors import KernelwrightError, ToolError, Where
from . import tool_process as tools
from .elsewhere import Elsewhere
from .environment import place_for_shell, tool_environment
from .memory import MemoryGovernor
from .pool import WorkerPool
from .protocol import ToolRequest, ToolRun
from .worker import OUT_OF_MEMORY, WorkerKind

RUNNER = WorkerKind(
    "the process that runs compilers",
    # As a file, isolated (-I), without site-packages (-S), and without writing bytecode (-B).
    ("-I", "-S", "-B", tools.__file__),
    "report this as a defect of Kernelwright",
    "report this as a defect of Kernelwright",
    "report this as a defect of Kernelwright",
)
"""The processes that run compilers."""

GRACE_S = 30.0
"""Seconds more than the tool has, after which a runner is taken for dead; it ends a tool that is late by itself."""

KILLED = re.compile(r"died due to signal 9\b|Killed signal terminated program|terminated with signal 9\b")
"""How nvcc, gcc and collect2 say that a program of theirs was killed with SIGKILL."""

MEMORY, DISK = "memory", "room on its disk"
"""What a machine may lack, so that a tool fails whatever its input is."""


@dataclass(frozen=True)
class ToolResult:
    """What a run of a tool that succeeded gave.

    Arguments:
        output: what it printed, both streams together.
        seconds: time that it took.
        cpu_seconds: time that it and its children spent on a CPU.
        peak_kib: KiB of memory that the largest of its processes had.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_kib: int


def together(results: Sequence[ToolResult]) -> ToolResult:
    """Runs one after the other, as one."""
    return ToolResult(
        "".join(result.output for result in results),
        sum(result.seconds for result in results),
        sum(result.cpu_seconds for result in results),
        max(result.peak_kib for result in results),
    )


class RunsTools(Protocol):
    """What runs tools: a :class:`ToolRunner`, or something like it."""

    @property
    def project_root(self) -> Path:
        """The folder of the project."""

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        scratch: Path,
        where: Where,
        remedy: str,
        *,
        kind: str,
        subject: str,
        elsewhere: Elsewhere | None = None,
        called: str = "",
    ) -> ToolResult:
        """Run a tool; see :meth:`ToolRunner.run`."""


class ToolRunner:
    """Runs tools, several at a time. Nothing is started before the first run. Safe to use from several threads.

    Arguments:
        size: largest number of runs at a time.
        project_root: the folder of the project.
        timeout_s: seconds that a run may take, once it has begun.
        governor: says when a run may begin, and learns what it took.
        python: the interpreter of the runner processes.
    """

    def __init__(
        self, size: int, project_root: Path, timeout_s: float, governor: MemoryGovernor, python: str = sys.executable
    ) -> None:
        self.project_root = project_root
        self._governor = governor
        self._pool = WorkerPool(size, project_root, python=python, kind=RUNNER)
        self.timeout_s = timeout_s

    @property
    def timeout_s(self) -> float:
        """Seconds that a run may take; a change applies to runs that begin after it."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self._timeout_s = value
        self._pool.timeout_s = value + GRACE_S

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        scratch: Path,
        where: Where,
        remedy: str,
        *,
        kind: str,
        subject: str,
        elsewhere: Elsewhere | None = None,
        called: str = "",
    ) -> ToolResult:
        """Run a compiler with a fixed environment, when there is memory for it.

        Arguments:
            command: path of the executable, and its arguments.
            folder: the folder that it runs in.
            scratch: the folder for its temporary files.
            where: the place for error messages.
            remedy: what to do if it finds an error in its input.
            kind: ``nvcc``, ``cc`` or ``link``; with ``subject``, for the measurements of memory.
            subject: what it makes; the same in every build.
            elsewhere: what another machine would need for this run; None: it has to be here.
            called: what messages call it, where the command is a shell's or an interpreter's that runs it for us.

        Raises:
            ToolError: it ended with an error; the message has its command and its output.
            ToolchainError: it cannot be started.
            KernelwrightError: it took too long, and was ended.
            WorkerError: the process that runs it died, or the build is ending.
        """
        environment = tool_environment() | {"TMPDIR": place_for_shell(scratch, folder)}
        request = ToolRequest(list(command), str(folder), environment, self.timeout_s, where)
        return judged(command, self.attempt(request, kind, subject), request.timeout_s, where, remedy, called)

    def attempt(self, request: ToolRequest, kind: str, subject: str) -> ToolRun:
        """Run a tool when there is memory for it, and say how it ended: the result of a :class:`ToolRequest`.

        Raises:
            ToolchainError: it cannot be started.
            WorkerError: the process that runs it died, or the build is ending.
        """
        with self._governor.reserve(kind, subject):
            answer = self._pool.call(request)
        # Only of a run that succeeded: one that found an error in its input ended early.
        if answer.in_time and answer.status == 0:
            self._governor.learn(kind, subject, answer.peak_kib, answer.seconds, answer.cpu_seconds)
        return answer

    def save(self) -> None:
        """Write what this build measured, for the next one."""
        self._governor.save()

    def close(self) -> None:
        """End all runs now, with everything that they started; these, and any later one, raise a WorkerError."""
        self._pool.close()


def judged(
    command: Sequence[str], answer: ToolRun, timeout_s: float, where: Where, remedy: str, called: str = ""
) -> ToolResult:
    """What a run of a tool gave, or the error that it ended with; the arguments are those of :meth:`ToolRunner.run`.

    Arguments:
        answer: the result of a :class:`ToolRequest`.
        timeout_s: seconds that the run had.
    """
    if not answer.in_time:
        raise _late(command, timeout_s, answer.output, where, called)
    if answer.status != 0:
        raise _failure(command, answer, where, remedy, called)
    return ToolResult(answer.output, answer.seconds, answer.cpu_seconds, answer.peak_kib)


def _late(command: Sequence[str], timeout_s: float, output: str, where: Where, called: str) -> KernelwrightError:
    name = called or command[0].rpartition("/")[2]
    return KernelwrightError(
        f"{name} took longer than {timeout_s:g} s, and was ended",
        where,
        "raise the setting tool_timeout, or make the kernel smaller",
        f"$ {shlex.join(command)}\n{output.strip() or '(no output)'}",
    )


def _failure(command: Sequence[str], answer: ToolRun, where: Where, remedy: str, called: str) -> ToolError:
    """The error of a tool that failed; one that was killed, or had no room, says nothing about its input."""
    remedies = {
        MEMORY: f"{OUT_OF_MEMORY}; or set memory_limit lower, or nvcc_memory higher",
        DISK: "make room on the disk, and try again",
    }
    chosen = remedies.get(lacked(answer), remedy)
    return ToolError(command, answer.status, answer.output, where, chosen, called)


def lacked(answer: ToolRun) -> str:
    """What a machine lacked, ``MEMORY`` or ``DISK``, if a tool failed for that reason and not for its input."""
    if answer.status == -9 or KILLED.search(answer.output):
        return MEMORY
    return DISK if os.strerror(errno.ENOSPC) in answer.output else ""
