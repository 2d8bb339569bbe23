"""FATBIN: fatbinary compresses the image of one arch."""

from __future__ import annotations

from pathlib import Path

from ..compilers.fatbin import PackJob, pack
from ..core.errors import SettingsError
from .context import KernelContext
from .stage import Measured, Stage, files_in


def make(kernel: KernelContext, slug: str, image: str, arch: str) -> Stage:
    """The stage that packs an image, whose path is given."""
    run, mode, nvcc = kernel.run, kernel.package.settings.compress, kernel.tools.nvcc
    where = kernel.where("fatbinary", slug)
    if nvcc is None:
        raise SettingsError("compression without nvcc", where)
    folder, _, name = image.rpartition("/")
    job = PackJob(arch, name, mode, Path(folder), where)
    subject, fatbinary = f"{kernel.name}/{slug} {arch}", kernel.tools.fatbinary

    def pack_it(scratch: Path) -> None:
        done = pack(job, nvcc, fatbinary, scratch, run.compilers, subject)
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)

    options = {"arch": arch, "mode": mode, "nvcc": nvcc.identity}
    outputs = files_in(job.folder, job.outputs)
    stage = Stage("FATBIN", subject, where, options, pack_it, outputs, [image], archs=(arch,))
    return stage
