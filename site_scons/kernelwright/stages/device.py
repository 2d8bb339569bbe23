"""CUBIN and PTX: nvcc or NVRTC compiles the CUDA code of a variant for one arch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arch import is_ptx, virtual_arch
from ..core.errors import DefinitionError, SettingsError
from ..core.request import ASIDE
from ..toolchain.headers import can_include
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.kept_headers import KeptHeaders
from ..toolchain.nvcc import Nvcc
from ..toolchain.nvcc_run import (
    NvccJob,
    NvccRun,
    ToolHeaders,
    by_hand,
    compile_device_code,
)
from ..toolchain.nvcc_steps_run import KnownSteps, can_part, compile_by_steps
from .code import code_digest
from .commands import command_of
from .compilation import Compilation
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun

if TYPE_CHECKING:
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.nvrtc import Nvrtc
    from ..toolchain.nvrtc_run import HeaderStore, NvrtcJob  # noqa: F401 (it is the argument of a base class)


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
    parted = {arch: _is_parted(kernel.with_toolkit_for(arch)) for arch in archs}
    stages = {arch: _image(kernel, slug, source, arch, [source, *said]) for arch in archs if not parted[arch]}
    needed_by: dict[str, list[str]] = {}
    for arch in (arch for arch in archs if parted[arch]):
        needed_by.setdefault(virtual_arch(arch), []).append(arch)
    stages |= {arch: _image(kernel, slug, source, arch, [source, *said], needed_by[arch]) for arch in needed_by}
    for arch in archs:
        if parted[arch] and not is_ptx(arch):
            ptx = stages[virtual_arch(arch)].paths[0]
            stages[arch] = _image(kernel, slug, source, arch, [ptx, *said])
    return stages


def make_ptx(kernel: KernelContext, slug: str, source: str, archs: Sequence[str]) -> list[Stage]:
    """The stages that make the PTX behind cubins for readers, if cubins are not made from it anyway.

    Arguments:
        source: path of ``device.cu``.
        archs: what code there is for.
    """
    whole = [arch for arch in archs if not is_ptx(arch) and not _is_parted(kernel.with_toolkit_for(arch))]
    stages = [ptx_of(kernel, slug, source, arch) for arch in whole]
    return [stage for stage in stages if not set(stage.archs) & set(archs)]


def ptx_of(kernel: KernelContext, slug: str, source: str, arch: str) -> Stage:
    """The stage that makes the PTX behind the cubin of an arch, for readers: ``compute_90a.ptx`` for ``sm_90a``."""
    stage = _image(kernel, slug, source, virtual_arch(arch), [source])
    stage.shipped = False
    return stage


def _is_parted(kernel: KernelContext) -> bool:
    """Whether cubins are made from PTX files."""
    tools = kernel.tools
    return tools.nvcc is not None and not tools.nvrtc and can_part(kernel.flags) and not tools.obstacle


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
    kernel = kernel.with_toolkit_for(arch)
    subject = (kernel.tools.settings or kernel.package.settings).labelled(f"{kernel.name}/{slug} {arch}")
    folder, archs = Path(source).parent, tuple(wanted) or (arch,)
    compiles = _with_nvrtc if kernel.tools.nvrtc else _with_nvcc
    request: NvccCompilation | NvrtcCompilation = compiles(kernel, arch, folder, slug, arch in archs)
    label, outputs, where = "PTX" if is_ptx(arch) else "CUBIN", files_in(folder, request.job.outputs), request.job.where
    stage = Stage(label, subject, where, request, outputs, sources, archs=archs)
    stage.outside = request.outside(kernel.run.top)
    if source in sources and can_include(request.job.flags):  # other flags need no list of headers
        kernel.remembering(stage, f"{where.stage} {subject}", whole=True)
    if arch in archs:
        stage.command = command_of(folder, "device.cu", request.command, request.job.output)
    return stage


@dataclass(frozen=True)
class NvccCompilation(Compilation[NvccJob]):
    """How nvcc compiles it.

    Arguments:
        own_tool: what the headers of its front end come with, if that has some.
        flags_file: the name of the file with flags that the source says; empty: there is none.
        parted: whether a cubin is made from PTX, by the programs that nvcc runs.
        host_compiler: what nvcc runs for the host; the identity of nvcc covers it.
        shipped: whether what is made is used itself, and not only for cubins.
        steps: what nvcc runs, as far as it was asked for.
        obstacle: as :class:`NvccRun` has it.
    """

    nvcc: Nvcc
    own_tool: Distribution | Elsewhere | None
    flags_file: str
    parted: bool
    host_compiler: HostCompiler = field(metadata=ASIDE)
    shipped: bool = field(metadata=ASIDE)
    steps: KnownSteps = field(metadata=ASIDE)
    obstacle: str = field(metadata=ASIDE)

    @property
    def command(self) -> list[str]:
        """The command, for compile_commands.json."""
        return self.real.arguments(self.nvcc.path, self.host_compiler.path, self.job.output)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Have nvcc, or the programs that it would run, compile the source."""
        nvcc, host_compiler, begun = self.nvcc, self.host_compiler, time.time_ns()
        self.require_sound(stage.run.top)
        job = replace(self.real, flags=(*self.own_flags(), *self.real.flags))
        run = NvccRun(job, nvcc, host_compiler, scratch, stage.tools, stage.stage.subject, obstacle=self.obstacle)
        if self.parted:
            identity = (nvcc.identity, nvcc.path, host_compiler.identity, host_compiler.path, code_digest("PTX"))
            kept = KeptHeaders(stage.run.state / "headers", identity)
            done = compile_by_steps(run, self.steps, kept, shipped=self.shipped)
        else:
            done = compile_device_code(run)
        self.note(done, begun, stage, job.folder / "device.cu")

    def own_flags(self) -> tuple[str, ...]:
        """The flags that the source says, which lowering has written beside it.

        Raises:
            DefinitionError: with some of them a cubin is not what ptxas makes of PTX, or has paths of this machine.
        """
        flags = json.loads((self.job.folder / self.flags_file).read_text()) if self.flags_file else []
        if not can_part(flags) or any("lineinfo" in flag or "line-info" in flag for flag in flags):
            message = f"the flags of the source are {' '.join(flags)}, some of which cannot be taken as they are"
            raise DefinitionError(message, self.job.where, "leave them out there, and write flags=[...] in @kernel")
        return tuple(flags)


