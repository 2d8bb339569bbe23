"""SOURCES: the linker makes a library of sources that have host code of their own. Their kernels share it.

The library has what CUDA's runtime, the C++ library and the device code take, once for all kernels that list these
sources with equal options. It does not depend on which kernels these are: it has all functions that the sources export.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends.commands import LIBRARIES, ToolPaths, source_library_command
from ..backends.launcher import OLDER, SOURCES_MAP
from ..backends.operators import OPERATORS, callers_text, registered_operators
from ..backends.own_code import (
    cuda_runtime,
    driver_functions,
    driver_text,
    exported_functions,
    functions_text,
    own_symbol,
    undefined_functions,
)
from ..core.dependencies import IN_PACKAGE, installed_name
from ..core.files import digest_of, pretty_json, sha256_of
from ..core.request import ASIDE
from ..core.surroundings import INSTALLED
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.libraries import Library
from ..toolchain.nvcc_run import shell_script, stand_in
from ..toolchain.tvm import tvm_ffi_library
from ..toolchain.undefined import who_has
from .context import KernelContext
from .object import FOLDER, name_of
from .places import real_places, symbolic_places
from .registered import UNDEFINED, operators_text
from .stage import Stage
from .stage_run import StageRun
from .undefined import refuse


@dataclass(frozen=True)
class SourceLibrary:
    """What the library is linked of, and how.

    Arguments:
        name: the names of its files, without their endings.
        objects: the file names of the objects, in order.
        launcher: the file name of the launcher's library.
        exported: digest of the list of what is exported, and of what is compiled with it.
        runtime: digest of CUDA's runtime.
        operators: digest of what runs operators of PyTorch, and the version of tvm-ffi.
        libraries: those of installed packages that it is linked with by name.
        family: the family of CPUs that it is for.
        top: the folder of the package's kernels, in which the linker runs.
    """

    name: str
    objects: tuple[str, ...]
    compiler: HostCompiler
    launcher: str
    exported: str
    runtime: str
    operators: tuple[str, ...]
    libraries: tuple[Library, ...]
    family: str
    places: ToolPaths
    top: Path = field(metadata=ASIDE)

    def command(self, places: ToolPaths, texts: str, output: str) -> list[str]:
        """The command.

        Arguments:
            texts: the folder of what is written for it.
            output: the file that is made.
        """
        real = places.compiler == self.places.compiler
        named = [str(one.path) if real else _by_hand(one) for one in self.libraries]
        objects = [f"{FOLDER}/{name}" for name in self.objects]
        linked = [*objects, f"{texts}/{self.name}.s", *named, f"{LIBRARIES}/{self.launcher}"]
        return source_library_command(self.name, linked, places, output)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Link the library, and write which functions it has, and the script that links it again."""
        name, objects = self.name, [self.top / FOLDER / one for one in self.objects]
        exported = exported_functions(objects)
        functions = [*exported, *(one for one in registered_operators(objects) if one not in exported)]
        added = operators_text(objects, self.compiler, self.operators, scratch, stage)
        link = _Linker(self, objects, {*exported}, added, scratch, stage)
        lacking = {one: found for one in functions if (found := link(one))} if link(*functions) else {}
        if lacking and len(lacking) < len(functions):
            link(*(one for one in functions if one not in lacking))
        elif lacking:
            link.refuse(functions)
        described = {"schema": 1, "functions": [one for one in functions if one not in lacking], "lacking": lacking}
        (scratch / f"{name}.json").write_text(pretty_json(described), encoding="utf-8")
        runtime = stand_in(self.compiler.named("CUDA_RUNTIME"))
        symbolic = symbolic_places(self.compiler, self.places.glibc, cuda_runtime=runtime)
        by_hand = self.command(symbolic, FOLDER, f"{LIBRARIES}/{name}.so")
        (scratch / f"link_{name}.sh").write_text(shell_script(self.compiler.version, "..", by_hand))


