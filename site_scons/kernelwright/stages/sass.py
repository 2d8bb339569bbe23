"""SASS: nvdisasm shows the machine code of a cubin as text, for readers. It is made only when it is asked for."""

from __future__ import annotations

from pathlib import Path

from ..compilers.sass import SassJob, disassemble
from .context import KernelContext
from .stage import Measured, Stage, files_in


def make(kernel: KernelContext, slug: str, cubin: str, arch: str) -> Stage:
    """The stage that disassembles a cubin, whose path is given: ``sm_90a.sass`` beside it.

    Raises:
        ToolchainError: there is no nvdisasm.
    """
    run, nvdisasm = kernel.run, kernel.tools.nvdisasm
    job = SassJob(arch, Path(cubin), kernel.where("nvdisasm", slug))
    subject = f"{kernel.name}/{slug} {arch}"

    def disassemble_it(scratch: Path) -> None:
        done = disassemble(job, nvdisasm, scratch, run.compilers, subject)
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)

    options = {"arch": arch, "nvdisasm": nvdisasm.identity}
    outputs = files_in(job.cubin.parent, (job.output,))
    stage = Stage("SASS", subject, job.where, options, disassemble_it, outputs, [cubin], archs=(arch,), shipped=False)
    return stage
