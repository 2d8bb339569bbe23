"""LINK: the linker makes the library of a kernel; the kernel's part of the manifest is made with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ..compilers.nvcc import shell_script, stand_in
from ..core.dependencies import installed_name
from ..core.errors import DefinitionError, LoweringError
from ..core.files import digest_of, sha256_of
from ..library.commands import ToolPaths, link_command
from ..library.files import VariantFiles, images_of, objects_of
from ..library.launcher import LINKER_MAP
from ..library.own_code import cuda_runtime, driver_functions, driver_text, exported_functions, undefined_functions
from ..toolchain.tvm import tvm_ffi_library
from . import entry
from .commands import command_of
from .context import KernelContext
from .places import SYMBOLIC_PLACES, real_places
from .stage import Measured, Stage, files_in

DRIVER = "driver.s"
"""What sources with host code of their own call of the CUDA driver."""

UNDEFINED = "list the source that has it in sources; of CUDA, its runtime and the driver can be called"


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
    runtime = _runtime(kernel)
    places = replace(real_places(compiler), glibc=stubs, cuda_runtime=runtime)
    symbolic = replace(SYMBOLIC_PLACES, glibc=stubs, cuda_runtime=stand_in("CUDA_RUNTIME") if runtime else "")
    where = kernel.where("link")

    def command_for(
        linked: tuple[VariantFiles, ...], places: ToolPaths, output: str, folder: Path | str = name
    ) -> list[str]:
        shared, *objects = (Path(path).relative_to(top).as_posix() for path in (launcher.paths[0], *objects_of(linked)))
        return link_command(name, shared, [*objects, *([f"{folder}/{DRIVER}"] if runtime else [])], places, output)

    def link(scratch: Path) -> None:
        linked = kernel.whole(variants)
        entry.check_limits(kernel, linked)
        _require_exported(kernel, linked)
        if runtime:
            called = driver_functions(map(Path, objects_of(linked)))
            (scratch / DRIVER).write_text(driver_text(called), encoding="utf-8")
        command = command_for(linked, places, str(scratch / f"{name}.so"), scratch)
        remedy = f"the sources are below {top}"
        run = partial(kernel.run.compilers.run, folder=top, scratch=scratch, where=where, kind="link", subject=name)
        done = run(command, remedy=remedy)
        if runtime and (lacking := undefined_functions(scratch / f"{name}.so", tvm_ffi_library())):
            # The linker says where they are called.
            run([*command, "-Wl,-z,defs", str(tvm_ffi_library())], remedy=UNDEFINED)
            raise LoweringError(f"nothing has {', '.join(lacking)}", where, UNDEFINED)
        stage.measured = Measured(done.cpu_seconds, done.peak_kib)
        script = shell_script(compiler.version, "..", command_for(linked, symbolic, output))
        (scratch / "compile.sh").write_text(script)
        entry.write(kernel, linked, scratch, Path(launcher.paths[0]).name)

    archive = {"runtime": sha256_of(Path(runtime))} if runtime else {}
    options = {
        "compiler": compiler.identity,
        "command": command_for(variants, symbolic, output),
        "map": digest_of([LINKER_MAP]),
        **archive,
        **entry.options_of(kernel),
    }
    outputs = files_in(kernel.folder, (f"{name}.so", "compile.sh", "entry.json", *([DRIVER] if runtime else [])))
    made = [compiled.paths[0], *wrapped.paths[1:], *objects_of(variants), *images_of(variants)]
    # What takes longest and waits for least comes first: a build makes sources in this order.
    given = [launcher.paths[0], *(glibc.paths if glibc else [])]
    sources = [*given, *made, *entry.sources_of(variants)]
    stage = Stage("LINK", name, where, options, link, outputs, sources)
    stage.rest = lambda: bool(kernel.whole(variants))
    stage.outside = {installed_name(Path(runtime)): digest for digest in archive.values()}
    stage.command = command_of(top, f"{name}/wrapper.o", command_for(variants, places, output), output)
    return stage


def _runtime(kernel: KernelContext) -> str:
    """CUDA's runtime, for sources with host code of their own; empty: nothing of the kernel's needs it."""
    nvcc = kernel.tools.nvcc
    return str(cuda_runtime(nvcc.path, kernel.where("link"))) if kernel.record.sources and nvcc else ""


def _require_exported(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> None:
    """Raise a DefinitionError if the sources of a kernel do not export what a variant calls."""
    for variant in variants:
        for unit in (unit for unit in variant.units if unit.own):
            wanted, found = unit.read_signature()["exported"], exported_functions(kernel.name, map(Path, unit.own))
            if wanted not in found:
                message = f"its sources do not export {wanted!r}; they export {', '.join(found) or 'nothing'}"
                remedy = f"write TVM_FFI_DLL_EXPORT_TYPED_FUNC({wanted}, ...) in a source, or another name in Exported"
                raise DefinitionError(message, kernel.where("link", variant.slug), remedy)
