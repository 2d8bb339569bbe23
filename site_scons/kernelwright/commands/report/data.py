"""Reads what the report shows: the last run's trace, manifests of packages, results of tuning, and sizes of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.arch import image_file
from ...core.errors import KernelwrightError
from ...core.records import Record, damage_named, is_file_name
from ...runtime.loader import DamageError, gap_text, read_manifest
from ...state import tuning_result
from ...state.trace import RecordedRun, read_trace
from ...state.tuning_result import TuningResult, read_result

REMEDY = "run scons to make it again"


@dataclass(frozen=True)
class Usage:
    """What one device function uses, per thread or block, as ptxas reported it; all but the registers in bytes."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    stack_bytes: int

    @property
    def spills(self) -> bool:
        """Whether registers go to memory and back."""
        return self.spill_store_bytes + self.spill_load_bytes > 0


@dataclass(frozen=True)
class DeviceCode:
    """A device function of a cubin, or a PTX file as a whole.

    Arguments:
        kernel, variant, arch: what it belongs to.
        function: name of the device function, or None for PTX.
        usage: None for PTX, whose registers are chosen by the driver.
        size: bytes of the cubin or of the PTX, or None if the file is not there.
    """

    kernel: str
    variant: str
    arch: str
    function: str | None
    usage: Usage | None
    size: int | None


@dataclass(frozen=True)
class HostCode:
    """The object file of a variant for one CPU arch; ``size`` in bytes, or None if the file is not there."""

    kernel: str
    variant: str
    arch: str
    size: int | None


@dataclass(frozen=True)
class KernelEntry:
    """A kernel of a package.

    Arguments:
        name, doc: the kernel.
        variants: how many it has.
        archs: all archs that any variant has code for.
        library: bytes of its library; 0: no backend needs one.
    """

    name: str
    doc: str
    variants: int
    archs: tuple[str, ...]
    library: int


