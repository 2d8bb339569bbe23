"""LAUNCHER: the C compiler compiles the launcher once, for all kernels of a package."""

from __future__ import annotations

from pathlib import Path

from ..compilers.nvcc import shell_script
from ..core.errors import Where
from ..core.files import digest_of
from ..library.commands import launcher_command
from ..library.launcher import launcher_sources
from .context import Context
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in


def make(context: Context) -> Stage:
    """The stage that compiles the launcher."""
    compiler, where = context.tools.host_compiler, Where(stage="compile")
    places = real_places(compiler)

    def compile_it(scratch: Path) -> None:
        remedy = "it is a part of Kernelwright: see whether the C compiler and tvm-ffi are intact"
        command = launcher_command(places)
        done = context.run.compilers.run(command, scratch, scratch, where, remedy, kind="launcher", subject="launcher")
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        script = shell_script(compiler.version, ".", launcher_command(SYMBOLIC_PLACES))
        (scratch / "compile_launcher.sh").write_text(script)

    options = {
        "compiler": compiler.identity,
        "command": launcher_command(SYMBOLIC_PLACES),
        "headers": digest_of(launcher_sources()),
        "tvm_ffi": context.tools.lowerer.tvm_ffi,
    }
    outputs = files_in(context.work / context.launcher, ("launcher.o", "compile_launcher.sh"))
    stage = Stage("LAUNCHER", "launcher", where, options, compile_it, outputs, [])
    return stage
