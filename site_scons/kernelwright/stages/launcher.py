"""LAUNCHER: the C compiler makes the launcher, which is one library for all kernels of a package."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from ..compilers.nvcc import shell_script
from ..core.errors import Where
from ..core.files import canonical_json, digest_of, scratch_folder
from ..library.commands import LIBRARIES, launcher_commands, launcher_library, launcher_map
from ..library.launcher import launcher_sources
from ..processes.runner import ToolResult, together
from .context import Context
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in

WHERE = Where(stage="compile")
REMEDY = "it is a part of Kernelwright: see whether the C compiler and tvm-ffi are intact"


@dataclass(frozen=True)
class CompiledLauncher:
    """The launcher as an object file, and what compiling took."""

    data: bytes
    result: ToolResult


def begin(context: Context) -> Future[CompiledLauncher]:
    """Compile the launcher in a thread, while nobody knows yet what else there is to do.

    It takes the C compiler a second, and needs nothing of any kernel. It asks no cache, whose key for the stage needs
    what ``GLIBC`` makes. Compile on demand uses no such libraries, and runs the whole stage instead.
    """
    compiled: Future[CompiledLauncher] = Future()

    def work() -> None:
        try:
            compiled.set_result(_compile(context))
        except BaseException as error:  # whoever waits for it gets it
            compiled.set_exception(error)

    Thread(target=work, name="launcher", daemon=True).start()
    return compiled


def make(context: Context, glibc: Stage | None, begun: Future[CompiledLauncher] | None = None) -> Stage:
    """The stage that makes the launcher's library; its first output.

    Arguments:
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
        begun: what :func:`begin` gave; None: the stage compiles it.
    """
    compiler, top = context.tools.host_compiler, context.work
    stubs = context.glibc if glibc else ""
    places, symbolic = replace(real_places(compiler), glibc=stubs), replace(SYMBOLIC_PLACES, glibc=stubs)
    options = {
        "compiler": compiler.identity,
        "commands": launcher_commands(symbolic, launcher_library("")),
        "headers": digest_of(launcher_sources()),
        "tvm_ffi": context.tools.lowerer.tvm_ffi,
    }
    library = launcher_library(hashlib.sha256(canonical_json(options).encode()).hexdigest())

    def link(scratch: Path) -> None:
        compiled = begun.result() if begun else _compile(context)
        (scratch / "launcher.o").write_bytes(compiled.data)
        (scratch / "launcher.map").write_text(launcher_map(library))
        command = launcher_commands(places, library, str(scratch))[1]
        linked = context.run.compilers.run(command, top, scratch, WHERE, REMEDY, kind="launcher", subject="library")
        done = together([compiled.result, linked])
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        script = shell_script(compiler.version, "..", *launcher_commands(symbolic, library))
        (scratch / "compile_launcher.sh").write_text(script)

    outputs = files_in(context.work / LIBRARIES, (library, "launcher.map", "compile_launcher.sh"))
    stage = Stage("LAUNCHER", "launcher", WHERE, options, link, outputs, glibc.paths if glibc else [])
    return stage


def _compile(context: Context) -> CompiledLauncher:
    with scratch_folder(context.run.state / "scratch") as scratch:
        command = launcher_commands(real_places(context.tools.host_compiler), "", str(scratch))[0]
        run = context.run.compilers.run
        result = run(command, scratch, scratch, WHERE, REMEDY, kind="launcher", subject="launcher")
        return CompiledLauncher((scratch / "launcher.o").read_bytes(), result)
