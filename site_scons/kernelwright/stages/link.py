"""LINK: the linker makes the library of a kernel; the kernel's part of the manifest is made with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends.commands import LIBRARIES, ToolPaths, link_command
from ..backends.files import VariantFiles, images_of, objects_of
from ..backends.launcher import LINKER_MAP
from ..backends.operators import OPERATORS
from ..backends.own_code import cuda_runtime, driver_functions, driver_text, undefined_functions
from ..core.dependencies import IN_PACKAGE, installed_name
from ..core.errors import LoweringError
from ..core.files import digest_of, sha256_of
from ..core.request import ASIDE
from ..core.surroundings import INSTALLED
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.libraries import Library
from ..toolchain.nvcc_run import shell_script, stand_in
from ..toolchain.tvm import tvm_ffi_library
from . import entry
from .commands import command_of
from .context import KernelContext, whole
from .entry import Entry
from .left_out import without_left_out
from .places import SYMBOLIC_PLACES, real_places
from .registered import operators_text
from .stage import Stage, files_in
from .stage_run import StageRun

DRIVER = "driver.s"
"""What sources with host code of their own call of the CUDA driver."""

UNDEFINED = (
    "list the source that has it in sources, or the library in libraries; CUDA's runtime and driver need not be named"
)


@dataclass(frozen=True)
class Linking:
    """What a library is linked of, and how; what its part of the manifest says.

    Arguments:
        launcher: the name of the launcher's library.
        exported: digest of the list of what is exported.
        runtime: digest of CUDA's runtime, if host code that is not ours needs it; then also these two:
        linked: the kernels that share its sources.
        operators: digest of what runs operators of PyTorch, and the version of tvm-ffi.
        libraries: those of installed packages that it is linked with by name.
        top: the folder of the package's kernels, in which the linker runs.
    """

    described: Entry
    compiler: HostCompiler
    launcher: str
    exported: str
    runtime: str
    linked: tuple[str, ...]
    operators: tuple[str, ...]
    libraries: tuple[Library, ...]
    places: ToolPaths
    top: Path = field(metadata=ASIDE)

    def command(self, variants: tuple[VariantFiles, ...], places: ToolPaths, output: str, folder: str) -> list[str]:
        """The command for the variants that were made.

        Arguments:
            folder: that of what sources with host code of their own call of the driver.
        """
        objects = [Path(path).relative_to(self.top).as_posix() for path in objects_of(variants)]
        real = places.compiler == self.places.compiler
        named = [str(one.path) if real else _by_hand(one) for one in self.libraries]
        driver, shared = [f"{folder}/{DRIVER}"] if self.runtime else [], f"{LIBRARIES}/{self.launcher}"
        return link_command(self.described.kernel, shared, [*objects, *driver, *named], places, output)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Link the library, write the script that does it again, and the kernel's part of the manifest."""
        name, top = self.described.kernel, self.top
        linked = without_left_out(stage.whole(self.described.source.variants), stage.where, stage.run)
        self.described.check_limits(linked, stage.where)
        if self.runtime:
            added = operators_text(linked, self.linked, self.compiler, self.operators, scratch, stage)
            called = driver_functions(map(Path, objects_of(linked)), added)
            (scratch / DRIVER).write_text(driver_text(called) + added, encoding="utf-8")
        command = self.command(linked, self.places, str(scratch / f"{name}.so"), str(scratch))
        stage.tool(command, top, scratch, f"the sources are below {top}", kind="link")
        known = [tvm_ffi_library(), *(library.path for library in self.libraries)]
        if self.runtime and (lacking := undefined_functions(scratch / f"{name}.so", known)):
            # The linker says where they are called.
            stage.tool([*command, "-Wl,-z,defs", *map(str, known)], top, scratch, UNDEFINED, kind="link")
            raise LoweringError(f"nothing has {', '.join(lacking)}", stage.where, UNDEFINED)
        runtime = stand_in("CUDA_RUNTIME") if self.runtime else ""
        symbolic = replace(SYMBOLIC_PLACES, glibc=self.places.glibc, cuda_runtime=runtime)
        by_hand = self.command(linked, symbolic, f"{name}/{name}.so", name)
        (scratch / "compile.sh").write_text(shell_script(self.compiler.version, "..", by_hand))
        self.described.write(linked, scratch, self.launcher)


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
    runtime, shared = _runtime(kernel), launcher.paths[0]
    places = replace(real_places(compiler), glibc=kernel.package.glibc if glibc else "", cuda_runtime=runtime)
    content = sha256_of(Path(runtime)) if runtime else ""
    described, exported = entry.entry_of(kernel, variants), digest_of([LINKER_MAP])
    request = Linking(
        *(described, compiler, Path(shared).name, exported, content),
        linked=kernel.linked_names if runtime else (),
        operators=(digest_of([OPERATORS]), kernel.tools.lowerer.tvm_ffi) if runtime else (),
        libraries=kernel.libraries,
        places=places,
        top=top,
    )
    outputs = files_in(kernel.folder, (f"{name}.so", "compile.sh", "entry.json", *([DRIVER] if runtime else [])))
    made = [compiled.paths[0], *wrapped.paths[1:], *objects_of(variants), *images_of(variants)]
    # What takes longest and waits for least comes first: a build makes sources in this order.
    given = [shared, *(glibc.paths if glibc else [])]
    sources = [*given, *made, *entry.sources_of(variants)]
    stage = Stage("LINK", name, kernel.where("link"), request, outputs, sources)
    stage.rest = lambda: bool(whole(kernel.run, variants))
    recorded = {INSTALLED + library.distribution: library.recorded for library in kernel.libraries}
    stage.outside = {**recorded, **({installed_name(Path(runtime)): content} if runtime else {})}
    output = f"{name}/{name}.so"
    stage.command = command_of(top, f"{name}/wrapper.o", request.command(variants, places, output, name), output)
    return stage


def _by_hand(library: Library) -> str:
    return f"{stand_in(f'{IN_PACKAGE}{library.folder}')}/{library.path.name}"


def _runtime(kernel: KernelContext) -> str:
    """CUDA's runtime, for sources with host code of their own; empty: nothing of the kernel's needs it."""
    nvcc = kernel.tools.nvcc
    return str(cuda_runtime(nvcc.path, kernel.where("link"))) if kernel.record.options.sources and nvcc else ""
