"""The tools that a package is built with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import frontends
from ..core.arch import native_family
from ..core.errors import SettingsError, ToolchainError, Where
from ..core.plugins import content_of, guarded

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..frontends.base import FrontEnd
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.host_compiler import HostCompiler
    from ..toolchain.nvcc import Nvcc
    from ..toolchain.nvcc_steps_run import KnownSteps
    from ..toolchain.nvdisasm import Nvdisasm
    from ..toolchain.nvrtc import Nvrtc
    from ..toolchain.probe import Toolchain
    from ..toolchain.tvm import Lowerer


@dataclass(frozen=True)
class Tools:
    """The tools of a package; nvcc and NVRTC only where CUDA code is built with them.

    Arguments:
        host_compiler: the C compiler for the CPUs that the package is for.
        chain, settings: find those tools that few packages need, when they are asked for.
        native: this machine's C compiler, which the CUDA compiler runs; None: it is the same.
        others: the same with the further CUDA toolkits of a package that has code of several.
        known_obstacle: what :attr:`obstacle` is; None: the tools are asked.
    """

    lowerer: Lowerer
    host_compiler: HostCompiler
    nvcc: Nvcc | None
    nvrtc: Nvrtc | None = None
    chain: Toolchain | None = None
    settings: Settings | None = None
    native: HostCompiler | None = None
    others: tuple[Tools, ...] = ()
    known_obstacle: str | None = None

    @property
    def native_compiler(self) -> HostCompiler:
        """This machine's C compiler: device code is made with it, whatever CPUs the package is for."""
        return self.native or self.host_compiler

    def for_arch(self, arch: str) -> Tools:
        """The tools of the first CUDA toolkit that knows an arch."""
        knowing = (tools for tools in (self, *self.others) if tools.cuda and arch in tools.cuda.archs)
        return next(knowing, self)

    @property
    def cuda_archs(self) -> tuple[str, ...]:
        """The archs that any of the CUDA toolkits knows."""
        return tuple(dict.fromkeys(arch for tools in (self, *self.others) if tools.cuda for arch in tools.cuda.archs))

    @property
    def cuda(self) -> Nvcc | Nvrtc | None:
        """What compiles CUDA code."""
        return self.nvrtc or self.nvcc

    @cached_property
    def of_front_ends(self) -> dict[str, Distribution | Elsewhere]:
        """The tools that the front ends of Kernelwright run besides TVM, by the name of the front end."""
        tools = {name: self._tool_of(name) for name in frontends.names()}
        return {name: tool for name, tool in tools.items() if tool is not None}

    def of_front_end(self, name: str, where: Where | None = None) -> Distribution | Elsewhere | None:
        """The tool that a front end runs besides TVM; None: it runs none.

        Arguments:
            where: the place of a kernel that is written in it, for errors.

        Raises:
            ToolchainError: it is that of a plug-in, which does not tell it.
        """
        if name in frontends.names():
            return self.of_front_ends.get(name)
        try:
            return self._tool_of(name)
        except ToolchainError as error:
            error.where = where or error.where
            raise

    def _tool_of(self, name: str) -> Distribution | Elsewhere | None:
        if self.chain is None or self.settings is None:
            raise ToolchainError("the tools of front ends were not looked for", Where(stage="settings"))
        front_end = frontends.get(name)
        if front_end.distribution:
            return _of_plugin(front_end, self.chain, self.settings)
        return front_end.tool(self.chain, self.settings)

    def data_of_front_end(self, name: str) -> dict[str, Any]:
        """What is known of that tool, without paths."""
        return _described(self.of_front_end(name))

    @cached_property
    def steps(self) -> KnownSteps:
        """The programs that nvcc runs, as far as they were asked for."""
        from ..toolchain.nvcc_steps_run import KnownSteps

        return KnownSteps()

    @cached_property
    def obstacle(self) -> str:
        """Why nvcc is run as a whole; empty: the programs that it runs can be run one by one.

        Raises:
            ToolchainError: nvcc does not compile a small kernel.
        """
        if self.known_obstacle is not None or self.nvcc is None or self.chain is None:
            return self.known_obstacle or ""
        return self.chain.nvcc_programs(self.nvcc, self.native_compiler).obstacle

    @cached_property
    def fatbinary(self) -> str:
        """Path of what compresses device code.

        Raises:
            KernelwrightError: there is none, or it is too old.
        """
        from ..toolchain.fatbin import find_fatbinary

        return find_fatbinary(self.nvcc) if self.nvcc is not None else ""

    @cached_property
    def nvdisasm(self) -> Nvdisasm:
        """What disassembles device code.

        Raises:
            ToolchainError: there is none, or it does not answer.
        """
        if self.chain is None:
            raise ToolchainError("nvdisasm was not looked for", Where(stage="settings"))
        return self.chain.nvdisasm(self.nvcc.path if self.nvcc else "")

    @cached_property
    def data(self) -> dict[str, Any]:
        """The tools as the manifest shows them, without paths."""
        tools = {"host_compiler": self.host_compiler, "nvcc": self.nvcc, "nvrtc": self.nvrtc}
        others = [one.cuda for one in self.others if one.cuda]
        more = {f"{tool.name.lower()} {tool.version.rpartition('.')[0]}": tool for tool in others}
        named = {name: _described(tool) for name, tool in {**tools, **more}.items() if tool}
        return {"tvm": asdict(self.lowerer), **named}


