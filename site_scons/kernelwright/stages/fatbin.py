"""FATBIN: fatbinary compresses the image of one arch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import SettingsError
from ..core.request import ASIDE
from ..toolchain.fatbin import PackJob, pack
from ..toolchain.nvcc import Nvcc
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Packing:
    """What is packed, and with what: ``fatbinary`` is a part of nvcc."""

    job: PackJob
    nvcc: Nvcc
    fatbinary: str = field(metadata=ASIDE)

    @property
    def arch(self) -> str:
        """The arch of the image."""
        return self.job.arch

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Pack the image."""
        if not (self.job.folder / self.job.image).stat().st_size:  # see left_out.py
            for name in self.job.outputs:
                (scratch / name).touch()
            return
        stage.took(pack(self.job, self.nvcc, self.fatbinary, scratch, stage.tools, stage.stage.subject))


def make(kernel: KernelContext, slug: str, image: str, arch: str) -> Stage:
    """The stage that packs an image, whose path is given."""
    mode, nvcc, where = kernel.package.settings.compress, kernel.tools.nvcc, kernel.where("fatbinary", slug)
    if nvcc is None:
        raise SettingsError("compression without nvcc", where)
    folder, _, name = image.rpartition("/")
    job = PackJob(arch, name, mode, Path(folder), where)
    request, outputs = Packing(job, nvcc, kernel.tools.fatbinary), files_in(job.folder, job.outputs)
    return Stage("FATBIN", f"{kernel.name}/{slug} {arch}", where, request, outputs, [image], archs=(arch,))
