"""LOWER: a worker executes the definition and lowers one variant for a CPU arch, or for CUDA archs with one source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.arch import lowering_arch
from ..define.debug import NO
from ..define.unit import unit_symbol
from ..processes.protocol import LowerRequest
from .context import KernelContext, debug_level
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
        definition: what decides what the definition does (:attr:`KernelContext.definition_identity`); of the file
            itself, all but what only checks call.
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

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Have a worker lower the variant."""
        made = scratch / "made"
        made.mkdir()
        stage.asked(replace(self.asked, out=str(made)))
        write_anew(made, scratch, self.files)


@dataclass(frozen=True)
class VariantUnit:
    """A variant that is lowered for one arch of the CPU, or for all CUDA archs that share a source.

    Arguments:
        archs: that arch, or those.
    """

    kernel: KernelContext
    slug: str
    config: Mapping[str, Any]
    target: str
    archs: tuple[str, ...]

    @property
    def arch(self) -> str:
        """The arch that TVM generates code for."""
        return self.archs[0] if self.target == "llvm" else lowering_arch(self.archs)

    @property
    def own_arch(self) -> str:
        """The arch, if other archs of the target have lowerings of their own; else empty."""
        return self.arch if self.target == "llvm" or self.kernel.record.options.per_arch else ""

    @property
    def subject(self) -> str:
        """What stages say that they work on."""
        return f"{self.kernel.name}/{self.slug} {self.own_arch or self.target}"

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        top = self.kernel.package.device_work if self.target == "cuda" else self.kernel.package.work
        return top / self.kernel.name / self.slug / self.target / self.own_arch

    @property
    def request(self) -> Lowering:
        """What its lowering makes, and of what."""
        kernel, record = self.kernel, self.kernel.record
        files, slugs = kernel.front_end.files(self.target, self.archs), kernel.listed_slugs
        symbol = unit_symbol(record.name, self.slug, slugs, self.target, self.arch, record.options.per_arch)
        asked = LowerRequest(
            *(kernel.definition.file, record.name, self.slug, symbol, dict(self.config), self.target),
            arch=self.arch,
            strict=kernel.run.strict,
            archs=tuple(files.images),
            listed=self.slug in slugs,
            pass_configs=record.options.pass_configs,
            python=kernel.python,
            debug=debug_level(kernel) if kernel.front_end.compiles_device_code else NO,
            imported_for=self.own_arch if kernel.front_end.imports_for_arch else "",
        )
        return Lowering(asked, _definition(kernel), kernel.tools.lowerer, kernel.own_tool, files.names)


def _definition(kernel: KernelContext) -> Mapping[str, Any]:
    identity, own = kernel.definition_identity, kernel.definition
    return {**identity, "contents": {**identity["contents"], own.file: own.lowered}} if own.lowered else identity


def sources_of(kernel: KernelContext) -> list[str]:
    """The files that a lowering depends on as they are: those of the definition, without the definition file itself."""
    return [path for path in kernel.definition_files if path != f"{kernel.run.top}/{kernel.definition.file}"]


def units_of(kernel: KernelContext, slug: str, config: Mapping[str, Any]) -> list[tuple[VariantUnit, tuple[str, ...]]]:
    """The lowerings of a variant, each with the archs that code is compiled for."""
    selection = kernel.selection
    of_cpu = (("llvm", (arch,), (arch,)) for arch in selection.archs_of(slug).get("llvm", ()))
    sources = [*of_cpu, *(("cuda", *archs) for archs in selection.cuda_sources(slug))]
    # A front end that compiles device code itself does so for all archs that it is asked for.
    own = kernel.front_end.compiles_device_code
    return [(VariantUnit(kernel, slug, config, t, wanted if own else archs), wanted) for t, archs, wanted in sources]


def make(unit: VariantUnit) -> Stage:
    """The stage that lowers a variant."""
    kernel, request, where = unit.kernel, unit.request, unit.kernel.where("lower", unit.slug)
    outputs = files_in(unit.folder, request.files)
    stage = Stage("LOWER", unit.subject, where, request, outputs, sources_of(kernel), archs=unit.archs)
    stage.here = not kernel.definition.shared
    stage.keeps = unit.folder / IR
    return kernel.remembering(stage, unit.subject)


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
