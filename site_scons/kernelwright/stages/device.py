"""CUBIN and PTX: nvcc or NVRTC compiles the CUDA code of a variant for one arch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..compilers.nvcc import CompiledCode, DeviceJob, NvccJob, can_include, compile_device_code
from ..core.arch import is_ptx, virtual_arch
from ..core.errors import SettingsError, Where
from ..core.files import dependency_digest
from .commands import command_of
from .context import KernelContext
from .stage import Measured, Stage, files_in


def make(kernel: KernelContext, slug: str, source: str, arch: str) -> Stage:
    """The stage that compiles the CUDA code of a variant.

    Arguments:
        source: path of ``device.cu``.
        arch: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
    """
    folder, subject = Path(source).parent, f"{kernel.name}/{slug} {arch}"
    compiler = _compiler(kernel, arch, folder, partial(kernel.where, slug=slug))
    stage = _stage(kernel, compiler, source, subject, {name: name for name in compiler.job.outputs}, {})
    stage.archs = (arch,)
    stage.command = command_of(folder, "device.cu", compiler.command, compiler.job.output)
    return stage


def make_ptx(kernel: KernelContext, slug: str, source: str, arch: str) -> Stage:
    """The stage that makes the PTX behind the cubin of an arch, for readers: ``sm_90a.ptx``, for the arch ``sm_90a``.

    It is made only when it is asked for, and is another file than the ``compute_90a.ptx`` of a package for that arch.

    Arguments:
        source: path of ``device.cu``.
    """
    compiler = _compiler(kernel, virtual_arch(arch), Path(source).parent, partial(kernel.where, slug=slug))
    names = {compiler.job.output: f"{arch}.ptx"}
    stage = _stage(kernel, compiler, source, f"{kernel.name}/{slug} {arch}", names, {"cubin": arch})
    stage.archs, stage.shipped = (arch,), False
    return stage


def _stage(
    kernel: KernelContext,
    compiler: _Compiler,
    source: str,
    subject: str,
    names: Mapping[str, str],
    more: Mapping[str, Any],
) -> Stage:
    """The stage that runs a compiler.

    Arguments:
        names: a file that the compiler makes -> the name that it gets.
        more: further options.
    """
    run, job = kernel.run, compiler.job
    request = f"{'PTX of ' if more else ''}{subject}"

    def compile_it(scratch: Path) -> None:
        done = compiler.compile(scratch, request)
        stage.measured = Measured(done.result.cpu_seconds, done.result.peak_kib)
        for note in done.notes:
            run.note_once(f"kernelwright: {note}")
        for made, name in names.items():
            with contextlib.suppress(FileNotFoundError):  # what is not there is said when the stage is published
                (scratch / made).rename(scratch / name)
        remember({header: dependency_digest(run.top, header) for header in done.headers})

    options: dict[str, Any] = {"arch": job.arch, "flags": list(job.flags), **compiler.identity, **more}
    label = "PTX" if is_ptx(job.arch) else "CUBIN"
    remember = kernel.later(f"{job.where.stage} {request}", options) if can_include(job.flags) else _ignore
    outputs = files_in(job.folder, names.values())
    stage = Stage(label, subject, job.where, options, compile_it, outputs, [source], remember=remember)
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


def _compiler(kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where]) -> _Compiler:
    """The compiler that the settings choose.

    Arguments:
        where: the place for error messages, for the name of a stage.
    """
    return _nvrtc(kernel, arch, folder, where) if kernel.tools.nvrtc else _nvcc(kernel, arch, folder, where)


def _nvcc(kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where]) -> _Compiler:
    nvcc, host_compiler = kernel.tools.nvcc, kernel.tools.host_compiler
    if nvcc is None:
        raise SettingsError("CUDA code without nvcc", where("nvcc"))
    job = NvccJob(arch, kernel.flags, folder, where("nvcc"))

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        return compile_device_code(job, nvcc, host_compiler, scratch, kernel.run.compilers, subject)

    command = job.arguments(nvcc.path, host_compiler.path, job.output)
    return _Compiler(job, {"nvcc": nvcc.identity}, command, compile_it)


def _nvrtc(kernel: KernelContext, arch: str, folder: Path, where: Callable[[str], Where]) -> _Compiler:
    # Imported here, because few builds use it.
    from ..compilers.nvrtc import HeaderStore, NvrtcJob, compile_with_nvrtc
    from ..core.quantity import parse_size

    nvrtc, size = kernel.tools.nvrtc, kernel.package.settings.pch_size
    if nvrtc is None:
        raise SettingsError("CUDA code without NVRTC", where("nvrtc"))
    job = NvrtcJob(arch, kernel.flags, folder, where("nvrtc"))
    store = HeaderStore(kernel.run.state / "pch", parse_size(size) * 1024) if size else None

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        return compile_with_nvrtc(job, nvrtc, scratch, kernel.run.compilers, subject, store)

    return _Compiler(job, {"nvrtc": nvrtc.identity}, job.command(nvrtc), compile_it)


def _ignore(dependencies: Mapping[str, str]) -> None:
    """Remember nothing: flags that cannot include a file need no list of headers."""
