"""Runs nvdisasm: the machine code of a cubin as text, which NVIDIA calls SASS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import Where
from ..core.request import ASIDE
from ..processes.tools import RunsTools, ToolCall, ToolResult
from .nvdisasm import Nvdisasm

TO_FILE = 'exec "$1" --print-code "$2" > "$3"'
"""What the shell runs. nvdisasm (13.2) only prints; what a tool prints is bounded, and has its warnings in it."""


@dataclass(frozen=True)
class SassJob:
    """One run of nvdisasm.

    Arguments:
        arch: that of the cubin.
        cubin: the cubin; nvdisasm runs in its folder.
        where: the place for error messages.
    """

    arch: str
    cubin: Path = field(metadata=ASIDE)
    where: Where = field(metadata=ASIDE)

    @property
    def output(self) -> str:
        """Name of the file that :func:`disassemble` makes."""
        return f"{self.arch}.sass"


def disassemble(job: SassJob, nvdisasm: Nvdisasm, scratch: Path, tools: RunsTools, subject: str) -> ToolResult:
    """Disassemble a cubin, and leave the text in ``scratch``.

    Raises:
        KernelwrightError: as :meth:`ToolRunner.run`.
    """
    folder, name = job.cubin.parent, job.cubin.name
    command = ["/bin/sh", "-c", TO_FILE, "nvdisasm", nvdisasm.path, name, str(scratch / job.output)]
    remedy = f"the cubin is {job.cubin}, and nvdisasm is {nvdisasm.version}; an older one may not know {job.arch}"
    # The user has not asked for a shell.
    given = (command, folder, scratch, job.where, remedy)
    return tools.run(ToolCall(*given, kind="nvdisasm", subject=subject, called="nvdisasm"))
