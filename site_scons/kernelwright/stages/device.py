"""CUBIN and PTX: nvcc or NVRTC compiles the CUDA code of a variant for one arch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..compilers.nvcc import CompiledCode, DeviceJob, NvccJob, ToolHeaders, can_include, compile_device_code
from ..compilers.nvcc_steps import can_part, compile_by_steps
from ..core.arch import is_ptx, virtual_arch
from ..core.errors import DefinitionError, SettingsError, Where
from ..toolchain.kept_headers import KeptHeaders
from .code import code_digest
from .commands import command_of
from .context import KernelContext
from .included import included
from .stage import Measured, Stage, files_in


def make_all(kernel: KernelContext, slug: str, source: str, archs: Sequence[str]) -> dict[str, Stage]:
    """The stages that compile the CUDA code of a variant, by the arch that they make code for, PTX first.

    A cubin is made from the PTX of its virtual arch, which is made once for all archs that need it; or from the source,
    if the compiler has to do it in one go.

    Arguments:
        source: path of ``device.cu``.
        archs: what code is wanted for: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
    """
    # Flags that the source says are for all programs.
    said = [str(Path(source).with_name(name))] if (name := kernel.front_end.files("cuda", ()).flags) else []
    if not _is_parted(kernel):
        return {arch: _image(kernel, slug, source, arch, [source, *said]) for arch in archs}
    needed_by: dict[str, list[str]] = {}
    for arch in archs:
        needed_by.setdefault(virtual_arch(arch), []).append(arch)
    stages = {arch: _image(kernel, slug, source, arch, [source, *said], needed_by[arch]) for arch in needed_by}
    for arch in archs:
        if not is_ptx(arch):
            ptx = stages[virtual_arch(arch)].paths[0]
            stages[arch] = _image(kernel, slug, source, arch, [ptx, *said])
    return stages


def _own_flags(kernel: KernelContext, folder: Path, where: Where) -> tuple[str, ...]:
    """The flags that the source says, which lowering has written beside it.

    Raises:
        DefinitionError: with some of them a cubin is not what ptxas makes of PTX, or has paths of this machine.
    """
    name = kernel.front_end.files("cuda", ()).flags
    flags = json.loads((folder / name).read_text()) if name else []
    if not can_part(flags) or any("lineinfo" in flag or "line-info" in flag for flag in flags):
        message = f"the flags of the source are {' '.join(flags)}, some of which cannot be taken as they are"
        raise DefinitionError(message, where, "leave them out there, and write flags=[...] in @kernel")
    return tuple(flags)


def make_ptx(kernel: KernelContext, slug: str, source: str, archs: Sequence[str]) -> list[Stage]:
    """The stages that make the PTX behind cubins for readers, if cubins are not made from it anyway.

    Arguments:
        source: path of ``device.cu``.
        archs: what code there is for.
    """
    stages = [] if _is_parted(kernel) else [ptx_of(kernel, slug, source, arch) for arch in archs if not is_ptx(arch)]
    return [stage for stage in stages if not set(stage.archs) & set(archs)]


def ptx_of(kernel: KernelContext, slug: str, source: str, arch: str) -> Stage:
    """The stage that makes the PTX behind the cubin of an arch, for readers: ``compute_90a.ptx`` for ``sm_90a``."""
    stage = _image(kernel, slug, source, virtual_arch(arch), [source])
    stage.shipped = False
    return stage


def _is_parted(kernel: KernelContext) -> bool:
    """Whether cubins are made from PTX files."""
    nvcc = None if kernel.tools.nvrtc else kernel.tools.nvcc
    return nvcc is not None and not nvcc.obstacle and can_part(kernel.flags)


def _image(
    kernel: KernelContext,
    slug: str,
    source: str,
    arch: str,
    sources: Sequence[str],
    wanted: Sequence[str] = (),
) -> Stage:
    """The stage that makes a cubin or a PTX file.

    Arguments:
        source: path of ``device.cu``.
        sources: what it is made from: ``device.cu``, or its PTX.
        wanted: the archs that need it, if that is not the arch alone.
    """
    run, folder, subject = kernel.run, Path(source).parent, f"{kernel.name}/{slug} {arch}"
    archs = tuple(wanted) or (arch,)
    compiler = _compiler(kernel, arch, folder, partial(kernel.where, slug=slug), arch in archs)
    job = compiler.job

    def compile_it(scratch: Path) -> None:
        kernel.require_folders(job.where)
        begun = time.time_ns()
        done = compiler.compile(scratch, subject)
        stage.measured = Measured(done.result.cpu_seconds, done.result.peak_kib)
        for note in done.notes:
            run.note_once(f"kernelwright: {note}")
        remember(included(kernel.run.top, done.headers, job, begun, job.folder / "device.cu"))

    options: dict[str, Any] = {"arch": arch, "flags": list(job.flags), **compiler.identity}
    if job.headers:
        options["headers"] = kernel.own_tools
    includes = source in sources and can_include(job.flags)
    remember = kernel.later(f"{job.where.stage} {subject}", options) if includes else _ignore
    label, outputs = "PTX" if is_ptx(arch) else "CUBIN", files_in(folder, job.outputs)
    stage = Stage(label, subject, job.where, options, compile_it, outputs, sources, remember=remember)
    stage.archs = archs
    if arch in archs:
        stage.command = command_of(folder, "device.cu", compiler.command, job.output)
    return stage


@dataclass(frozen=True)
class _Compiler:
    """How one source is compiled for one arch.

    Arguments:
        job: what is compiled.
        identity: what decides the output besides the job, for the fingerprint.
        command: the command, for compile_commands.json.
        compile: compiles into a scratch folder; it is given the folder, and what is made.
    """

    job: DeviceJob
    identity: dict[str, Any]
    command: list[str]
    compile: Callable[[Path, str], CompiledCode]


def _compiler(
    kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where], shipped: bool
) -> _Compiler:
    """The compiler that the settings choose.

    Arguments:
        where: the place for error messages, for the name of a stage.
        shipped: whether what it makes is used itself, and not only for cubins.
    """
    return _nvrtc(kernel, arch, folder, where) if kernel.tools.nvrtc else _nvcc(kernel, arch, folder, where, shipped)


def _nvcc(kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where], shipped: bool) -> _Compiler:
    nvcc, host_compiler = kernel.tools.nvcc, kernel.tools.host_compiler
    if nvcc is None:
        raise SettingsError("CUDA code without nvcc", where("nvcc"))
    includes = kernel.front_end.includes_sources
    flags, packages = kernel.flags_in(folder), _packages(kernel)
    given = NvccJob(arch, flags, folder, where("nvcc"), _headers(kernel), packages, includes)

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        tools = kernel.run.compilers
        job = replace(given, flags=(*_own_flags(kernel, folder, given.where), *given.flags))
        if _is_parted(kernel):
            identity = (nvcc.identity, nvcc.path, host_compiler.identity, host_compiler.path, code_digest("PTX"))
            kept = KeptHeaders(kernel.run.state / "headers", identity)
            steps = kernel.tools.steps
            return compile_by_steps(job, nvcc, host_compiler, steps, kept, scratch, tools, subject, shipped=shipped)
        return compile_device_code(job, nvcc, host_compiler, scratch, tools, subject)

    command = given.arguments(nvcc.path, host_compiler.path, given.output)
    return _Compiler(given, {"nvcc": nvcc.identity}, command, compile_it)


def _packages(kernel: KernelContext) -> dict[str, str]:
    """The folders of headers in installed packages, and their names."""
    return {str(folder): name for name, folder in kernel.package_folders.items()}


def _headers(kernel: KernelContext) -> ToolHeaders | None:
    """The headers of the front end's tool that the CUDA source includes."""
    front_end, found = kernel.front_end, kernel.front_end.header_folders
    path = getattr(kernel.tools.of_front_ends.get(front_end.name), "path", "")
    return ToolHeaders(front_end.name.upper(), path, found.folders, found.standard) if found else None


def _nvrtc(kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where]) -> _Compiler:
    # Imported here, because few builds use it.
    from ..compilers.nvrtc import HeaderStore, NvrtcJob, compile_with_nvrtc
    from ..core.quantity import parse_size

    nvrtc, size = kernel.tools.nvrtc, kernel.package.settings.pch_size
    if nvrtc is None:
        raise SettingsError("CUDA code without NVRTC", where("nvrtc"))
    if kernel.front_end.header_folders:
        message = f"NVRTC does not compile definitions in {kernel.front_end.name}, whose headers are written for nvcc"
        raise SettingsError(message, where("nvrtc"), 'write cuda_compiler = "nvcc"')
    job = NvrtcJob(arch, kernel.flags_in(folder), folder, where("nvrtc"), packages=_packages(kernel))
    store = HeaderStore(kernel.run.state / "pch", parse_size(size) * 1024) if size else None

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        return compile_with_nvrtc(job, nvrtc, scratch, kernel.run.compilers, subject, store)

    return _Compiler(job, {"nvrtc": nvrtc.identity}, job.command(nvrtc), compile_it)


def _ignore(dependencies: Mapping[str, str]) -> None:
    """Remember nothing: flags that cannot include a file need no list of headers."""
