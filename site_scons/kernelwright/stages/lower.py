"""LOWER: a worker executes the definition and lowers one variant for a CPU arch, or for CUDA archs with one source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.arch import lowering_arch
from ..define.unit import unit_symbol
from ..processes.protocol import LowerRequest
from .context import KernelContext
from .stage import IR, Stage, files_in
from .stage_run import StageRun

if TYPE_CHECKING:
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.tvm import Lowerer


@dataclass(frozen=True)
class Lowering:
    """What a lowering makes, and of what.

    Arguments:
        asked: what the worker is asked for.
        definition: what decides what the definition does (:attr:`KernelContext.definition_identity`).
        tvm: what lowers it.
        own_tool: what its front end runs besides.
        files: the names of the files that are made.
    """

    asked: LowerRequest
    definition: Mapping[str, Any]
    tvm: Lowerer
    own_tool: Distribution | Elsewhere | None
    files: tuple[str, ...]

    @property
    def arch(self) -> str:
        """The arch that TVM generates code for."""
        return self.asked.arch


def make(kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]) -> Stage:
    """The stage that lowers a variant.

    Arguments:
        archs: one arch of the CPU, or all CUDA archs that share a source.
    """
    folder = folder_of(kernel, slug, target, archs)
    subject, request = subject_of(kernel, slug, target, archs), request_of(kernel, slug, config, target, archs)
    outputs, where = files_in(folder, request.files), kernel.where("lower", slug)
    stage = Stage("LOWER", subject, where, request, lower, outputs, kernel.definition_files, archs=archs)
    stage.here = not kernel.definition.shared
    stage.keeps = folder / IR
    return kernel.remembering(stage, subject)


def lower(request: Lowering, scratch: Path, stage: StageRun) -> None:
    """Have a worker lower the variant."""
    made = scratch / "made"
    made.mkdir()
    stage.asked(replace(request.asked, out=str(made)))
    write_anew(made, scratch, request.files)


def arch_of(target: str, archs: tuple[str, ...]) -> str:
    """The arch that TVM generates code for."""
    return archs[0] if target == "llvm" else lowering_arch(archs)


def subject_of(kernel: KernelContext, slug: str, target: str, archs: tuple[str, ...]) -> str:
    """What a lowering works on."""
    return f"{kernel.name}/{slug} {own_arch(kernel, target, archs) or target}"


def folder_of(kernel: KernelContext, slug: str, target: str, archs: tuple[str, ...]) -> Path:
    """The folder of a lowering's files."""
    return kernel.folder / slug / target / own_arch(kernel, target, archs)


def own_arch(kernel: KernelContext, target: str, archs: tuple[str, ...]) -> str:
    """The arch that a lowering is for, if others have one of their own; empty, if it is for all of the target."""
    return arch_of(target, archs) if target == "llvm" or kernel.record.options.per_arch else ""


def request_of(
    kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]
) -> Lowering:
    """What a lowering makes, and of what."""
    record, arch, files = kernel.record, arch_of(target, archs), kernel.front_end.files(target, archs)
    symbol = unit_symbol(record.name, slug, kernel.listed_slugs, target, arch, record.options.per_arch)
    asked = LowerRequest(
        *(kernel.definition.file, record.name, slug, symbol, dict(config), target),
        arch=arch,
        strict=kernel.run.strict,
        archs=tuple(files.images),
        listed=slug in kernel.listed_slugs,
        pass_configs=record.options.pass_configs,
        python=kernel.python,
    )
    return Lowering(asked, kernel.definition_identity, kernel.tools.lowerer, kernel.own_tool, files.names)


def write_anew(made: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy files that a worker has made, so that they get the permissions of the build and not those of the worker.

    Arguments:
        made: where they are; what is missing there, or is no regular file, is left out.
        folder: where they are written to.
    """
    for name in names:
        path = made / name
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)  # a umask may have taken even the right to read
            (folder / name).write_bytes(path.read_bytes())
