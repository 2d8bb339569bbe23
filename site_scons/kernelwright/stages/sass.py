"""SASS: nvdisasm shows the machine code of a cubin as text, for readers. It is made only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.request import ASIDE
from ..toolchain.nvdisasm import Nvdisasm
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun

TO_FILE = 'exec "$1" --print-code "$2" > "$3"'
"""What the shell runs. nvdisasm (13.2) only prints; what a tool prints is bounded, and has its warnings in it."""


@dataclass(frozen=True)
class Disassembly:
    """What is shown as text, and by what.

    Arguments:
        arch: that of the cubin.
        nvdisasm: it runs in the cubin's folder.
    """

    arch: str
    nvdisasm: Nvdisasm
    cubin: Path = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Disassemble the cubin."""
        cubin, output = self.cubin, scratch / f"{self.arch}.sass"
        if not cubin.stat().st_size:  # see left_out.py
            output.touch()
            return
        command = ["/bin/sh", "-c", TO_FILE, "nvdisasm", self.nvdisasm.path, cubin.name, str(output)]
        remedy = f"the cubin is {cubin}, and nvdisasm is {self.nvdisasm.version}; an older one may not know {self.arch}"
        stage.tool(command, cubin.parent, scratch, remedy, kind="nvdisasm", called="nvdisasm")


def make(kernel: KernelContext, slug: str, cubin: str, arch: str) -> Stage:
    """The stage that disassembles a cubin, whose path is given: ``sm_90a.sass`` beside it.

    Raises:
        ToolchainError: there is no nvdisasm.
    """
    request, where = Disassembly(arch, kernel.tools.nvdisasm, Path(cubin)), kernel.where("nvdisasm", slug)
    outputs, subject = files_in(request.cubin.parent, (f"{arch}.sass",)), f"{kernel.name}/{slug} {arch}"
    return Stage("SASS", subject, where, request, outputs, [cubin], archs=(arch,), shipped=False)
