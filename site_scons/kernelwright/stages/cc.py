"""CC: the C compiler compiles the wrapper of a kernel's library, with the host code of the CUDA lowerings in it."""

from __future__ import annotations

from pathlib import Path

from ..compilers.nvcc import shell_script
from ..compilers.shared import shared_compiler
from ..core.files import digest_of
from ..library import commands, sources
from ..library.files import VariantFiles, units_of
from ..library.launcher import interface_sources
from ..processes.elsewhere import Elsewhere
from .commands import command_of
from .context import KernelContext
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...], wrapped: Stage) -> Stage:
    """The stage that compiles the wrapper.

    Arguments:
        wrapped: the stage that writes it.
    """
    name, compiler, top = kernel.name, kernel.tools.host_compiler, kernel.package.work
    where, output = kernel.where("compile"), f"{name}/wrapper.o"
    places = real_places(compiler)
    by_hand = commands.compile_command(name, SYMBOLIC_PLACES, output)
    headers, tvm_ffi = digest_of(interface_sources()), kernel.tools.lowerer.tvm_ffi
    tool = shared_compiler(compiler, headers, tvm_ffi, places.launcher, places.includes)

    def compile_it(scratch: Path) -> None:
        command = commands.compile_command(name, places, str(scratch / "wrapper.o"))
        remedy = f"the sources are below {top}"
        inputs = tuple(Path(source) for source in stage.sources if not kernel.run.lacks(source))
        needs = Elsewhere(tool, inputs, (scratch / "wrapper.o",))
        done = kernel.run.compilers.run(command, top, scratch, where, remedy, kind="cc", subject=name, elsewhere=needs)
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        (scratch / "compile_wrapper.sh").write_text(shell_script(compiler.version, "..", by_hand))

    options = {
        "compiler": compiler.identity,
        "command": by_hand,
        "headers": headers,
        "tvm_ffi": tvm_ffi,
    }
    outputs = files_in(kernel.folder, ("wrapper.o", "compile_wrapper.sh"))
    hosts = [unit.host for unit in units_of(variants) if unit.target == "cuda"]
    stage = Stage("CC", name, where, options, compile_it, outputs, [wrapped.paths[0], *hosts])
    stage.rest = lambda: bool(kernel.whole(variants))
    command = commands.compile_command(name, places, output)
    stage.command = command_of(top, f"{name}/{sources.FILES[0]}", command, output)
    return stage
