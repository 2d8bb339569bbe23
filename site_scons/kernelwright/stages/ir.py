"""IR: a worker lowers one variant once more and writes the IR after each of TVM's passes, for ``scons ir``.

The files are there to be read. No other stage reads them, and LOWER does the same whether or not they are made.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.files import sha256_of
from ..frontends.unit import IR_INDEX
from .context import KernelContext
from .execution import move
from .lower import Lowering, VariantUnit, sources_of, units_of, write_anew
from .stage import IR, Stage, files_in
from .stage_run import StageRun

FILE = re.compile(r"\d{3,}-[A-Za-z0-9_.+-]+\.tir")
"""The name of a file with the IR after a pass."""


@dataclass(frozen=True)
class Showing(Lowering):
    """What is lowered once more, to show the IR after each pass."""

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Have a worker lower the variant, and publish the IR after each pass."""
        run, folder = stage.run, Path(stage.stage.outputs[IR_INDEX]).parent
        lowered, shown = scratch / "made", scratch / "shown"
        lowered.mkdir()
        shown.mkdir()
        try:
            stage.asked(replace(self.asked, out=str(lowered), ir=str(shown)))
        finally:
            run.require_folders([str(folder)])
            _publish(shown, scratch, folder)  # of a lowering that fails: what there is up to there
            if _files(shown) and not (shown / IR_INDEX).is_file():
                run.note(f"kernelwright: the IR up to the failure is in {os.path.relpath(folder, run.top)}")
        write_anew(shown, scratch, [IR_INDEX])


def make_all(kernel: KernelContext) -> list[Stage]:
    """A stage for each lowering of a kernel; none, if TVM's passes do not lower it."""
    if not kernel.front_end.has_passes:
        return []
    units = [unit for config, slug in kernel.record.listed for unit, _ in units_of(kernel, slug, config)]
    # The package that device code is from shows how that was lowered.
    return [make(unit) for unit in units if unit.target == "llvm" or not kernel.package.device]


def make(unit: VariantUnit) -> Stage:
    """The stage that writes the IR of a variant; its one declared output lists the files, which are beside it."""
    kernel, where, folder = unit.kernel, unit.kernel.where("lower", unit.slug), unit.folder / IR
    outputs, request = files_in(folder, [IR_INDEX]), Showing(**vars(unit.request))
    sources, archs = sources_of(kernel), unit.archs
    stage = Stage("IR", unit.subject, where, request, outputs, sources, cacheable=False, archs=archs)
    stage.late = lambda: {path.name: sha256_of(path) for path in _files(folder)}
    return kernel.remembering(stage, unit.subject)


def _files(folder: Path) -> list[Path]:
    """The files with IR in a folder, in order."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in entries if FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink())


def _publish(shown: Path, scratch: Path, folder: Path) -> None:
    """Have a folder hold just the files that were shown now, and no list of those before."""
    names = [path.name for path in _files(shown)]
    write_anew(shown, scratch, names)
    for old in [*_files(folder), folder / IR_INDEX]:
        if old.name not in names:
            old.unlink(missing_ok=True)
    for name in names:
        move(scratch / name, folder / name)
