"""TORCH: the linker makes the library of sources that register operators with PyTorch, and PyTorch tells which."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..backends.assembler import ASSEMBLER
from ..backends.commands import ToolPaths, compile_flags, link_flags
from ..backends.description import description_of_operators
from ..backends.files import VariantFiles, own_of
from ..backends.launcher import OLDER
from ..backends.operators import registered_operators, source_of
from ..backends.own_code import OF_DRIVER, cuda_runtime, undefined_functions
from ..core.arch import native_family
from ..core.dependencies import IN_PACKAGE, installed_name
from ..core.errors import DefinitionError, ToolError, Where
from ..core.files import digest_of, sha256_of
from ..core.request import ASIDE
from ..core.surroundings import INSTALLED
from ..toolchain import torch_registry
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.libraries import Library
from ..toolchain.nvcc_run import shell_script, stand_in
from ..toolchain.pytorch import (
    FOLDER,
    OPTIONAL,
    Torch,
    Undefined,
    find_torch,
    names_of_cuda,
    sorted_out,
    stand_in_text,
    without_others,
)
from ..toolchain.undefined import short, who_has
from . import entry
from .commands import command_of
from .context import KernelContext
from .entry import Entry
from .places import real_places, symbolic_places
from .stage import Stage, files_in
from .stage_run import StageRun
from .undefined import refuse

OF_MODULE = re.compile(r"PyModule_Create2|PyModuleDef_Init")
"""What an empty module of Python calls, whose only purpose is to be imported. Any Python has these functions."""

OF_PYTHON = re.compile(r"_?Py[A-Z]\w*|THP\w*|\w*8pybind11\w*")
"""Names of what sources call of Python, and of what PyTorch has for Python."""

TWICE = re.compile(
    r"an operator \(([\w:.]+).*?Duplicate registration: registered at (\S+?)\. Original.*? at (\S+)", re.S
)
NAMESPACE = re.compile(
    r"register the namespace (\w+);.*? at ([\w./+-]+:\d+); latest registration was registered at ([\w./+-]+:\d+)", re.S
)
"""What PyTorch says of an operator, and of a namespace, that two sources register."""

IN_C = "API call failed"
"""What is said of it if it was registered through the stable ABI."""

WHAT = re.compile(r"what\(\):\s*(.*)|^(\w+Error: .*)", re.M)
"""What PyTorch says of another problem."""

ENDS = "see what runs when the library is loaded: constructors of static variables, TORCH_LIBRARY blocks"

OWN = "own.c"
"""What is put into the library besides the sources."""

OWN_TEXT = """\
/* What C++ needs of an older glibc, and a digest of what the manifest says. Written by Kernelwright. */
#define KW_HIDDEN __attribute__((visibility("hidden")))
#include "{older}"
KW_HIDDEN const char kw_description[] __attribute__((used)) = "{description}";
"""

OWN_ASSEMBLER = """
/* Calls of functions that PyTorch for CPUs does not have. */
__asm__({text});
"""

IN_SOURCES = "list the source that has it in sources, or the library in libraries"
WITH_CUDA_RUNTIME = "get {} with cudaGetDriverEntryPoint, which needs no driver where it is built"
WITH_LIBRARY = (
    "register functions with TORCH_LIBRARY(acme, m) { m.def(...); } and TORCH_LIBRARY_IMPL, or with PYBIND11_MODULE of "
    "torch/extension.h: then the library suits every Python"
)


def own_text(description: str, optional: Sequence[str]) -> str:
    """What is put into the library besides the sources.

    Arguments:
        optional: functions that need not be there.
    """
    text = OWN_TEXT.format(older=OLDER.name, description=description)
    wrapped = "".join(ASSEMBLER[native_family()].optional.format(name=name) for name in optional)
    return text + OWN_ASSEMBLER.format(text=json.dumps(wrapped)) if optional else text


@dataclass(frozen=True)
class Registering:
    """What a library for PyTorch is linked of, and how; what its part of the manifest says.

    Arguments:
        contents: digests of CUDA's runtime, and of our header, which become parts of it.
        libraries: those of installed packages that it is linked with by name.
        python: the interpreter that loads the library beside PyTorch.
        top: the folder of the package's kernels, in which the linker runs.
    """

    described: Entry
    compiler: HostCompiler
    torch: Torch
    contents: tuple[str, str]
    libraries: tuple[Library, ...]
    places: ToolPaths
    python: str = field(metadata=ASIDE)
    top: Path = field(metadata=ASIDE)

    def command(
        self, objects: list[str], libraries: list[str], places: ToolPaths, output: str, optional: Sequence[str] = ()
    ) -> list[str]:
        """The command that links the library.

        Arguments:
            libraries: those of PyTorch and of other packages. The library has their names, and nothing says where they
                are: PyTorch has loaded its own before.
            optional: functions that need not be there. In PyTorch for CUDA, a library that libtorch.so needs has them,
                and what sources declare as weak themselves.
        """
        main = [path for path in libraries if path.endswith("/libtorch.so")]
        flags = [*link_flags(places.glibc), "-Wl,--exclude-libs,ALL", *(f"-Wl,--wrap={name}" for name in optional)]
        flags += ["-Wl,--no-as-needed", *main, "-Wl,--as-needed"]
        # Libraries of PyTorch have some functions of the C++ library as well, which the linker would take of them.
        libraries = ["-lstdc++", *libraries, places.cuda_runtime, "-lm", "-ldl", "-lpthread", "-lrt"]
        own = [*compile_flags(), f"-I{places.launcher}"]
        return [places.compiler, *own, *objects, "-o", output, *flags, *libraries]

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Link the library, ask PyTorch what it registers, and write the script and the part of the manifest."""
        name, variants = self.described.kernel, stage.whole(self.described.source.variants)
        self.described.check_limits(variants, stage.where)
        library, objects = scratch / f"{name}.so", [*self.objects(variants), str(scratch / OWN)]

        def link(more: list[str], description: str = "", optional: Sequence[str] = ()) -> None:
            (scratch / OWN).write_text(own_text(description, optional), encoding="utf-8")
            command = self.command(objects, [*self.installed, *more], self.places, str(library), optional)
            stage.tool(command, self.top, scratch, IN_SOURCES, kind="link")

        link([])
        known = [one.path for one in self.libraries]
        undefined = sorted_out(undefined_functions(library, known), self.torch.libraries)
        undefined = without_others(undefined, self.torch)
        self._require_defined(undefined, objects, scratch, stage)
        of_cuda = names_of_cuda(undefined, self.torch)
        optional = of_cuda if all(map(OPTIONAL.fullmatch, of_cuda)) else []
        absent = [] if optional else list(self._absent(undefined, scratch, stage))
        if absent or optional:
            link(absent, optional=optional)
        declared = variants[0].units[0].read_signature()["operators"]
        registered = self._registered(library, absent, declared, scratch, stage)
        operators = self._described(undefined, registered, declared, stage.where)
        operators["needs_cuda"] = bool(of_cuda) and not optional
        link(absent, description_of_operators(name, operators), optional)
        for path in absent:
            Path(path).unlink()
        self._write(operators, [*absent], optional, variants, scratch)

    def _write(
        self,
        operators: dict[str, Any],
        absent: list[str],
        optional: list[str],
        variants: tuple[VariantFiles, ...],
        scratch: Path,
    ) -> None:
        """Write the script that links the library again, and the part of the manifest."""
        name, source = self.described.kernel, replace(self.described.source, operators=operators)
        replace(self.described, source=source).write(variants, scratch)
        places = symbolic_places(self.compiler, self.places.glibc, cuda_runtime=stand_in("CUDA_RUNTIME"))
        torch = stand_in(IN_PACKAGE + FOLDER)
        libraries = [f"{torch}/{Path(path).name}" for path in (*map(str, self.torch.libraries), *absent)]
        libraries += [f"{stand_in(IN_PACKAGE + one.folder)}/{one.path.name}" for one in self.libraries]
        objects = [*self.objects(variants), f"{name}/{OWN}"]
        by_hand = self.command(objects, libraries, places, f"{name}/{name}.so", optional)
        (scratch / "compile.sh").write_text(shell_script(self.compiler.version, "..", by_hand))

    @property
    def installed(self) -> list[str]:
        """Paths of the libraries that it is linked with, but for those of PyTorch that are not installed."""
        return [*map(str, self.torch.libraries), *(str(one.path) for one in self.libraries)]

    def objects(self, variants: tuple[VariantFiles, ...]) -> list[str]:
        """Paths of the objects of the sources, relative to the folder in which the linker runs."""
        return [Path(path).relative_to(self.top).as_posix() for path in own_of(variants)]

    def _require_defined(self, undefined: Undefined, objects: list[str], scratch: Path, stage: StageRun) -> None:
        """Raise an error for symbols that nobody defines where the library runs; the linker says who calls them."""
        rest = [name for name in undefined.rest if not OF_MODULE.fullmatch(name)]
        if not rest:
            return
        if called := next(filter(OF_PYTHON.fullmatch, rest), ""):
            message = f"its sources are a module of Python, and call Python: {short(called)}"
            raise DefinitionError(message, stage.where, WITH_LIBRARY)
        driver = [name for name in rest if OF_DRIVER.fullmatch(name)]
        others = [name for name in rest if name not in driver]
        said = [WITH_CUDA_RUNTIME.format(driver[0])] if driver else []
        if others:
            in_torch = f"PyTorch {self.torch.version} does not have {{}}"
            said.append(who_has(others, IN_SOURCES, [one.name for one in self.libraries], in_torch))
        # The linker has to say nothing of what is there where the library runs.
        there = [*filter(OF_MODULE.fullmatch, undefined.rest), *names_of_cuda(undefined, self.torch)]
        (scratch / "there.s").write_text(stand_in_text(there), encoding="utf-8")
        linked, output = [*objects, str(scratch / "there.s")], str(scratch / "undefined.so")
        command = self.command(linked, self.installed, self.places, output)
        refuse(rest, command, self.top, scratch, stage, "; ".join(said))

    def _absent(self, undefined: Undefined, scratch: Path, stage: StageRun) -> Iterator[str]:
        """Paths of libraries that stand in for those of PyTorch for CUDA, where that is not installed."""
        for name, symbols in undefined.cuda.items():
            text, library = scratch / f"{name}.s", scratch / name
            text.write_text(stand_in_text(symbols), encoding="utf-8")
            command = [self.places.compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}", text.name, "-o", name]
            stage.tool(command, scratch, scratch, IN_SOURCES, kind="link")
            text.unlink()
            yield str(library)

    def _registered(
        self, library: Path, absent: list[str], declared: Mapping[str, str], scratch: Path, stage: StageRun
    ) -> dict[str, Any]:
        """What the library registers, by what PyTorch says when it has loaded it.

        Raises:
            DefinitionError: PyTorch refuses the library.
        """
        output, asked = scratch / "registered.json", json.dumps({name: text for name, text in declared.items() if text})
        before = [*(str(one.path) for one in self.libraries), *absent]
        command = [self.python, "-I", torch_registry.__file__, str(library), str(output), asked, *before]
        try:
            stage.tool(command, scratch, scratch, "mend the sources", kind="torch", called="PyTorch")
        except ToolError as error:
            raise _refused(error, stage) from error
        if not output.is_file():
            message = "its sources end the process that loads them, with exit status 0, before PyTorch can be asked"
            raise DefinitionError(message, stage.where, ENDS)
        registered: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        output.unlink()
        return registered

    def _described(
        self, undefined: Undefined, registered: Mapping[str, Any], declared: Mapping[str, str], where: Where
    ) -> dict[str, Any]:
        """What the manifest says of the operators.

        Raises:
            DefinitionError: the sources do not register one, or with another schema.
        """
        found = {name: one for name, one in registered["operators"].items() if one["schema"]}
        for name in declared:
            if name not in found:
                raise _unregistered(name, registered["operators"], where)
            if name in registered["declared"] and registered["declared"][name] != found[name]["schema"]:
                message = f"the schema of {name} is {found[name]['schema']}, and schemas says {declared[name]}"
                raise DefinitionError(message, where, "mend the one that is wrong")
        return {
            "torch": self.torch.requirement(undefined.is_stable, self.described.source.flags),
            "built_with": self.torch.version,
            "names": list(declared),
            "namespaces": registered["namespaces"],
            "registered": found,
        }


