"""LAUNCHER: the C compiler makes the launcher, which is one library for all kernels of a package."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

from ..backends.commands import LIBRARIES, ToolPaths, launcher_commands, launcher_library, launcher_map
from ..backends.launcher import launcher_sources
from ..core.errors import Where
from ..core.files import digest_of, scratch_folder
from ..core.request import ASIDE, digest
from ..processes.tools import ToolCall, ToolResult, together
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc_run import shell_script
from .context import Context
from .places import real_places, symbolic_places
from .runs import Services
from .stage import Stage, files_in
from .stage_run import StageRun

WHERE = Where(stage="compile")
REMEDY = "it is a part of Kernelwright: see whether the C compiler and tvm-ffi are intact"


@dataclass(frozen=True)
class CompiledLauncher:
    """The launcher as an object file, and what compiling took."""

    data: bytes
    result: ToolResult


@dataclass(frozen=True)
class Launcher:
    """What the launcher is made of. The digest of this is in the name of its library.

    Arguments:
        commands: those that make it, without paths of this machine and without its name.
        sources: digest of its text.
        tvm_ffi: version of tvm-ffi, whose headers it includes.
        symbolic: the places as scripts have them.
        top: the folder of the package's kernels.
        begun: what :func:`begin` gave; None: it was not called.
    """

    compiler: HostCompiler
    commands: tuple[tuple[str, ...], ...]
    sources: str
    tvm_ffi: str
    places: ToolPaths
    symbolic: ToolPaths
    top: Path = field(metadata=ASIDE)
    begun: Future[CompiledLauncher] | None = field(default=None, metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Compile the launcher, unless that has begun, and link it."""
        compiler, library = self.compiler, launcher_library(digest(self))
        compiled = self.begun.result() if self.begun else _compile(compiler, stage.run)
        (scratch / "launcher.o").write_bytes(compiled.data)
        (scratch / "launcher.map").write_text(launcher_map(library))
        command = launcher_commands(self.places, library, str(scratch))[1]
        call = ToolCall(command, self.top, scratch, WHERE, REMEDY, kind="launcher", subject="library")
        linked = stage.tools.run(call)
        stage.took(together([compiled.result, linked]))
        script = shell_script(compiler.version, "..", *launcher_commands(self.symbolic, library))
        (scratch / "compile_launcher.sh").write_text(script)


def begin(context: Context) -> Future[CompiledLauncher]:
    """Compile the launcher in a thread, while nobody knows yet what else there is to do.

    It takes the C compiler a second, and needs nothing of any kernel. It asks no cache, whose key for the stage needs
    what ``GLIBC`` makes. Compile on demand uses no such libraries, and runs the whole stage instead.
    """
    compiled: Future[CompiledLauncher] = Future()

    def work() -> None:
        try:
            compiled.set_result(_compile(context.tools.host_compiler, context.run))
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
    compiler = context.tools.host_compiler
    stubs = context.glibc if glibc else ""
    places, symbolic = replace(real_places(compiler), glibc=stubs), symbolic_places(compiler, stubs)
    request = Launcher(
        compiler=compiler,
        commands=tuple(map(tuple, launcher_commands(symbolic, launcher_library("")))),
        sources=digest_of(launcher_sources()),
        tvm_ffi=context.tools.lowerer.tvm_ffi,
        places=places,
        symbolic=symbolic,
        top=context.work,
        begun=begun,
    )
    names = (launcher_library(digest(request)), "launcher.map", "compile_launcher.sh")
    outputs = files_in(context.work / LIBRARIES, names)
    return Stage("LAUNCHER", "launcher", WHERE, request, outputs, glibc.paths if glibc else [])


def _compile(compiler: HostCompiler, run: Services) -> CompiledLauncher:
    with scratch_folder(run.state / "scratch") as scratch:
        command = launcher_commands(real_places(compiler), "", str(scratch))[0]
        call = ToolCall(command, scratch, scratch, WHERE, REMEDY, kind="launcher", subject="launcher")
        result = run.compilers.run(call)
        return CompiledLauncher((scratch / "launcher.o").read_bytes(), result)
