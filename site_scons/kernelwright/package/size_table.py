"""How many bytes of a wheel each kernel takes, for each arch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..backends.commands import LIBRARIES
from ..core.arch import CPU_LEVELS, image_file
from ..core.records import Record, read_json
from .assemble import kernel_of, library_of

LISTED = 20
"""Kernels in a table; the largest ones."""


@dataclass(frozen=True)
class KernelSize:
    """Bytes of a kernel.

    Arguments:
        name: the kernel.
        archs: arch -> bytes of the code of all its variants.
        library: bytes of what is compiled for it: its library, and what backends add.
    """

    name: str
    archs: Mapping[str, int]
    library: int


def kernel_sizes(package: Path, work: Path, device: Path) -> list[KernelSize]:
    """The sizes of a built package's kernels, the largest first.

    Arguments:
        package: its folder.
        work: the folder in which its kernels were built.
        device: the folder in which their device code was built.
    """
    kernels = read_json(package / "manifest.json", lambda document: _parse(document, work, device), "run scons again")
    return sorted(kernels, key=lambda kernel: (-kernel.library, kernel.name))


def size_table(kernels: list[KernelSize]) -> list[str]:
    """The lines of a table of sizes in bytes."""
    archs = list(dict.fromkeys(arch for kernel in kernels for arch in kernel.archs))
    rows = [["kernel", *archs, "library"]]
    rows += [_row(kernel.name, kernel.archs, archs, kernel.library) for kernel in kernels[:LISTED]]
    if len(kernels) > LISTED:
        rows.append([f"{len(kernels) - LISTED} more", *[""] * len(archs), ""])
    totals = {arch: sum(kernel.archs.get(arch, 0) for kernel in kernels) for arch in archs}
    rows.append(_row("total", totals, archs, sum(kernel.library for kernel in kernels)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _row(name: str, sizes: Mapping[str, int], archs: list[str], library: int) -> list[str]:
    return [name, *(f"{sizes[arch]:,}" if arch in sizes else "" for arch in archs), f"{library:,}"]


def _parse(document: Record, work: Path, device: Path) -> list[KernelSize]:
    kernels, files = document.record("kernels"), document.record("files")
    sizes = []
    for name in kernels.raw:
        kernel = kernels.record(name)
        archs: dict[str, int] = {}
        for variant in kernel.records("variants"):
            for unit in variant.records("units"):
                own = unit.text("source_arch") if unit.has("source_arch") else ""
                top = device if unit.text("target") == "cuda" else work
                folder = top / name / variant.text("slug") / unit.text("target") / own
                for arch in unit.texts("archs"):
                    path = _code(folder, arch)
                    archs[arch] = archs.get(arch, 0) + (path.stat().st_size if path.is_file() else 0)
        compiled = [path for path in files.raw if path == library_of(name) or kernel_of(path) == name]
        sizes.append(KernelSize(name, archs, sum(files.record(path).count("size") for path in compiled)))
    launchers = [path for path in files.raw if path.startswith(f"{LIBRARIES}/libkernelwright-")]
    having = [kernel for _, kernel in document.members("kernels") if kernel.has("source_libraries")]
    shared = {path for kernel in having for path in kernel.texts("source_libraries")}
    named = [
        *((f"({Path(path).stem})", path) for path in sorted(shared)),
        *(("(launcher)", path) for path in launchers),
    ]
    return sizes + [KernelSize(name, {}, files.record(path).count("size")) for name, path in named]


def _code(folder: Path, arch: str) -> Path:
    """The file with the code for an arch, in the folder of a unit."""
    if arch in CPU_LEVELS:
        return folder / arch / "host.o"
    if (packed := folder / f"{arch}.fatbin").is_file():
        return packed
    return folder / image_file(arch)
