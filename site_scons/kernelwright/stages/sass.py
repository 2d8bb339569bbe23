"""SASS: nvdisasm shows the machine code of a cubin as text, for readers. It is made only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..toolchain.nvdisasm import Nvdisasm
from ..toolchain.sass import SassJob, disassemble
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Disassembly:
    """What is shown as text, and by what."""

    job: SassJob
    nvdisasm: Nvdisasm

    @property
    def arch(self) -> str:
        """The arch of the cubin."""
        return self.job.arch

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Disassemble the cubin."""
        if not self.job.cubin.stat().st_size:  # see left_out.py
            (scratch / self.job.output).touch()
            return
        stage.took(disassemble(self.job, self.nvdisasm, scratch, stage.tools, stage.stage.subject))


def make(kernel: KernelContext, slug: str, cubin: str, arch: str) -> Stage:
    """The stage that disassembles a cubin, whose path is given: ``sm_90a.sass`` beside it.

    Raises:
        ToolchainError: there is no nvdisasm.
    """
    job = SassJob(arch, Path(cubin), kernel.where("nvdisasm", slug))
    subject, request = f"{kernel.name}/{slug} {arch}", Disassembly(job, kernel.tools.nvdisasm)
    outputs = files_in(job.cubin.parent, (job.output,))
    return Stage("SASS", subject, job.where, request, outputs, [cubin], archs=(arch,), shipped=False)
