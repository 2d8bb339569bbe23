"""LINK: the linker makes the library of a kernel; the kernel's part of the manifest is made with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..compilers.nvcc import shell_script
from ..core.files import digest_of
from ..library.commands import ToolPaths, link_command
from ..library.files import VariantFiles, images_of, units_of
from ..library.launcher import LINKER_MAP
from . import entry
from .commands import command_of
from .context import KernelContext
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in


def make(
    kernel: KernelContext,
    variants: tuple[VariantFiles, ...],
    wrapped: Stage,
    compiled: Stage,
    glibc: Stage | None,
    launcher: Stage,
) -> Stage:
    """The stage that links a library.

    Arguments:
        wrapped, compiled: the stages that write the wrapper, and that compile it.
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
        launcher: what makes the launcher.
    """
    name, compiler, top = kernel.name, kernel.tools.host_compiler, kernel.package.work
    output, stubs = f"{name}/{name}.so", kernel.package.glibc if glibc else ""
    places = replace(real_places(compiler), glibc=stubs)
    symbolic = replace(SYMBOLIC_PLACES, glibc=stubs)
    where = kernel.where("link")

    def command_for(linked: tuple[VariantFiles, ...], places: ToolPaths, output: str) -> list[str]:
        shared, *objects = (Path(path).relative_to(top).as_posix() for path in (launcher.paths[0], *_objects(linked)))
        return link_command(name, shared, objects, places, output)

    def link(scratch: Path) -> None:
        linked = kernel.whole(variants)
        entry.check_limits(kernel, linked)
        command = command_for(linked, places, str(scratch / f"{name}.so"))
        remedy = f"the sources are below {top}"
        done = kernel.run.compilers.run(command, top, scratch, where, remedy, kind="link", subject=name)
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        script = shell_script(compiler.version, "..", command_for(linked, symbolic, output))
        (scratch / "compile.sh").write_text(script)
        entry.write(kernel, linked, scratch, Path(launcher.paths[0]).name)

    options = {
        "compiler": compiler.identity,
        "command": command_for(variants, symbolic, output),
        "map": digest_of([LINKER_MAP]),
        **entry.options_of(kernel),
    }
    outputs = files_in(kernel.folder, (f"{name}.so", "compile.sh", "entry.json"))
    made = [compiled.paths[0], *wrapped.paths[1:], *_objects(variants), *images_of(variants)]
    # What takes longest and waits for least comes first: a build makes sources in this order.
    given = [launcher.paths[0], *(glibc.paths if glibc else [])]
    sources = [*given, *made, *entry.sources_of(variants)]
    stage = Stage("LINK", name, where, options, link, outputs, sources)
    stage.rest = lambda: bool(kernel.whole(variants))
    stage.command = command_of(top, f"{name}/wrapper.o", command_for(variants, places, output), output)
    return stage


def _objects(variants: tuple[VariantFiles, ...]) -> list[str]:
    """Paths of the host objects."""
    return [path for unit in units_of(variants) for path in unit.objects]
