"""GLIBC: makes the libraries without code that kernels are linked with in place of the machine's C library."""

from __future__ import annotations

from pathlib import Path

from ..compilers.glibc import LIBRARIES, make_stubs
from ..core.errors import Where
from .context import Context
from .stage import Measured, Stage, files_in


def make(context: Context) -> Stage | None:
    """The stage for a package; None: its libraries are linked with the machine's own."""
    floor, compiler = context.settings.glibc, context.tools.host_compiler
    if not floor:
        return None
    where = Where(stage="link")

    def make_them(scratch: Path) -> None:
        runs = make_stubs(floor, compiler, scratch, context.run.compilers, where)
        stage.measured = Measured(sum(run.cpu_seconds for run in runs), max(run.peak_kib for run in runs))

    options = {"floor": floor, "compiler": compiler.identity}
    outputs = files_in(context.work / context.glibc, [f"{name}.so" for name in LIBRARIES])
    stage = Stage("GLIBC", floor, where, options, make_them, outputs, [])
    return stage
