"""The stages that a kernel has for each of its backends: its files are written and, if need be, compiled."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.base import Backend, Places
from ..compile.nvcc import shell_script, stand_in
from ..core.errors import Where
from ..core.files import digest_of
from ..discover.discovery import KernelRecord
from ..library.launcher import LAUNCHER
from ..library.plan import KernelPlan
from ..package.assemble import product_of
from ..toolchain.probe import HostCompiler, tvm_ffi_includes
from .stage import Measured, Stage

if TYPE_CHECKING:
    from .graph import PackageGraph

SYMBOLIC_PLACES = Places(
    stand_in("CC"),
    stand_in("LAUNCHER"),
    (stand_in("TVM_FFI"), stand_in("DLPACK")),
    "",
    stand_in("PYTHON"),
    stand_in("PYTHON_INCLUDE"),
)
"""What compile.sh has in place of this machine's paths."""


def real_places(compiler: HostCompiler) -> Places:
    """Where the compiler and the headers are on this machine."""
    folders = tuple(str(folder) for folder in tvm_ffi_includes())
    return Places(compiler.path, str(LAUNCHER), folders, "", sys.executable, sysconfig.get_path("include"))


class BackendStages:
    """Adds the nodes of one kernel and one backend."""

    def __init__(self, graph: PackageGraph, record: KernelRecord, backend: Backend) -> None:
        self._graph = graph
        self._record = record
        self._backend = backend
        self._subject = f"{record.name} {backend.name}"
        self._folder = graph.work.Dir(backend.folder(record.name))

    def add(self, plan: Callable[[], KernelPlan], sources: list[Any], rest: Callable[[], bool]) -> dict[str, Any]:
        """Add them; what the package gets of them is returned, by the path in the package.

        Arguments:
            plan: makes the plan of the kernel, when the sources are made.
            sources: the nodes that the plan is made of.
            rest: tells whether enough of them is left, if some could not be made.
        """
        kernel, backend = self._record.name, self._backend
        if not backend.files(kernel):
            return {}
        emitted = self._wrap(plan, sources, rest)
        compiled = self._compile(emitted) if backend.commands(kernel, SYMBOLIC_PLACES, "") else None
        made = {**emitted.targets, **(compiled.targets if compiled else {})}
        return {product_of(backend.name, file): made[file] for file in backend.products(kernel)}

    def _where(self, stage: str) -> Where:
        return Where(self._record.name, stage=stage, location=self._record.location)

    def _wrap(self, plan: Callable[[], KernelPlan], sources: list[Any], rest: Callable[[], bool]) -> Stage:
        backend, files = self._backend, self._backend.files(self._record.name)

        def make(scratch: Path) -> None:
            kernel = plan()
            kernel.check()
            backend.check(kernel)
            for name, text in backend.emit(kernel).items():
                (scratch / name).write_text(text, encoding="utf-8")

        cuda = self._graph.tools.cuda  # the plan has its version, which is in no source
        images = [self._graph.images_in, self._graph.settings.compress, cuda.version if cuda else ""]
        options = {"backend": backend.name, "images": images}
        targets = {name: self._folder.File(name) for name in files}
        where = self._where("wrap")
        return self._graph.node(Stage("WRAP", self._subject, where, options, make, targets, sources, rest=rest))

    def _compile(self, emitted: Stage) -> Stage:
        """Run the backend's commands, which make the products that are not emitted."""
        graph, backend, kernel = self._graph, self._backend, self._record.name
        compiler, stubs = graph.tools.host_compiler, graph.glibc_stage
        glibc = graph.glibc.name if stubs else ""
        places = replace(real_places(compiler), glibc=glibc)
        where, top = self._where("compile"), Path(graph.work.get_abspath())
        output = backend.folder(kernel)
        by_hand = list(backend.commands(kernel, replace(SYMBOLIC_PLACES, glibc=glibc), output))

        def make(scratch: Path) -> None:
            measured = Measured(0.0, 0)
            for command in backend.commands(kernel, places, str(scratch)):
                remedy = f"the sources are in {top / output}"
                done = graph.run.tools.run(command, top, scratch, where, remedy, kind="ext", subject=self._subject)
                measured = Measured(
                    (measured.cpu_seconds or 0) + done.cpu_seconds, max(measured.peak_kib or 0, done.peak_kib)
                )
            stage.measured = measured
            script = shell_script(compiler.version, "../../..", *by_hand)
            (scratch / "compile.sh").write_text(script, encoding="utf-8")

        options = {
            "backend": backend.name,
            "compiler": compiler.identity,
            "commands": by_hand,
            "headers": digest_of(backend.headers()),
            "tvm_ffi": graph.tools.lowerer.tvm_ffi,
            "needs": backend.build_versions(),
        }
        products = [name for name in backend.products(kernel) if name not in emitted.targets]
        targets = {name: self._folder.File(name) for name in (*products, "compile.sh")}
        sources = [*emitted.nodes, *(stubs.nodes if stubs else [])]
        stage = Stage("EXT", self._subject, where, options, make, targets, sources)
        return graph.node(stage)
