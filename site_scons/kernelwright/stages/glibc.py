"""GLIBC: makes the libraries without code that kernels are linked with in place of the machine's C library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Where
from ..toolchain.glibc import LIBRARIES, make_stubs
from ..toolchain.host_compiler import HostCompiler
from .context import Context
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Floor:
    """The oldest glibc, and the compiler whose glibc is read."""

    glibc: str
    compiler: HostCompiler

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write the libraries."""
        stage.took(*make_stubs(self.glibc, self.compiler, scratch, stage.tools, stage.where))


def make(context: Context) -> Stage | None:
    """The stage for a package; None: its libraries are linked with the machine's own."""
    floor = context.settings.glibc
    if not floor:
        return None
    request = Floor(floor, context.tools.host_compiler)
    outputs = files_in(context.work / context.glibc, [f"{name}.so" for name in LIBRARIES])
    return Stage("GLIBC", floor, Where(stage="link"), request, outputs, [])
