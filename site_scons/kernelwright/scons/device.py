"""Which compiler makes device code of a package: nvcc, or NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compile.nvcc import CompiledCode, DeviceJob, NvccJob, compile_device_code
from ..core.errors import SettingsError, Where

if TYPE_CHECKING:
    from .graph import PackageGraph


@dataclass(frozen=True)
class DeviceCompiler:
    """How one source is compiled for one arch.

    Arguments:
        job: what is compiled.
        identity: what decides the output besides the job, for the signature.
        command: the command, for compile_commands.json.
        compile: compiles into a scratch folder; it is given the folder, and what is made.
    """

    job: DeviceJob
    identity: dict[str, Any]
    command: list[str]
    compile: Callable[[Path, str], CompiledCode]


def device_compiler(
    graph: PackageGraph, arch: str, flags: tuple[str, ...], folder: Path, where: Callable[[str], Where]
) -> DeviceCompiler:
    """The compiler that the settings choose.

    Arguments:
        graph: the package.
        arch: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
        flags: flags of nvcc.
        folder: the folder of ``device.cu``.
        where: the place for error messages, for the name of a stage.
    """
    return _nvrtc(graph, arch, flags, folder, where) if graph.tools.nvrtc else _nvcc(graph, arch, flags, folder, where)


def _nvcc(
    graph: PackageGraph, arch: str, flags: tuple[str, ...], folder: Path, where: Callable[[str], Where]
) -> DeviceCompiler:
    nvcc, host_compiler = graph.tools.nvcc, graph.tools.host_compiler
    if nvcc is None:
        raise SettingsError("CUDA code without nvcc", where("nvcc"))
    job = NvccJob(arch, flags, folder, where("nvcc"))

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        return compile_device_code(job, nvcc, host_compiler, scratch, graph.run.tools, subject)

    command = job.arguments(nvcc.path, host_compiler.path, job.output)
    return DeviceCompiler(job, {"nvcc": nvcc.identity}, command, compile_it)


def _nvrtc(
    graph: PackageGraph, arch: str, flags: tuple[str, ...], folder: Path, where: Callable[[str], Where]
) -> DeviceCompiler:
    # Imported here, because few builds use it.
    from ..compile.nvrtc import HeaderStore, NvrtcJob, compile_with_nvrtc
    from ..processes.memory import parse_size

    nvrtc, size = graph.tools.nvrtc, graph.settings.pch_size
    if nvrtc is None:
        raise SettingsError("CUDA code without NVRTC", where("nvrtc"))
    job = NvrtcJob(arch, flags, folder, where("nvrtc"))
    store = HeaderStore(graph.run.state / "pch", parse_size(size) * 1024) if size else None

    def compile_it(scratch: Path, subject: str) -> CompiledCode:
        return compile_with_nvrtc(job, nvrtc, scratch, graph.run.tools, subject, store)

    return DeviceCompiler(job, {"nvrtc": nvrtc.identity}, job.command(nvrtc), compile_it)
