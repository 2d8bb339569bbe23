"""EXT: runs the commands of a backend, which compile what it has written for a kernel."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import backends
from ..backends.base import Backend
from ..backends.commands import ToolPaths
from ..core.plugins import described
from ..core.request import ASIDE
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc_run import shell_script
from .context import KernelContext
from .places import real_places, symbolic_places
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Extension:
    """What a backend has compiled for a kernel, and with what.

    Arguments:
        headers: digest of the backend's own headers.
        plugin: as :class:`.wrap.Wrapping` has it.
        tvm_ffi: version of tvm-ffi, whose headers are included.
        needs: versions of what the backend needs.
        top: the folder of the package's kernels, in which the commands run.
    """

    kernel: str
    backend: str
    compiler: HostCompiler
    headers: str
    plugin: Mapping[str, str]
    tvm_ffi: str
    needs: Mapping[str, str]
    places: ToolPaths
    top: Path = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Run the commands, and write the script that does it again."""
        backend, name = backends.get(self.backend), self.kernel
        folder = backend.folder(name)
        for command in backend.commands(
            name, _with_python_config(self.places, self.compiler.cross, scratch), str(scratch)
        ):
            stage.tool(list(command), self.top, scratch, f"the sources are in {self.top / folder}", kind="ext")
        by_hand = backend.commands(name, symbolic_places(self.compiler, self.places.glibc), folder)
        script = shell_script(self.compiler.version, "../../..", *by_hand)
        (scratch / "compile.sh").write_text(script, encoding="utf-8")


def _with_python_config(places: ToolPaths, family: str, scratch: Path) -> ToolPaths:
    """The folders of headers, with one that has what Debian's ``pyconfig.h`` includes for a family of CPUs.

    Debian has that file in packages for that family. What it says of types is the same on all families.
    """
    name = f"{family}-linux-gnu/python{sys.version_info.major}.{sys.version_info.minor}/pyconfig.h"
    header = Path(places.python_include, "pyconfig.h")
    if not family or not header.is_file() or name not in header.read_text(encoding="utf-8"):
        return places
    folder = scratch / "include"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(Path(sysconfig.get_config_h_filename()).read_bytes())
    return replace(places, includes=(*places.includes, str(folder)))


def make(kernel: KernelContext, backend: Backend, wrapped: Stage, glibc: Stage | None) -> Stage:
    """The stage that compiles what a backend has written.

    Arguments:
        wrapped: the stage that writes it.
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
    """
    name, tools, top = kernel.name, kernel.tools, kernel.package.work
    request = Extension(
        kernel=name,
        backend=backend.name,
        compiler=tools.host_compiler,
        headers=backends.headers(backend),
        plugin=described(backend),
        tvm_ffi=tools.lowerer.tvm_ffi,
        needs=backends.needed(backend),
        places=replace(real_places(tools.host_compiler), glibc=kernel.package.glibc if glibc else ""),
        top=top,
    )
    products = [product for product in backend.products(name) if product not in wrapped.outputs]
    outputs = files_in(top / backend.folder(name), (*products, "compile.sh"))
    sources = [*wrapped.paths, *(glibc.paths if glibc else [])]
    return Stage("EXT", f"{name} {backend.name}", kernel.where("compile"), request, outputs, sources)
