"""Runs compilers so that they are bounded in time and memory, and never outlive the build.

Each run happens in a runner process (``processes/tool_process.py``), which kills the compiler and all that it started
when the time is over or the build is gone. Callers are threads of the build, which only wait.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..core.errors import KernelwrightError, ToolError
from . import tool_process as tools
from .environment import place_for_shell, tool_environment
from .memory import MemoryGovernor
from .pool import WorkerPool
from .protocol import ToolRequest, ToolRun
from .tools import ToolCall, ToolResult
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
"""Seconds after a tool's time until its runner is taken for dead: a runner ends a late tool itself, and answers."""

KILLED = re.compile(r"died due to signal 9\b|Killed signal terminated program|terminated with signal 9\b")
"""How nvcc, gcc and collect2 say that a program of theirs was killed with SIGKILL."""

MEMORY, DISK = "memory", "room on its disk"
"""What a machine may lack, so that a tool fails whatever its input is."""


class OtherMachines(Protocol):
    """Machines that run tools for this one. Safe to use from several threads."""

    def run(self, call: ToolCall, here: Callable[[ToolCall], ToolResult]) -> ToolResult:
        """Run a tool on one of them, or here; see :meth:`ToolRunner.run`.

        Arguments:
            call: the run; it says what it needs elsewhere.
            here: runs it on this machine.
        """

    def close(self) -> None:
        """End all that they do for this process; a later run raises a WorkerError."""


class ToolRunner:
    """Runs tools, several at a time. Nothing is started before the first run. Safe to use from several threads.

    Arguments:
        size: largest number of runs at a time on this machine.
        project_root: the folder of the project.
        timeout_s: seconds that a run may take, once it has begun; a change applies to runs that begin after it.
        governor: says when a run may begin, and learns what it took.
        others: machines that can do some of the runs.
    """

    def __init__(
        self,
        size: int,
        project_root: Path,
        timeout_s: float,
        governor: MemoryGovernor,
        others: OtherMachines | None = None,
    ) -> None:
        self.project_root = project_root
        self.timeout_s = timeout_s
        self._governor = governor
        self._others = others
        self._pool = WorkerPool(size, project_root, kind=RUNNER)

    def run(self, call: ToolCall) -> ToolResult:
        """Run a compiler with a fixed environment, when there is memory for it.

        Raises:
            ToolError: it ended with an error; the message has its command and its output.
            ToolchainError: it cannot be started, or none of the other machines has it, or one answered nonsense.
            KernelwrightError: it took too long, and was ended.
            WorkerError: the process that runs it died, or the build is ending.
        """
        call = replace(call, timeout_s=self.timeout_s)
        if call.elsewhere is None or self._others is None:
            return self._run_here(call)
        return self._others.run(call, self._run_here)

    def _run_here(self, call: ToolCall) -> ToolResult:
        environment = tool_environment() | {"TMPDIR": place_for_shell(call.scratch, call.folder)}
        request = ToolRequest(list(call.command), str(call.folder), environment, call.timeout_s, call.where)
        return judged(call, self.attempt(request, call.kind, call.subject))

    def attempt(self, request: ToolRequest, kind: str, subject: str) -> ToolRun:
        """Run a tool here when there is memory for it, and say how it ended: the result of a :class:`ToolRequest`.

        Raises:
            ToolchainError: it cannot be started.
            WorkerError: the process that runs it died, or the build is ending.
        """
        with self._governor.reserve(kind, subject):
            answer = self._pool.call(request, request.timeout_s + GRACE_S)
        # Only of a run that succeeded: one that found an error in its input ended early.
        if answer.in_time and answer.status == 0:
            self._governor.learn(kind, subject, answer.peak_kib, answer.seconds, answer.cpu_seconds)
        return answer

    def save(self) -> None:
        """Write what this build measured, for the next one."""
        self._governor.save()

    def close(self) -> None:
        """End all runs now, with everything that they started; these, and any later one, raise a WorkerError."""
        if self._others is not None:
            self._others.close()
        self._pool.close()


def judged(call: ToolCall, answer: ToolRun) -> ToolResult:
    """The result of a run of a tool. Raises the error that it ended with."""
    if not answer.in_time:
        raise KernelwrightError(
            f"{call.called or call.command[0].rpartition('/')[2]} took longer than {call.timeout_s:g} s, and was ended",
            call.where,
            "raise the setting tool_timeout, or make the kernel smaller",
            f"$ {shlex.join(call.command)}\n{answer.output.strip() or '(no output)'}",
        )
    if answer.status != 0:
        # A tool that was killed, or had no room, says nothing about its input.
        remedies = {
            MEMORY: f"{OUT_OF_MEMORY}; or set memory_limit lower, or nvcc_memory higher",
            DISK: "make room on the disk, and try again",
        }
        remedy = remedies.get(lacked(answer), call.remedy)
        raise ToolError(call.command, answer.status, answer.output, call.where, remedy, call.called)
    return ToolResult(answer.output, answer.seconds, answer.cpu_seconds, answer.peak_kib)


def lacked(answer: ToolRun) -> str:
    """What a machine lacked, ``MEMORY`` or ``DISK``, if a tool failed for that reason and not for its input."""
    if answer.status == -9 or KILLED.search(answer.output):
        return MEMORY
    return DISK if os.strerror(errno.ENOSPC) in answer.output else ""
