"""LINK: the linker makes the library of a kernel; the kernel's part of the manifest is made with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends.commands import LIBRARIES, ToolPaths, link_command
from ..backends.files import VariantFiles, images_of, objects_of, own_libraries_of, own_of
from ..backends.launcher import LINKER_MAP
from ..core.files import digest_of
from ..core.records import Record, read_json
from ..core.request import ASIDE
from ..define.debug import NO
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc_run import shell_script
from . import entry
from .commands import command_of
from .context import KernelContext, debug_level, whole
from .entry import Entry
from .left_out import without_left_out
from .places import real_places, symbolic_places
from .registered import require_called
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Linking:
    """What a library is linked of, and how; what its part of the manifest says.

    Arguments:
        launcher: the name of the launcher's library.
        exported: digest of the list of what is exported.
        described_in: file name of each library of its sources, if those have host code of their own -> path of what
            it has.
        top: the folder of the package's kernels, in which the linker runs.
    """

    described: Entry
    compiler: HostCompiler
    launcher: str
    exported: str
    places: ToolPaths
    described_in: Mapping[str, str] = field(metadata=ASIDE)
    top: Path = field(metadata=ASIDE)

    def command(self, variants: tuple[VariantFiles, ...], places: ToolPaths, output: str) -> list[str]:
        """The command for the variants that were made."""
        objects = [os.path.relpath(path, self.top) for path in objects_of(variants)]
        shared = [f"{LIBRARIES}/{name}" for name in (*own_libraries_of(variants), self.launcher)]
        return link_command(self.described.kernel, [*objects, *shared], places, output)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Link the library, write the script that does it again, and the kernel's part of the manifest."""
        name, top = self.described.kernel, self.top
        linked = without_left_out(stage.whole(self.described.source.variants), stage.where, stage.run)
        self.described.check_limits(linked, stage.where)
        lacking = {name: _lacking_in(Path(self.described_in[name])) for name in own_libraries_of(linked)}
        require_called(linked, lacking, [name for name, *_ in self.described.source.libraries], stage.where)
        command = self.command(linked, self.places, str(scratch / f"{name}.so"))
        stage.tool(command, top, scratch, f"the sources are below {top}", kind="link")
        symbolic = replace(symbolic_places(self.compiler, self.places.glibc), debug=self.places.debug)
        by_hand = self.command(linked, symbolic, f"{name}/{name}.so")
        (scratch / "compile.sh").write_text(shell_script(self.compiler.version, "..", by_hand))
        self.described.write(linked, scratch, self.launcher)


def make(
    kernel: KernelContext,
    variants: tuple[VariantFiles, ...],
    wrapped: Stage,
    compiled: Stage,
    glibc: Stage | None,
    launcher: Stage,
    *,
    own: Sequence[Stage] = (),
) -> Stage:
    """The stage that links a library.

    Arguments:
        wrapped, compiled: the stages that write the wrapper, and that compile it.
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
        launcher: what makes the launcher.
        own: what makes the libraries of its sources, if those have host code of their own.
    """
    name, compiler, top, shared = kernel.name, kernel.tools.host_compiler, kernel.package.work, launcher.paths[0]
    places = replace(real_places(compiler, debug_level(kernel) != NO), glibc=kernel.package.glibc if glibc else "")
    described_in = {Path(stage.paths[0]).name: stage.paths[1] for stage in own}
    described = entry.entry_of(kernel, variants)
    request = Linking(
        *(described, compiler, Path(shared).name, digest_of([LINKER_MAP])),
        places=places,
        described_in=described_in,
        top=top,
    )
    outputs = files_in(kernel.folder, (f"{name}.so", "compile.sh", "entry.json"))
    made = [compiled.paths[0], *wrapped.paths[1:], *objects_of(variants), *images_of(variants)]
    # What takes longest and waits for least comes first: a build makes sources in this order.
    given = [
        *own_of(variants),
        *(path for stage in own for path in stage.paths[:2]),
        shared,
        *(glibc.paths if glibc else []),
    ]
    sources = [*given, *made, *entry.sources_of(variants)]
    stage = Stage("LINK", name, kernel.where("link"), request, outputs, sources)
    stage.rest = lambda: bool(whole(kernel.run, variants))
    stage.outside = described.recorded
    output = f"{name}/{name}.so"
    stage.command = command_of(top, f"{name}/wrapper.o", request.command(variants, places, output), output)
    return stage


def _lacking_in(path: Path) -> dict[str, list[str]]:
    """The functions that sources have and their library does not -> what nothing has that they call."""

    def parse(read: Record) -> dict[str, list[str]]:
        lacking = read.record("lacking")
        return {name: lacking.texts(name) for name in lacking.raw}

    return read_json(path, parse, "remove it and try again")