def _unregistered(name: str, found: Mapping[str, Any], where: Where) -> DefinitionError:
    """The error for an operator that no source registers."""
    with_schemas = sorted(other for other, one in found.items() if one["schema"])
    if name in found:
        message = f"its sources register a function for {name}, and no schema of it"
        return DefinitionError(message, where, f'write m.def("{name.partition("::")[2]}(...) -> ...") in TORCH_LIBRARY')
    message = f"its sources do not register {name}; they register {', '.join(with_schemas) or 'no operators'}"
    remedy = "name one of these in Operators, or register it with TORCH_LIBRARY" if with_schemas else WITH_LIBRARY
    return DefinitionError(message, where, remedy)


def _refused(error: ToolError, stage: StageRun) -> DefinitionError:
    """The error for a library that PyTorch refuses."""
    where, once = stage.where, "call m.def for it once; m.impl may follow for each device"
    said = error.detail or ""
    if found := TWICE.search(said):
        message = f"two sources register the operator {found[1]}: {found[3]} and {found[2]}"
        return DefinitionError(message, where, once)
    if found := NAMESPACE.search(said):
        message = f"two sources have TORCH_LIBRARY({found[1]}, m): {found[2]} and {found[3]}"
        return DefinitionError(message, where, f"write TORCH_LIBRARY_FRAGMENT({found[1]}, m) in one of them")
    if IN_C in said and (twice := _defined_twice([Path(path) for path in stage.sources if path.endswith(".o")])):
        message = f"two sources register the operator {twice[0]}: {twice[1]} and {twice[2]}"
        return DefinitionError(message, where, once)
    found = WHAT.search(said)
    message = f"PyTorch refuses its library: {(found[1] or found[2]) if found else error.message}"
    return DefinitionError(message, where, "mend what the sources register", error.detail)