@dataclass(frozen=True)
class NvrtcCompilation(Compilation["NvrtcJob"]):
    """How NVRTC compiles it; ``store`` keeps precompiled headers."""

    nvrtc: Nvrtc
    store: HeaderStore | None = field(metadata=ASIDE)

    @property
    def command(self) -> list[str]:
        """The command, for compile_commands.json."""
        return self.real.command(self.nvrtc)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Have NVRTC compile the source."""
        from ..toolchain.nvrtc_run import compile_with_nvrtc

        job, begun = self.real, time.time_ns()
        self.require_sound(stage.run.top)
        done = compile_with_nvrtc(job, self.nvrtc, scratch, stage.tools, stage.stage.subject, self.store)
        self.note(done, begun, stage, job.folder / "device.cu")


def _with_nvcc(kernel: KernelContext, arch: str, folder: Path, slug: str, shipped: bool) -> NvccCompilation:
    nvcc, where, front_end = kernel.tools.nvcc, kernel.where("nvcc", slug), kernel.front_end
    if nvcc is None:
        raise SettingsError("CUDA code without nvcc", where)
    flags, headers, packages = kernel.flags_in(folder), _headers(kernel), _packages(kernel)
    parted = _is_parted(kernel)
    job = NvccJob(arch, flags, folder, where, headers, packages, has_portable_names=front_end.includes_sources)
    return NvccCompilation(
        *(by_hand(job), job, kernel.own_folders, Compilation.place_in(folder, kernel.flags, parted), nvcc),
        own_tool=kernel.own_tool if headers else None,
        flags_file=front_end.files("cuda", ()).flags,
        parted=parted,
        host_compiler=kernel.tools.native_compiler,
        obstacle=kernel.tools.obstacle,
        shipped=shipped,
        steps=kernel.tools.steps,
    )


def _with_nvrtc(kernel: KernelContext, arch: str, folder: Path, slug: str, shipped: bool) -> NvrtcCompilation:
    # Imported here, because few builds use it.
    from ..core.quantity import parse_size
    from ..toolchain.nvrtc_run import HeaderStore, NvrtcJob

    nvrtc, size, where = kernel.tools.nvrtc, kernel.package.settings.pch_size, kernel.where("nvrtc", slug)
    if nvrtc is None:
        raise SettingsError("CUDA code without NVRTC", where)
    if kernel.front_end.header_folders:
        message = f"NVRTC does not compile definitions in {kernel.front_end.name}, whose headers are written for nvcc"
        raise SettingsError(message, where, 'write cuda_compiler = "nvcc"')
    job = NvrtcJob(arch, kernel.flags_in(folder), folder, where, packages=_packages(kernel))
    store = HeaderStore(kernel.run.state / "pch", parse_size(size) * 1024) if size else None
    place = Compilation.place_in(folder, kernel.flags, parted=False)
    return NvrtcCompilation(by_hand(job), job, kernel.own_folders, place, nvrtc, store)


def _packages(kernel: KernelContext) -> dict[str, str]:
    """The folders of headers in installed packages, and their names."""
    return {str(folder): name for name, folder in kernel.package_folders.items()}


def _headers(kernel: KernelContext) -> ToolHeaders | None:
    """The headers of the front end's tool that the CUDA source includes."""
    front_end, headers = kernel.front_end, kernel.front_end.header_folders
    path = getattr(kernel.own_tool, "path", "")
    return ToolHeaders(front_end.name.upper(), path, headers.folders, headers.standard) if headers else None
