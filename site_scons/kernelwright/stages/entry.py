"""ENTRY: writes the kernel's part of the manifest, where there is no library of which it is a by-product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compilers.limits import check_limits as check_usage
from ..core.version import VERSION
from ..library.commands import LIBRARIES
from ..library.files import VariantFiles, images_of, units_of, usages_of
from ..package.assemble import library_of
from ..package.manifest import EntrySource, make_entry
from . import tuning
from .context import KernelContext
from .stage import Stage, files_in


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> Stage:
    """The stage that writes the kernel's part of the manifest."""

    def write_it(scratch: Path) -> None:
        described = kernel.whole(variants)
        check_limits(kernel, described)
        write(kernel, described, scratch)

    outputs = files_in(kernel.folder, ("entry.json",))
    sources = [*sources_of(variants), *images_of(variants)]
    stage = Stage("ENTRY", kernel.name, kernel.where("entry"), options_of(kernel), write_it, outputs, sources)
    stage.rest = lambda: bool(kernel.whole(variants))
    return stage


def options_of(kernel: KernelContext) -> dict[str, Any]:
    """What decides a kernel's part of the manifest besides the files that it describes."""
    settings, record = kernel.package.settings, kernel.record
    return {
        "limits": [settings.max_registers, settings.max_spills],
        "images": kernel.package.images_in,
        "entry": [VERSION, kernel.tools.data | kernel.own_tools, record.doc, kernel.flags, record.backward],
        **tuning.options_of(kernel),
    }


def sources_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """The files that the manifest describes: signatures and modules, and resource usages."""
    units = units_of(variants)
    described = [path for unit in units for path in (unit.signature, unit.module)]
    return [*described, *dict.fromkeys(path for unit in units for path in (*unit.usages.values(), *unit.reports))]


def write(kernel: KernelContext, variants: tuple[VariantFiles, ...], scratch: Path, launcher: str = "") -> None:
    """Write ``entry.json``.

    Arguments:
        launcher: the file name of the launcher's library; empty: the kernel has no library.
    """
    record = kernel.record
    libraries = (library_of(kernel.name), f"{LIBRARIES}/{launcher}") if launcher else ("", "")
    files_below = kernel.package.work if kernel.package.images_in else None
    tools, own_tools = kernel.tools.data, kernel.own_tools
    tuned = tuning.tuning_of(kernel, variants)
    source = EntrySource(
        *(record.doc, *libraries, variants, kernel.flags, tools, VERSION, record.backward, files_below, own_tools),
        *(tuned.declared, tuned.tables, tuned.tabled, kernel.front_end.name),
    )
    (scratch / "entry.json").write_text(make_entry(source), encoding="utf-8")


def check_limits(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> None:
    """Raise a KernelwrightError if a device function needs more than the settings allow."""
    settings, stage = kernel.package.settings, "nvrtc" if kernel.tools.nvrtc else "nvcc"
    for variant in variants:
        for unit in variant.units:
            for arch, usage in usages_of(unit).items():
                where = kernel.where(stage, variant.slug)
                limits = settings.max_registers, settings.max_spills
                check_usage(kernel.name, variant.slug, arch, usage, *limits, where)
