"""The texts of a compiled kernel: what it was lowered from, and what its code is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arch import real_arch, virtual_arch
from ..core.dependencies import present_digest
from ..core.errors import KernelwrightError, Where
from ..runtime.loader import read_regular
from .kernel_folders import AGAIN

if TYPE_CHECKING:
    from .build import Job

FILES = {"tir": ("module.tir", "module.mlir", "module.ttir"), "cuda": ("device.cu",), "host": ("host.c",)}
"""Kind of source -> the names of the files that it may be in."""

KINDS = (*FILES, "ptx", "sass")


def source_of(job: Job, artifacts: Path, later: Mapping[str, str], kind: str = "cuda", arch: str | None = None) -> str:
    """A text of a compiled kernel.

    Arguments:
        job: what was compiled.
        artifacts: the kernel's folder.
        later: what its stages turned out to read, with digests: PTX that is made now must read the same.
        kind: ``tir`` (the scheduled function), ``cuda`` (the device code), ``host`` (the host code of CUDA, in C),
            ``ptx`` or ``sass``.
        arch: the arch that it is of; None: the first CUDA arch, or else the CPU's.

    Raises:
        KernelwrightError: there is no such text, and the message says what there is; or the kernel's files have gone.
    """
    where = Where(job.record.name, job.slug, "source", job.record.location)
    if kind not in KINDS:
        raise KernelwrightError(f"there is no source {kind!r}", where, f"the kinds are {', '.join(KINDS)}")
    archs = job.selection.archs
    cuda = archs.get("cuda", ())
    compiled = cuda if job.selection.compiled is None else job.selection.compiled
    known = (*compiled, *archs.get("llvm", ()))
    if arch is not None and arch not in known:
        raise KernelwrightError(f"it is not compiled for {arch}", where, f"its archs are {', '.join(known)}")
    folder = artifacts / job.slug
    if kind != "tir" and (not compiled or arch in archs.get("llvm", ())):
        remedy = "compile it for CUDA: using(archs=['sm_90a']); of code for the CPU there is 'tir'"
        raise KernelwrightError(f"there is no {kind} of code for the CPU", where, remedy)
    arch = arch or known[0]
    try:
        if arch in archs.get("llvm", ()):
            return _read(folder / "llvm" / arch, kind, where)
        unit = folder / "cuda" / (real_arch(arch) if job.record.options.per_arch else "")
        return _read(unit, kind, where) if kind in FILES else _made(job, unit, kind, arch, later)
    except (OSError, ValueError) as error:
        message = f"its files are no longer in the cache: {artifacts.parent} has gone, or is damaged"
        raise KernelwrightError(message, where, AGAIN) from error


def _read(folder: Path, kind: str, where: Where) -> str:
    there = {path.name for path in folder.iterdir()}
    for name in FILES[kind]:
        if name in there:
            return read_regular(folder / name).decode()
    remedy = f"the files that it has are in {folder}"
    raise KernelwrightError(f"this kernel has no source {kind!r}", where, remedy)


def _made(job: Job, folder: Path, kind: str, arch: str, later: Mapping[str, str]) -> str:
    """The PTX or the SASS of an arch, which a stage makes of the files of the kernel."""
    from ..stages import device, sass
    from ..stages.execution import attempt
    from .build import kernel_context
    from .run import OnDemandRun

    there, ptx = {path.name for path in folder.iterdir()}, f"{virtual_arch(arch)}.ptx"
    if kind == "ptx" and ptx in there:
        return read_regular(folder / ptx).decode()
    if kind == "ptx" and "device.cu" not in there:
        where = Where(job.record.name, job.slug, "source", job.record.location)
        message = f"this kernel has no PTX: {job.record.options.frontend} compiles its device code itself"
        raise KernelwrightError(message, where, f"compile it for PTX, too: using(archs=[..., {virtual_arch(arch)!r}])")
    with job.session.store.scratch(job.record.name) as scratch:
        kernel = kernel_context(job, OnDemandRun(job.session, lambda text: None), scratch)
        # Not in the cache: it may be read-only, and its folders have only what their manifests list.
        source = scratch / job.slug / ("device.cu" if kind == "ptx" else f"{arch}.cubin")
        source.parent.mkdir(parents=True)
        source.write_bytes(read_regular(folder / source.name))
        make = device.ptx_of if kind == "ptx" else sass.make
        stage = make(kernel, job.slug, str(source), arch)
        if (problem := attempt(stage, kernel.run)) is not None:
            raise problem
        _require_unedited(job, later if kind == "ptx" else {})
        return Path(stage.paths[0]).read_text(encoding="utf-8")


def _require_unedited(job: Job, later: Mapping[str, str]) -> None:
    """Raise a KernelwrightError if a text was made now from other headers than the kernel."""
    for name, digest in later.items():
        if present_digest(job.session.root, name) != digest:
            where = Where(job.record.name, job.slug, "source", job.record.location)
            message = f"its PTX cannot be made any more: {name} is not what the kernel was compiled with"
            raise KernelwrightError(message, where, f"{AGAIN}, and ask the new one")


def write_ir(job: Job, folder: Path, note: Callable[[str], None]) -> None:
    """Write the IR after each of TVM's passes into the folder of a compiled kernel, unless it is there.

    The files are in ``<kernel>/<slug>/<target>/ir``; they are no part of what the kernel's manifest lists.

    Raises:
        KernelwrightError: the folder cannot be written.
    """
    from ..stages import ir
    from ..stages.execution import attempt
    from .build import kernel_context
    from .run import OnDemandRun

    run = OnDemandRun(job.session, note)
    for stage in ir.make_all(kernel_context(job, run, folder)):
        if not Path(stage.paths[0]).is_file() and (problem := attempt(stage, run)) is not None:
            raise problem
