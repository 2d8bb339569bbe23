"""IR: a worker lowers one variant once more and writes the IR after each of TVM's passes, for ``scons ir``.

The files are there to be read. No other stage reads them, and LOWER does the same whether or not they are made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError
from ..core.files import sha256_of
from ..frontends.unit import IR_INDEX
from . import lower
from .context import KernelContext
from .execution import move
from .lower import Lowering, write_anew
from .stage import IR, Stage, files_in
from .stage_run import StageRun

FILE = re.compile(r"\d{3,}-[A-Za-z0-9_.+-]+\.tir")
"""The name of a file with the IR after a pass."""


def make_all(kernel: KernelContext) -> list[Stage]:
    """A stage for each lowering of a kernel; none, if TVM's passes do not lower it."""
    if not kernel.front_end.has_passes:
        return []
    variants = kernel.record.listed
    return [make(kernel, slug, config, *unit) for config, slug in variants for unit in _units(kernel, slug)]


def _units(kernel: KernelContext, slug: str) -> list[tuple[str, tuple[str, ...]]]:
    """Target and archs of each lowering of a variant."""
    wanted = kernel.selection.archs_of(slug)
    units: list[tuple[str, tuple[str, ...]]] = [("llvm", (arch,)) for arch in wanted.get("llvm", ())]
    return [*units, *(("cuda", archs) for archs, _ in kernel.selection.cuda_sources(slug))]


def make(kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]) -> Stage:
    """The stage that writes the IR of a variant; its one declared output lists the files, which are beside it.

    Arguments:
        archs: one arch of the CPU, or all CUDA archs that share a source.

    Raises:
        DefinitionError: TVM's passes do not lower the kernel.
    """
    where = kernel.where("lower", slug)
    if not kernel.front_end.has_passes:
        message = f"TVM's passes do not lower a definition in {kernel.front_end.name}, so there is no IR to show"
        raise DefinitionError(message, where, "read the file beside signature.json: it has the code after lowering")
    subject, request = (
        lower.subject_of(kernel, slug, target, archs),
        lower.request_of(kernel, slug, config, target, archs),
    )
    folder = lower.folder_of(kernel, slug, target, archs) / IR
    outputs = files_in(folder, [IR_INDEX])
    stage = Stage("IR", subject, where, request, show, outputs, kernel.definition_files, cacheable=False, archs=archs)
    stage.late = lambda: {path.name: sha256_of(path) for path in _files(folder)}
    return kernel.remembering(stage, subject)


def show(request: Lowering, scratch: Path, stage: StageRun) -> None:
    """Have a worker lower the variant, and publish the IR after each pass."""
    run, folder = stage.run, Path(stage.stage.outputs[IR_INDEX]).parent
    made, shown = scratch / "made", scratch / "shown"
    made.mkdir()
    shown.mkdir()
    try:
        stage.asked(replace(request.asked, out=str(made), ir=str(shown)))
    finally:
        run.require_folders([str(folder)])
        _publish(shown, scratch, folder)  # of a lowering that fails: what there is up to there
        if _files(shown) and not (shown / IR_INDEX).is_file():
            run.note(f"kernelwright: the IR up to the failure is in {os.path.relpath(folder, run.top)}")
    write_anew(shown, scratch, [IR_INDEX])


def _files(folder: Path) -> list[Path]:
    """The files with IR in a folder, in order."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink())


def _publish(shown: Path, scratch: Path, folder: Path) -> None:
    """Have a folder hold just the files that were shown now, and no list of those before."""
    names = [path.name for path in _files(shown)]
    write_anew(shown, scratch, names)
    for old in [*_files(folder), folder / IR_INDEX]:
        if old.name not in names:
            old.unlink(missing_ok=True)
    for name in names:
        move(scratch / name, folder / name)
