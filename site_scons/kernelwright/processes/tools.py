"""Runs of tools, for all code that needs a compiler: the request, its result, and the interface of what runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

from ..core.errors import Where


@dataclass(frozen=True)
class SharedTool:
    """A tool that other machines may have as well.

    Arguments:
        name: ``nvcc``, ``nvrtc`` or ``cc``.
        version: for people.
        identity: digest of everything that decides what it makes, without paths: equal identities mean equal results.
        places: what commands have in place of a path -> the path on this machine.
    """

    name: str
    version: str
    identity: str
    places: Mapping[str, str]


@dataclass(frozen=True)
class Elsewhere:
    """What a run needs on another machine.

    Arguments:
        tool: what is run. It brings its own headers and libraries.
        inputs: all other files that the run reads, absolute paths below its folder or its folder for temporary files.
        outputs: the files that it makes in the folder for temporary files, absolute paths.
        command: the command, if it is another one than here; empty: it is the same.
    """

    tool: SharedTool
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolCall:
    """A run of a tool, as a stage asks for it.

    Arguments:
        command: path of the executable, and its arguments.
        folder: the folder that it runs in.
        scratch: the folder for its temporary files.
        where: the place for error messages.
        remedy: what to do if it finds an error in its input.
        kind: ``nvcc``, ``cc`` or ``link``; with ``subject``, for the measurements of memory.
        subject: what it makes; the same in every build.
        elsewhere: what another machine would need for this run; None: it has to run here.
        called: what messages call it, if the command is a shell or an interpreter that runs it for us.
        timeout_s: seconds that it may take, once it has begun; the :class:`ToolRunner` sets them.
    """

    command: Sequence[str]
    folder: Path
    scratch: Path
    where: Where
    remedy: str
    _: KW_ONLY
    kind: str
    subject: str
    elsewhere: Elsewhere | None = None
    called: str = ""
    timeout_s: float = 0.0


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
    """The result of several runs, one after the other, as if they were one."""
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

    def run(self, call: ToolCall) -> ToolResult:
        """Run a tool; see :meth:`ToolRunner.run`."""
