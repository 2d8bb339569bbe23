"""The files of a variant: what was lowered and what was compiled from it, as the stages pass them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.dtype import Dtype
from ..core.entry_name import asked_alignments
from ..core.errors import Where
from ..core.records import Record, read_json
from ..core.request import ASIDE
from ..toolchain.limits import read_reports, read_usage


@dataclass(frozen=True)
class UnitFiles:
    """One lowering of a variant, and the images compiled from it. All paths are absolute.

    Stages that read these files have them as sources.

    Arguments:
        target: ``llvm`` or ``cuda``.
        archs: the archs that there is code for.
        signature: path of signature.json.
        module: path of the module that was lowered.
        host: path of the host code: ``host.o`` for the CPU, ``host.c`` for CUDA.
        objects: paths of object files to be linked.
        images: arch -> path of its cubin or PTX, or of the fatbin that holds that.
        usages: arch -> path of the resource usage that the compiler reported.
        own: paths of the objects of sources that have host code of their own; the device code is in them, too.
        reports: paths of the compiler's reports on these objects, arch by arch.
        own_library: the file name of the library of these objects; empty: they become a part of the kernel's.
        own_library_path: its path.
        named_in: arch -> path of the file with the device function's name in that image; empty: signature.json has it.
        own_arch: the only arch that it was lowered for; empty: it is for all archs of the target.
    """

    target: str
    archs: tuple[str, ...]
    signature: str = field(metadata=ASIDE)
    module: str = field(metadata=ASIDE)
    host: str = field(metadata=ASIDE)
    objects: tuple[str, ...] = field(default=(), metadata=ASIDE)
    images: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    usages: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    named_in: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    own_arch: str = ""
    own: tuple[str, ...] = field(default=(), metadata=ASIDE)
    reports: tuple[str, ...] = field(default=(), metadata=ASIDE)
    own_library: str = ""
    own_library_path: str = field(default="", metadata=ASIDE)

    def read_signature(self) -> dict[str, Any]:
        """The content of signature.json, with the alignments that are only known from compiled code."""
        asked = [asked_alignments(Path(path)) for path in dict.fromkeys(self.named_in.values())]
        strictest = list(map(max, *asked)) if len(asked) > 1 else next(iter(asked), [])
        return read_json(
            Path(self.signature), lambda read: _with_alignments(read, strictest), "remove it and try again"
        )


def _with_alignments(read: Record, asked: Sequence[int]) -> dict[str, Any]:
    """A signature whose tensors have at least the alignments that the types of the source need, one per argument."""
    for argument, alignment in zip(read.records("arguments") if asked else (), asked, strict=False):
        tensor = argument.text("kind") == "tensor"
        if tensor and alignment > Dtype.parse(argument.text("dtype"), Where()).alignment:
            declared = argument.count("alignment") if argument.has("alignment") else 1
            argument.raw["alignment"] = max(alignment, declared)
    return read.raw


@dataclass(frozen=True)
class VariantFiles:
    """A variant with its units: one for each CPU arch, and one for CUDA or for each of its archs."""

    slug: str
    config: Mapping[str, Any]
    units: tuple[UnitFiles, ...]


def units_of(variants: tuple[VariantFiles, ...]) -> list[UnitFiles]:
    """The units of some variants, in order."""
    return [unit for variant in variants for unit in variant.units]


def usages_of(unit: UnitFiles) -> dict[str, dict[str, Any]]:
    """What the device functions of a unit use, as the contents of ``<arch>.json``, arch by arch."""
    if unit.own:
        return read_reports(unit.reports)
    return {arch: read_usage(Path(path)) for arch, path in unit.usages.items()}


def objects_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """Paths of the host objects of some variants."""
    return [path for unit in units_of(variants) for path in unit.objects]


def own_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """Paths of the objects of sources with host code of their own, each once: variants may have them in common."""
    return list(dict.fromkeys(path for unit in units_of(variants) for path in unit.own))


def own_libraries_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """The file names of the libraries of such objects, each once."""
    return list(dict.fromkeys(unit.own_library for unit in units_of(variants) if unit.own_library))


def images_of(variants: tuple[VariantFiles, ...]) -> list[str]:
    """Paths of the device images of some variants, in order."""
    return [image for unit in units_of(variants) for image in unit.images.values()]
