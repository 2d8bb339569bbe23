"""EXT: runs the commands of a backend, which compile what it has written for a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..backends.base import Backend
from ..compilers.nvcc import shell_script
from ..core.files import digest_of
from .context import KernelContext
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in


def make(kernel: KernelContext, backend: Backend, wrapped: Stage, glibc: Stage | None) -> Stage:
    """The stage that compiles what a backend has written.

    Arguments:
        wrapped: the stage that writes it.
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
    """
    name, compiler, top = kernel.name, kernel.tools.host_compiler, kernel.package.work
    stubs = kernel.package.glibc if glibc else ""
    places = replace(real_places(compiler), glibc=stubs)
    where, folder, subject = kernel.where("compile"), backend.folder(name), f"{name} {backend.name}"
    by_hand = list(backend.commands(name, replace(SYMBOLIC_PLACES, glibc=stubs), folder))

    def compile_it(scratch: Path) -> None:
        seconds, peak = 0.0, 0
        for command in backend.commands(name, places, str(scratch)):
            remedy = f"the sources are in {top / folder}"
            done = kernel.run.compilers.run(command, top, scratch, where, remedy, kind="ext", subject=subject)
            seconds, peak = seconds + done.cpu_seconds, max(peak, done.peak_kib)
        stage.measured = Measured(seconds, peak)
        script = shell_script(compiler.version, "../../..", *by_hand)
        (scratch / "compile.sh").write_text(script, encoding="utf-8")

    options = {
        "backend": backend.name,
        "compiler": compiler.identity,
        "commands": by_hand,
        "headers": digest_of(backend.headers()),
        "tvm_ffi": kernel.tools.lowerer.tvm_ffi,
        "needs": backend.build_versions(),
    }
    products = [product for product in backend.products(name) if product not in wrapped.outputs]
    outputs = files_in(top / folder, (*products, "compile.sh"))
    sources = [*wrapped.paths, *(glibc.paths if glibc else [])]
    stage = Stage("EXT", subject, where, options, compile_it, outputs, sources)
    return stage