def _of_plugin(front_end: FrontEnd, chain: Toolchain, settings: Settings) -> Distribution | Elsewhere:
    """The tool of a front end that a plug-in brings: what the plug-in itself consists of is a part of its identity."""
    from ..toolchain.ask import identity
    from ..toolchain.distribution import Distribution

    with guarded(f"the front end {front_end.name!r} of {front_end.distribution} does not tell its tool"):
        tool = front_end.tool(chain, settings)
    facts = [*content_of(front_end), tool.identity if tool else ""]
    return replace(tool or Distribution(front_end.version, ""), identity=identity(facts))


def _described(tool: HostCompiler | Nvcc | Nvrtc | Distribution | Elsewhere | None) -> dict[str, str]:
    """What tells one tool from another, without paths; empty: there is no tool."""
    return {"version": tool.version, "identity": tool.identity} if tool else {}


def find_tools(settings: Settings, chain: Toolchain) -> Tools:
    """Probe what the settings need.

    Raises:
        ToolchainError: a tool is missing or broken.
        SettingsError: the CUDA compiler does not know an arch.
    """
    each = settings.of_each_toolkit
    first, *others = (_tools_of(one, chain) for one in (each if settings.cuda_wheels == "one" else each[:1]))
    if others:
        tools = (first, *others)
        require_any(settings, [(s.toolkit, t.cuda.archs) for s, t in zip(each, tools, strict=True) if t.cuda])
        return replace(first, others=tuple(others))
    if first.cuda is not None:
        require_archs(first.cuda, settings)
    return first


def _tools_of(settings: Settings, chain: Toolchain) -> Tools:
    """The tools with one CUDA toolkit."""
    compiler = native = host_compiler_of(settings, chain)
    if settings.family != native_family():
        named = dict(item.split("=", 1) for item in settings.cross_compilers)
        with _told_by(settings, "cross_compilers", *settings.archs_of("llvm")):
            compiler = chain.cross_compiler(settings.family, named.get(settings.family, ""), settings.glibc)
    nvcc, nvrtc = _cuda_compiler(settings, chain, native)
    if nvrtc is not None and settings.compress != "none":
        nvcc = _nvcc_to_compress(settings, chain, native)
    return Tools(chain.lowerer(), compiler, nvcc, nvrtc, chain=chain, settings=settings, native=native)


@contextmanager
def _told_by(settings: Settings, *names: str) -> Iterator[None]:
    """Have the error for a tool that is missing name the place of the settings that chose it."""
    try:
        yield
    except ToolchainError as error:
        raise ToolchainError(error.message, settings.where(*names), error.remedy, error.detail) from error


def host_compiler_of(settings: Settings, chain: Toolchain) -> HostCompiler:
    """The C compiler of this machine.

    Raises:
        ToolchainError: there is none, or it is broken.
    """
    with _told_by(settings, "host_compiler"):
        return chain.host_compiler(settings.host_compiler)