def _defined_twice(objects: list[Path]) -> tuple[str, str, str] | None:
    """An operator whose schema two objects have, and the names of their sources."""
    owners: dict[str, str] = {}
    for path in objects:
        for name in registered_operators([path]):
            if name in owners:
                return name, owners[name], source_of(path)
            owners[name] = source_of(path)
    return None


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...], glibc: Stage | None) -> Stage:
    """The stage that links a library for PyTorch.

    Arguments:
        glibc: what makes the libraries that stand in for the machine's C library, if any does.

    Raises:
        DefinitionError: two kernels have a source in common.
        ToolchainError: PyTorch is not installed, or CUDA's runtime is not.
    """
    name, compiler, where = kernel.name, kernel.tools.host_compiler, kernel.where("link")
    own, front_end = kernel.record.compiled_sources, kernel.front_end.name
    others = [one for one in kernel.definition.kernels if one.options.frontend == front_end]
    shared = sorted(found.name for found in others if own & found.compiled_sources)
    if len(shared) > 1:
        message = f"the kernels {', '.join(shared)} have a source in common, which PyTorch loads once only"
        raise DefinitionError(message, where, "name all operators in the Operators of one kernel")
    runtime = str(cuda_runtime(kernel.tools.nvcc, where, kernel.package.settings.family))
    torch, content = find_torch(where), sha256_of(Path(runtime))
    places = replace(real_places(compiler), glibc=kernel.package.glibc if glibc else "", cuda_runtime=runtime)
    described, top = entry.entry_of(kernel, variants), kernel.package.work
    request = Registering(
        *(described, compiler, torch, (content, digest_of([OLDER])), kernel.libraries, places),
        python=sys.executable,
        top=top,
    )
    outputs = files_in(kernel.folder, (f"{name}.so", "compile.sh", "entry.json", OWN))
    sources = [*(glibc.paths if glibc else []), *own_of(variants), *entry.sources_of(variants)]
    stage = Stage("TORCH", name, where, request, outputs, sources)
    recorded = described.recorded | {INSTALLED + library.distribution: library.recorded for library in kernel.libraries}
    stage.outside = {**recorded, INSTALLED + "torch": torch.recorded, installed_name(Path(runtime)): content}
    output, objects = f"{name}/{name}.so", request.objects(variants)
    command = request.command([*objects, f"{name}/{OWN}"], request.installed, places, output)
    stage.command = command_of(top, objects[0], command, output)
    return stage
