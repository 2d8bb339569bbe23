"""LAUNCHER: the C compiler makes the launcher, which is one library for all kernels of a package."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from ..compilers.nvcc import shell_script
from ..core.errors import Where
from ..core.files import canonical_json, digest_of
from ..library.commands import LIBRARIES, launcher_command, launcher_library, launcher_map
from ..library.launcher import launcher_sources
from .context import Context
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in


def make(context: Context, glibc: Stage | None) -> Stage:
    """The stage that makes the launcher's library; its first output.

    Arguments:
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
    """
    compiler, top, where = context.tools.host_compiler, context.work, Where(stage="compile")
    stubs = context.glibc if glibc else ""
    places, symbolic = replace(real_places(compiler), glibc=stubs), replace(SYMBOLIC_PLACES, glibc=stubs)
    options = {
        "compiler": compiler.identity,
        "command": launcher_command(symbolic, launcher_library("")),
        "headers": digest_of(launcher_sources()),
        "tvm_ffi": context.tools.lowerer.tvm_ffi,
    }
    library = launcher_library(hashlib.sha256(canonical_json(options).encode()).hexdigest())

    def compile_it(scratch: Path) -> None:
        (scratch / "launcher.map").write_text(launcher_map(library))
        remedy = "it is a part of Kernelwright: see whether the C compiler and tvm-ffi are intact"
        command = launcher_command(places, library, str(scratch))
        done = context.run.compilers.run(command, top, scratch, where, remedy, kind="launcher", subject="launcher")
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        script = shell_script(compiler.version, "..", launcher_command(symbolic, library))
        (scratch / "compile_launcher.sh").write_text(script)

    outputs = files_in(context.work / LIBRARIES, (library, "launcher.map", "compile_launcher.sh"))
    stage = Stage("LAUNCHER", "launcher", where, options, compile_it, outputs, glibc.paths if glibc else [])
    return stage