def _cuda_compiler(settings: Settings, chain: Toolchain, compiler: HostCompiler) -> tuple[Nvcc | None, Nvrtc | None]:
    """What compiles CUDA code: one of these, or none without the target ``cuda``.

    Raises:
        ToolchainError: there is none, or it is broken.
        SettingsError: the setting ``nvcc`` names one of another release than the setting ``cuda``.
    """
    if "cuda" not in settings.targets:
        return None, None
    if settings.cuda_compiler == "nvrtc":
        with _told_by(settings, "cuda_compiler", "cuda"):
            return None, chain.nvrtc(settings.toolkit)
    with _told_by(settings, "nvcc", "cuda"):
        nvcc = chain.nvcc(settings.nvcc, compiler, settings.toolkit)
    if settings.toolkit and not nvcc.version.startswith(f"{settings.toolkit}."):
        message = f"nvcc = {settings.nvcc!r} is of CUDA {nvcc.version}, and cuda names {settings.toolkit}"
        raise SettingsError(message, settings.where("nvcc", "cuda"), "leave nvcc out, or name its release in cuda")
    return nvcc, None


def editions(settings: Settings, chain: Toolchain) -> list[tuple[Settings, tuple[str, ...]]]:
    """The settings of the packages that are built, one for each CUDA toolkit, and the archs that the toolkit knows.

    Each has those archs that its toolkit knows.

    Raises:
        ToolchainError: a toolkit is missing or broken.
        SettingsError: no toolkit knows an arch, or a toolkit knows none of them.
    """
    wanted = settings.archs_of("cuda")
    found: list[tuple[Settings, tuple[str, ...]]] = []
    for one in settings.toolkits:
        nvcc, nvrtc = _cuda_compiler(one, chain, host_compiler_of(one, chain))
        found.append((one, nvrtc.archs if nvrtc else nvcc.archs if nvcc else ()))
    knows = require_any(settings, [(one.toolkit, known) for one, known in found])
    for one, known in found:
        if not {*known} & {*wanted}:
            message = f"CUDA {one.toolkit} knows none of the archs {', '.join(wanted)}"
            remedy = f"remove it from cuda, or add an arch to archs; {knows}"
            raise SettingsError(message, settings.where("cuda", *wanted), remedy)
    others = settings.archs_of("llvm")
    return [(replace(one, archs=(*others, *(a for a in wanted if a in known))), known) for one, known in found]


def require_any(settings: Settings, found: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Raise a SettingsError for an arch that no CUDA toolkit knows; which ones each knows, in words, is returned.

    Arguments:
        found: releases of the toolkits, and the archs that each knows.
    """
    knows = "; ".join(f"CUDA {release} knows {', '.join(known)}" for release, known in found)
    for arch in settings.archs_of("cuda"):
        if not any(arch in known for _, known in found):
            message = f"no toolkit of cuda = {', '.join(settings.cuda)} knows the arch {arch!r}"
            raise SettingsError(message, settings.where("cuda", arch), knows)
    return knows


def _nvcc_to_compress(settings: Settings, chain: Toolchain, compiler: HostCompiler) -> Nvcc:
    """The nvcc that comes with fatbinary, where NVRTC compiles."""
    try:
        nvcc: Nvcc = chain.nvcc(settings.nvcc, compiler, settings.toolkit)
    except ToolchainError as error:
        message = f"compress = {settings.compress!r} needs fatbinary, which comes with nvcc: {error.message}"
        remedy = "pip install 'kernelwright[cuda]', or write compress = none; on the command line: COMPRESS=none"
        raise ToolchainError(message, settings.where("compress", "nvcc", "cuda"), remedy, error.detail) from error
    return nvcc


def require_archs(compiler: Nvcc | Nvrtc, settings: Settings) -> None:
    """Raise a SettingsError for an arch that the CUDA compiler does not know."""
    for arch in settings.archs_of("cuda"):
        if arch not in compiler.archs:
            raise SettingsError(
                f"{compiler.name} {compiler.version} does not know the arch {arch!r}",
                settings.where(arch),
                f"use some of {', '.join(compiler.archs)}",
            )