@dataclass(frozen=True)
class _Linker:
    """Links the library with some of the functions of its sources.

    Arguments:
        exported: those that sources export; others are operators of PyTorch.
        added: assembler text of what runs operators of PyTorch.
    """

    request: SourceLibrary
    objects: Sequence[Path]
    exported: set[str]
    added: str
    scratch: Path
    stage: StageRun

    def __call__(self, *functions: str) -> list[str]:
        """Link it; what nothing has that these functions need is returned. Nobody needs what only others call."""
        name = self.request.name
        operators = {one: own_symbol(one, name) for one in functions if one not in self.exported}
        family = self.request.family
        listed = [library.path for library in self.request.libraries]
        text = driver_text(driver_functions(self.objects, self.added, listed), family) + self.added
        text += callers_text(operators, family)
        text += functions_text([one for one in functions if one in self.exported], name, family)
        (self.scratch / f"{name}.s").write_text(text, encoding="utf-8")
        self.stage.tool(self._command, self.request.top, self.scratch, UNDEFINED, kind="link")
        return undefined_functions(self.scratch / f"{name}.so", self._known)

    def refuse(self, functions: Sequence[str]) -> None:
        """Have the linker say where what nothing has is called: raises a KernelwrightError."""
        lacking = self(*functions)
        remedy = who_has(lacking, UNDEFINED, [one.name for one in self.request.libraries])
        refuse(lacking, [*self._command, *map(str, self._known)], self.request.top, self.scratch, self.stage, remedy)

    @property
    def _known(self) -> list[Path]:
        return [tvm_ffi_library(), *(library.path for library in self.request.libraries)]

    @property
    def _command(self) -> list[str]:
        request, scratch = self.request, str(self.scratch)
        return request.command(request.places, scratch, f"{scratch}/{request.name}.so")


def make(kernel: KernelContext, objects: Sequence[Stage], glibc: Stage | None, launcher: Stage) -> Stage:
    """The stage that links the library of a kernel's sources, which other kernels may have in common with it.

    Arguments:
        objects: the stages of its objects.
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
        launcher: what makes the launcher.
    """
    compiler, nvcc, top = kernel.tools.host_compiler, kernel.tools.nvcc, kernel.package.work
    family, toolkit = kernel.package.settings.family, kernel.package.cross_cuda
    runtime = cuda_runtime(nvcc, kernel.where("link"), family, toolkit)
    files, content = [Path(stage.paths[0]).name for stage in objects], sha256_of(runtime)
    first = files[0].rpartition("-")[0]  # the name of its source
    name = name_of(first, [files, kernel.record.options.libraries])
    request = SourceLibrary(
        name=name,
        objects=tuple(files),
        compiler=compiler,
        launcher=Path(launcher.paths[0]).name,
        exported=digest_of([SOURCES_MAP, OLDER]),
        runtime=content,
        operators=(digest_of([OPERATORS]), kernel.tools.lowerer.tvm_ffi),
        libraries=kernel.libraries,
        family=family,
        places=replace(real_places(compiler), glibc=kernel.package.glibc if glibc else "", cuda_runtime=str(runtime)),
        top=top,
    )
    texts = (f"{name}.json", f"{name}.s", f"link_{name}.sh")
    outputs = {f"{name}.so": f"{top}/{LIBRARIES}/{name}.so", **{text: f"{top}/{FOLDER}/{text}" for text in texts}}
    sources = [launcher.paths[0], *(glibc.paths if glibc else []), *(stage.paths[0] for stage in objects)]
    subject = ", ".join(stage.subject for stage in objects)
    stage = Stage("SOURCES", subject, kernel.where("link"), request, outputs, sources)
    stage.outside = {INSTALLED + library.distribution: library.recorded for library in kernel.libraries}
    stage.outside[installed_name(runtime)] = content
    return kernel.in_common(stage)


def _by_hand(library: Library) -> str:
    return f"{stand_in(f'{IN_PACKAGE}{library.folder}')}/{library.path.name}"
