"""Reads what the report shows: the last run's trace, manifests of packages, results of tuning, and sizes of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from ...core.arch import image_file
from ...core.errors import KernelwrightError
from ...core.records import Record, damage_named, is_file_name
from ...runtime.loader import DamageError, gap_text, read_manifest
from ...state import tuning_result
from ...state.bench_result import Results, read_results
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
    def spills(self) -> int:
        """Bytes of registers that go to memory and back."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class Code:
    """A device function of a cubin, a PTX file as a whole, or the object file of a variant for the CPU.

    Arguments:
        kernel, variant, arch: what it belongs to.
        size: bytes of the file, or None if the file is not there.
        function, usage: name of the device function and what it uses; empty and None: it is no single function.
    """

    kernel: str
    variant: str
    arch: str
    size: int | None
    function: str = ""
    usage: Usage | None = None


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


@dataclass
class PackageEntry:
    """A kernel package, with the code of all its variants.

    Arguments:
        name: import name.
        tools: (name, version) of what it was built with.
        missing: a line for each thing that failed, if it was built partially.
        kernels, device, host: in the order of the manifest.
    """

    name: str
    tools: list[tuple[str, str]]
    missing: list[str]
    kernels: list[KernelEntry] = field(default_factory=list)
    device: list[Code] = field(default_factory=list)
    host: list[Code] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Arguments:
        run: the last run that built something, or None if there is no trace of it.
        packages: of each base folder, sorted by name.
        notes: what is missing, and how to get it.
        tunings: of each kernel and device that was tuned, sorted by name.
        benches: the results of ``kernelwright bench`` that were named.
    """

    run: RecordedRun | None
    packages: list[PackageEntry]
    notes: list[str]
    tunings: list[TuningResult]
    benches: list[Results] = field(default_factory=list)


def collect(top: Path, bases: Sequence[str], benches: Sequence[Path] = ()) -> Report:
    """Read everything below a project's folder.

    Arguments:
        bases: folders that packages were built in, relative to ``top``.
        benches: files that ``kernelwright bench --json`` has written.

    Raises:
        KernelwrightError: there is no trace, no package and no result, or a file of the build is damaged; the message
            names it. A damaged result of tuning is a note.
    """
    if not top.is_dir():
        raise KernelwrightError(f"{top}: there is no such folder", remedy="name the folder of the SConstruct")
    trace = top / "build" / "trace.json"
    run = read_trace(trace) if trace.exists() else None
    places = [(top / base, path.name) for base in bases for path in _folders(top / base / "kernels", "run scons")]
    ready = [place for place in places if _manifest(*place).exists()]
    packages = [_package(base, name) for base, name in ready]
    tunings, tuning_notes = _tunings(top)
    measured = [read_results(path) for path in benches]
    if run is None and not (packages or tunings or tuning_notes or measured):
        message = f"{top / bases[0]}: has neither a trace.json nor a kernel package"
        raise KernelwrightError(message, remedy=f"run scons in {top} first")
    notes = [f"There is no {trace}; the next run of scons that builds something writes it."] if run is None else []
    notes += [f"There is no {_manifest(*place)}; run scons to assemble it." for place in places if place not in ready]
    notes += [f"{p.name} was built partially, without {gap}" for p in packages for gap in p.missing]
    if not places:
        notes.append(f"There is no kernel package in {' or '.join(str(top / base) for base in bases)}; run scons.")
    return Report(run, packages, notes + tuning_notes, tunings, measured)


def _tunings(top: Path) -> tuple[list[TuningResult], list[str]]:
    """The results of tuning that can be read, and a note for each of the others."""
    found: list[TuningResult] = []
    notes: list[str] = []
    base = top / tuning_result.FOLDER
    devices = [path for kernel in _folders(base, REMEDY) for path in _folders(kernel, REMEDY)]
    for folder in (path for path in devices if path.name != tuning_result.FAILED):
        name = (folder / tuning_result.FILE).relative_to(top).as_posix()
        if not os.path.lexists(top / name):
            notes.append(f"There is no {name}: tuning was interrupted, or goes on; kernelwright tune ends it.")
            continue
        try:
            found.append(read_result(top, name))
        except KernelwrightError as error:
            notes.append(str(error))
    return found, notes


def _folders(base: Path, remedy: str) -> list[Path]:
    """The folders in a folder, sorted by name; none if it is not there."""
    with damage_named(base, remedy):
        return sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []


def _manifest(base: Path, name: str) -> Path:
    return base / name.replace(".", "/") / "manifest.json"


def _package(base: Path, name: str) -> PackageEntry:
    path = _manifest(base, name)
    try:
        manifest = read_manifest(path)
    except DamageError as error:
        # The loader's remedy is for those who use a package, and does not help those who build it.
        raise KernelwrightError(error.problem, remedy=REMEDY) from error
    with damage_named(path, REMEDY):
        document = Record(manifest, "")
        if document.text("package") != name:
            raise ValueError(f"it is of the package {document.text('package')!r}, expected {name!r}")
        return _package_entry(document, base / "kernels" / name)


def _package_entry(document: Record, work: Path) -> PackageEntry:
    sizes = {name: file.count("size") for name, file in document.members("files")}
    missing = [gap_text(gap.raw) for gap in document.records("missing")] if document.has("missing") else []
    package = PackageEntry(document.text("package"), list(_tools(document)), missing)
    for name, entry in document.members("kernels"):
        _require_file_name(name)
        package.kernels.append(_kernel(name, entry, sizes))
        for variant in entry.records("variants"):
            slug = variant.file_name("slug")
            for unit in variant.records("units"):
                folder = work / name / slug / unit.file_name("target")
                if unit.text("target") == "llvm":
                    package.host += [Code(name, slug, arch, _size(folder / arch / "host.o")) for arch in _archs(unit)]
                else:
                    own = unit.file_name("source_arch") if unit.has("source_arch") else ""
                    package.device += _device_code(name, slug, unit, folder / own)
    return package


def _kernel(name: str, entry: Record, sizes: dict[str, int]) -> KernelEntry:
    variants = entry.records("variants")
    archs = dict.fromkeys(arch for variant in variants for arch in _archs(variant))
    library = entry.text("library") if entry.has("library") else ""
    if library and library not in sizes:
        raise ValueError(f"{entry.place}.library is {library!r}, which is not among the files")
    return KernelEntry(name, entry.text("doc"), len(variants), tuple(archs), sizes.get(library, 0))


def _device_code(kernel: str, slug: str, unit: Record, folder: Path) -> Iterator[Code]:
    resources = unit.record("resources")
    for arch in _archs(unit):
        size = _size(folder / image_file(arch))
        if arch not in resources.raw:
            yield Code(kernel, slug, arch, size)
            continue
        for function, used in resources.members(arch):
            usage = Usage(**{each.name: used.count(each.name) for each in fields(Usage)})
            yield Code(kernel, slug, arch, size, function, usage)


def _tools(document: Record) -> Iterator[tuple[str, str]]:
    """Versions of the tools: most have a ``version``; TVM's record has one for each of its parts."""
    yield "Kernelwright", document.text("kernelwright")
    for name, tool in document.members("tools"):
        versions = {"version": name.replace("_", " "), "tvm": "TVM", "tvm_ffi": "tvm-ffi"}
        yield from ((shown, tool.text(key)) for key, shown in versions.items() if tool.has(key))


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
