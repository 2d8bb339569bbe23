"""CC: the C compiler compiles the wrapper of a kernel's library, with the host code of the CUDA lowerings in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends import commands, sources
from ..backends.commands import ToolPaths
from ..backends.files import VariantFiles, units_of
from ..backends.launcher import interface_sources
from ..core.files import digest_of
from ..core.request import ASIDE
from ..define.debug import NO
from ..processes.tools import Elsewhere
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc_run import PWD, shell_script, stand_in
from ..toolchain.shared import shared_compiler
from .commands import command_of
from .context import KernelContext, debug_level, whole
from .places import real_places, symbolic_places
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Wrapper:
    """What the wrapper of a kernel is compiled with.

    Arguments:
        headers: digest of the launcher's headers that it includes.
        tvm_ffi: version of tvm-ffi, whose headers it includes.
        top: the folder of the package's kernels, in which the compiler runs.
    """

    kernel: str
    compiler: HostCompiler
    headers: str
    tvm_ffi: str
    places: ToolPaths
    top: Path = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Compile the wrapper, and write the script that does it again."""
        name, places, output = self.kernel, self.places, scratch / "wrapper.o"
        tool = shared_compiler(self.compiler, self.headers, self.tvm_ffi, places.launcher, places.includes)
        needs = Elsewhere(tool, tuple(map(Path, stage.sources)), (output,))
        command = commands.compile_command(name, places, str(output), str(self.top))
        remedy = f"the sources are below {self.top}"
        # Machines of a cluster have compilers for their own CPUs.
        elsewhere = None if self.compiler.cross else needs
        stage.tool(command, self.top, scratch, remedy, kind="cc", elsewhere=elsewhere)
        symbolic = replace(symbolic_places(self.compiler), debug=places.debug)
        by_hand = commands.compile_command(name, symbolic, f"{name}/wrapper.o", stand_in(PWD))
        (scratch / "compile_wrapper.sh").write_text(shell_script(self.compiler.version, "..", by_hand))


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...], wrapped: Stage) -> Stage:
    """The stage that compiles the wrapper.

    Arguments:
        wrapped: the stage that writes it.
    """
    name, tools, top = kernel.name, kernel.tools, kernel.package.work
    places = real_places(tools.host_compiler, debug_level(kernel) != NO)
    request = Wrapper(name, tools.host_compiler, digest_of(interface_sources()), tools.lowerer.tvm_ffi, places, top)
    outputs = files_in(kernel.folder, ("wrapper.o", "compile_wrapper.sh"))
    hosts = [unit.host for unit in units_of(variants) if unit.target == "cuda"]
    stage = Stage("CC", name, kernel.where("compile"), request, outputs, [wrapped.paths[0], *hosts])
    stage.rest = lambda: bool(whole(kernel.run, variants))
    output = f"{name}/wrapper.o"
    command = commands.compile_command(name, places, output, str(top))
    stage.command = command_of(top, f"{name}/{sources.FILES[0]}", command, output)
    return stage
