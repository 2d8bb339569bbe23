"""ENTRY: writes the kernel's part of the manifest, where there is no library of which it is a by-product."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends.commands import LIBRARIES
from ..backends.files import VariantFiles, images_of, own_libraries_of, units_of, usages_of
from ..core.dependencies import IN_PACKAGE
from ..core.errors import Where
from ..core.request import ASIDE
from ..core.surroundings import INSTALLED
from ..core.version import VERSION
from ..core.written import HEADERS
from ..package.assemble import library_of
from ..package.manifest import EntrySource, make_entry
from ..toolchain.contained import Contained, contained_in
from ..toolchain.limits import check_limits as check_usage
from ..toolchain.package_folder import package_folder
from .context import KernelContext, debug_level, whole
from .left_out import without_left_out
from .stage import Stage, files_in
from .stage_run import StageRun
from .tuning import Tuning, tuning_of


@dataclass(frozen=True)
class Entry:
    """What a kernel's part of the manifest says, and which limits its device functions have to keep.

    Arguments:
        source: what it is made from; of that, the variants, the launcher and the tuning are those that were made.
        limits: the most registers and spills; see :func:`toolchain.limits.check_limits`.
        images_in: where the device images are (:attr:`Context.images_in`).
        compiler: the stage that an error about a limit names.
    """

    kernel: str
    source: EntrySource
    tuning: Tuning
    limits: tuple[int | None, int | None]
    images_in: str
    compiler: str = field(metadata=ASIDE)

    @property
    def recorded(self) -> dict[str, str]:
        """The distributions that the text says something of -> the digest of what pip has recorded of each."""
        return {INSTALLED + part.distribution: part.recorded for part in self.source.parts}

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Check the limits, and write the text."""
        variants = without_left_out(stage.whole(self.source.variants), stage.where, stage.run)
        self.check_limits(variants, stage.where)
        self.write(variants, scratch)

    def check_limits(self, variants: tuple[VariantFiles, ...], where: Where) -> None:
        """Raise a KernelwrightError if a device function needs more than the settings allow."""
        for variant in variants:
            place = replace(where, kernel=self.kernel, stage=self.compiler, variant=variant.slug)
            for unit in variant.units:
                for arch, usage in usages_of(unit).items():
                    check_usage(arch, usage, *self.limits, place)

    def write(self, variants: tuple[VariantFiles, ...], scratch: Path, launcher: str = "") -> None:
        """Write ``entry.json``.

        Arguments:
            variants: those that were made.
            launcher: the file name of the launcher's library; empty: the kernel has no library.
        """
        tuned = self.tuning.of(variants)
        source = replace(
            self.source,
            library=library_of(self.kernel) if launcher or self.source.operators else "",
            launcher=f"{LIBRARIES}/{launcher}" if launcher else "",
            variants=variants,
            source_libraries=tuple(f"{LIBRARIES}/{name}" for name in own_libraries_of(variants)),
            declared=tuned.declared,
            tables=tuned.tables,
            tabled=tuned.tabled,
        )
        (scratch / "entry.json").write_text(make_entry(source), encoding="utf-8")


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> Stage:
    """The stage that writes the kernel's part of the manifest."""
    outputs = files_in(kernel.folder, ("entry.json",))
    sources = [*sources_of(variants), *images_of(variants)]
    described = entry_of(kernel, variants)
    stage = Stage("ENTRY", kernel.name, kernel.where("entry"), described, outputs, sources)
    stage.rest = lambda: bool(whole(kernel.run, variants))
    stage.outside = described.recorded
    return stage


def _parts_of(kernel: KernelContext) -> tuple[Contained, ...]:
    """The installed distributions that have sources and headers which a kernel's code is made of."""
    sources = {source.path.rpartition("/")[0] for source in kernel.record.compiled_sources}
    own = [package_folder(n, kernel.where("nvcc"), "sources") for n in sorted(sources) if n.startswith(IN_PACKAGE)]
    folders = [*kernel.package_folders.values(), *own]
    return contained_in(folders) if folders else ()


def _written_to(kernel: KernelContext) -> tuple[tuple[str, str, str, str], ...]:
    """What of others the compilers put into a kernel, as the manifest has it."""
    front_end, tools = kernel.front_end, kernel.tools.data
    own = kernel.own_tools.get(front_end.name, {})
    version = own.get("version") or tools.get("tvm", {}).get("tvm", "")
    parts = [(one.distribution, version if one.is_tool else "", one.license, one.what) for one in front_end.writes]
    by_cuda = [] if front_end.compiles_device_code else [(HEADERS.distribution, "", HEADERS.license, HEADERS.what)]
    return (*parts, *(by_cuda if "cuda" in kernel.selection.archs else []))


def entry_of(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> Entry:
    """What a kernel's part of the manifest says."""
    settings, record, images_in = kernel.package.settings, kernel.record, kernel.package.images_in
    source = EntrySource(
        doc=record.doc,
        library="",
        launcher="",
        variants=variants,
        flags=kernel.flags,
        tools=kernel.tools.data,
        version=VERSION,
        backward=record.backward,
        images_below=kernel.package.device_work if images_in else None,
        own_tools=kernel.own_tools,
        frontend=kernel.front_end.name,
        meaning=record.reference or (),
        libraries=tuple(library.needed for library in kernel.libraries),
        parts=_parts_of(kernel),
        written=_written_to(kernel),
        debug=debug_level(kernel),
    )
    limits, compiler = (settings.max_registers, settings.max_spills), "nvrtc" if kernel.tools.nvrtc else "nvcc"
    return Entry(kernel.name, source, tuning_of(kernel.selection), limits, images_in, compiler)


def sources_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """The files that the manifest describes: signatures and modules, resource usages, and what tells alignments."""
    units = units_of(variants)
    described = [path for unit in units for path in (unit.signature, unit.module)]
    compiled = [path for unit in units for path in (*unit.usages.values(), *unit.reports, *unit.named_in.values())]
    return [*described, *dict.fromkeys(compiled)]