@dataclass(frozen=True)
class PackageEntry:
    """A kernel package, with the code of all its variants.

    Arguments:
        name: import name.
        tools: (name, version) of what it was built with.
        kernels, device, host: sorted as in the manifest.
        missing: a line for each thing that failed, if it was built partially.
    """

    name: str
    tools: tuple[tuple[str, str], ...]
    kernels: tuple[KernelEntry, ...]
    device: tuple[DeviceCode, ...]
    host: tuple[HostCode, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Arguments:
        run: the last run that built something, or None if there is no trace of it.
        packages: of each base folder, sorted by name.
        notes: what is missing, and how to get it.
        tunings: of each kernel and device that was tuned, sorted by name.
    """

    run: RecordedRun | None
    packages: tuple[PackageEntry, ...]
    notes: tuple[str, ...]
    tunings: tuple[TuningResult, ...] = ()


def collect(top: Path, bases: Sequence[str]) -> Report:
    """Read everything below a project's folder.

    Arguments:
        bases: folders that packages were built in, relative to ``top``.

    Raises:
        KernelwrightError: there is no trace, no package and no result of tuning, or a file of the build is damaged; the
            message names it. A damaged result of tuning is a note.
    """
    if not top.is_dir():
        raise KernelwrightError(f"{top}: there is no such folder", remedy="name the folder of the SConstruct")
    trace = top / "build" / "trace.json"
    run = read_trace(trace) if trace.exists() else None
    made = [(top / base, name) for base in bases for name in _package_names(top / base)]
    ready = [place for place in made if _manifest(*place).exists()]
    packages = [_package(base, name) for base, name in ready]
    tunings, tuning_notes = _tunings(top)
    if run is None and not (packages or tunings or tuning_notes):
        message = f"{top / bases[0]}: has neither a trace.json nor a kernel package"
        raise KernelwrightError(message, remedy=f"run scons in {top} first")
    notes = [f"There is no {trace}; the next run of scons that builds something writes it."] if run is None else []
    notes += [f"There is no {_manifest(*place)}; run scons to assemble it." for place in made if place not in ready]
    notes += [f"{p.name} was built partially, without {gap}" for p in packages for gap in p.missing]
    if not made:
        notes.append(f"There is no kernel package in {' or '.join(str(top / base) for base in bases)}; run scons.")
    return Report(run, tuple(packages), (*notes, *tuning_notes), tunings)


def _tunings(top: Path) -> tuple[tuple[TuningResult, ...], list[str]]:
    """The results of tuning that can be read, and a note for each of the others."""
    found: list[TuningResult] = []
    notes: list[str] = []
    for folder in _tuned_folders(top / tuning_result.FOLDER):
        name = (folder / tuning_result.FILE).relative_to(top).as_posix()
        if not os.path.lexists(top / name):
            notes.append(f"There is no {name}: tuning was interrupted, or goes on; kernelwright tune ends it.")
            continue
        try:
            found.append(read_result(top, name))
        except KernelwrightError as error:
            notes.append(str(error))
    return tuple(found), notes


def _tuned_folders(base: Path) -> list[Path]:
    """The folder of each kernel and device that anything was measured for."""
    with damage_named(base, REMEDY):
        kernels = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
        devices = [path for kernel in kernels for path in sorted(kernel.iterdir()) if path.is_dir()]
    return [path for path in devices if path.name != tuning_result.FAILED]


def _package_names(base: Path) -> list[str]:
    """Names of the packages that something was made for, whether it is complete or not."""
    folder = base / "kernels"
    with damage_named(folder, "run scons"):
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _manifest(base: Path, name: str) -> Path:
    return base / name.replace(".", "/") / "manifest.json"


def _package(base: Path, name: str) -> PackageEntry:
    path = _manifest(base, name)
    try:
        manifest = read_manifest(path)
    except DamageError as error:
        # What the loader tells a package's user to do does not help who builds it.
        raise KernelwrightError(error.problem, remedy=REMEDY) from error
    with damage_named(path, REMEDY):
        document = Record(manifest, "")
        if document.text("package") != name:
            raise ValueError(f"it is of the package {document.text('package')!r}, expected {name!r}")
        return _package_entry(document, base / "kernels" / name)


def _package_entry(document: Record, work: Path) -> PackageEntry:
    sizes = {name: file.count("size") for name, file in document.members("files")}
    kernels: list[KernelEntry] = []
    device: list[DeviceCode] = []
    host: list[HostCode] = []
    for name, entry in document.members("kernels"):
        _require_file_name(name)
        kernels.append(_kernel(name, entry, sizes))
        for variant in entry.records("variants"):
            slug = variant.file_name("slug")
            for unit in variant.records("units"):
                folder = work / name / slug / unit.file_name("target")
                if unit.text("target") == "llvm":
                    host += [HostCode(name, slug, arch, _size(folder / arch / "host.o")) for arch in _archs(unit)]
                else:
                    own = unit.file_name("source_arch") if unit.has("source_arch") else ""
                    device += _device_codes(name, slug, unit, folder / own)
    missing = tuple(gap_text(gap.raw) for gap in document.records("missing")) if document.has("missing") else ()
    name = document.text("package")
    return PackageEntry(name, _tools(document), tuple(kernels), tuple(device), tuple(host), missing)


def _kernel(name: str, entry: Record, sizes: dict[str, int]) -> KernelEntry:
    variants = entry.records("variants")
    archs = dict.fromkeys(arch for variant in variants for arch in _archs(variant))
    library = entry.text("library") if entry.has("library") else ""
    if library and library not in sizes:
        raise ValueError(f"{entry.place}.library is {library!r}, which is not among the files")
    return KernelEntry(name, entry.text("doc"), len(variants), tuple(archs), sizes.get(library, 0))


def _device_codes(kernel: str, slug: str, unit: Record, folder: Path) -> Iterator[DeviceCode]:
    resources = unit.record("resources")
    for arch in _archs(unit):
        if arch in resources.raw:
            size = _size(folder / image_file(arch))
            for function, used in resources.members(arch):
                yield DeviceCode(kernel, slug, arch, function, _usage(used), size)
        else:
            yield DeviceCode(kernel, slug, arch, None, None, _size(folder / image_file(arch)))


def _usage(used: Record) -> Usage:
    spills = used.count("spill_store_bytes"), used.count("spill_load_bytes")
    return Usage(used.count("registers"), *spills, used.count("shared_bytes"), used.count("stack_bytes"))


def _tools(document: Record) -> tuple[tuple[str, str], ...]:
    """Versions of the tools: most have a ``version``; TVM's record has one for each of its parts."""
    tools = [("Kernelwright", document.text("kernelwright"))]
    for name, tool in document.members("tools"):
        versions = {"version": name.replace("_", " "), "tvm": "TVM", "tvm_ffi": "tvm-ffi"}
        tools += [(shown, tool.text(key)) for key, shown in versions.items() if tool.has(key)]
    return tuple(tools)


def _archs(record: Record) -> list[str]:
    archs = record.texts("archs")
    for arch in archs:
        _require_file_name(arch)
    return archs


def _require_file_name(text: str) -> None:
    if not is_file_name(text):
        raise ValueError(f"{text[:80]!r} is not the name of a kernel or an arch")


def _size(path: Path) -> int | None:
    """Bytes of a file; None if it is not there, because the table is of use without it."""
    try:
        return path.stat().st_size
    except OSError:
        return None
