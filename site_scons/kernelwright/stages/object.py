"""OBJECT: nvcc makes an object of a source that has host code of its own, with device code of all archs in it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.dependencies import IN_PACKAGE, path_of
from ..core.errors import DefinitionError, SettingsError, ToolError, Where
from ..core.request import ASIDE, digest
from ..package.device_code import is_for_cpu
from ..processes.environment import place_for_shell, require_plain_path
from ..toolchain.cross_compiler import remedy_for
from ..toolchain.host_code import ObjectJob, compile_object
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc import Nvcc
from ..toolchain.nvcc_run import HERE, CompiledCode, stand_in
from ..toolchain.package_folder import package_folder
from ..toolchain.plain_flags import without_threads
from ..toolchain.pytorch import OF_TOOLKIT
from ..toolchain.tvm import tvm_ffi_includes
from .commands import command_of
from .compilation import Compilation
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun
from .text import Texts

FOLDER = "_objects"
"""The folder of the objects, in that of the package's kernels; no kernel can have this name."""

LONGEST = 150
"""Characters that names of files have of the path of a source. File systems allow 255 in a whole name."""


OF_TORCH = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10)/", re.M)
"""The line of a source that includes a header of PyTorch."""


ABSENT = re.compile(r"fatal error: (\S+): No such file")
"""What a compiler says of a header that is not there."""


@dataclass(frozen=True)
class ObjectCompilation(Compilation[ObjectJob]):
    """How a source becomes an object.

    Arguments:
        tvm_ffi: version of tvm-ffi, whose headers it may include.
        host_compiler: what nvcc runs for the host; the identity of nvcc covers this machine's own only.
        source: the source as the definition names it.
        texts: paths of what the definition makes of it: itself, and headers.
    """

    nvcc: Nvcc
    tvm_ffi: str
    host_compiler: HostCompiler
    source: str = field(metadata=ASIDE)
    texts: tuple[str, ...] = field(default=(), metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Compile the source."""
        self._require_source(stage.where)
        self.require_sound(stage.run.top)
        begun = time.time_ns()
        try:
            done = compile_object(self.real, self.nvcc, self.host_compiler, scratch, stage.tools, self.job)
        except ToolError as error:
            self.require_compiler()
            self._tell_what_lacks(error)
            raise
        self._require_object(scratch / self.job.outputs[0], stage.where)
        self._require_texts(done, stage)
        self.note(done, begun, stage, *map(Path, self.texts))

    def require_compiler(self) -> None:
        """Raise a ToolchainError if nvcc compiles nothing, so that the source is not to blame."""
        # Imported here, because few runs have an error.
        from ..toolchain.nvcc_probe import require_compiles

        require_compiles(self.nvcc, self.host_compiler)

    def _tell_what_lacks(self, error: ToolError) -> None:
        """Have the error name the package of a header that PyTorch's headers include, or the front end for these."""
        if (absent := ABSENT.search(error.detail or "")) and (package := OF_TOOLKIT.get(absent[1])):
            error.remedy = f"pip install {package}, which has {absent[1]}"
            return
        path = self.real.folder / self.real.source
        without = "package:torch/include" not in self.real.packages.values()
        if without and path.is_file() and OF_TORCH.search(path.read_text(errors="replace")):
            other = 'frontend="torch" and return Operators(...), or includes=["package:torch/include"]'
            error.remedy = f"it includes headers of PyTorch: write {other} for calls without PyTorch"

    def _require_source(self, where: Where) -> None:
        """Raise a DefinitionError if there is no such source; when it is compiled, so that only its kernel fails."""
        place, remedy = "in that package", "look for it in the folder of the installed package"
        if not self.source.startswith(IN_PACKAGE):
            beside = Path((where.location or "").rpartition(":")[0]).parent.as_posix()
            place, remedy = "beside the definition", f"give paths relative to {beside}"
        if not self.real.is_text and not (self.real.folder / self.real.source).is_file():
            raise DefinitionError(f"sources names {self.source!r}, which is no file {place}", where, remedy)

    def _require_object(self, made: Path, where: Where) -> None:
        """Raise a DefinitionError if nvcc made something else, as some flags have it, and ended well."""
        if not made.is_file() or not is_for_cpu(made.read_bytes()):
            remedy = "leave out flags that have nvcc make something else, such as -E, -cubin or -clean"
            raise DefinitionError(f"nvcc made no object of {self.real.shown}", where, remedy)

    def _require_texts(self, done: CompiledCode, stage: StageRun) -> None:
        """Raise a DefinitionError if a file hid a text: compilers look beside what includes it before all folders.

        If the compiler has read the text, too, a header has a file of that name for itself.
        """
        paths, source = [path_of(stage.run.top, name) for name in done.headers], self.real.folder / self.real.source
        names = {*map(os.path.basename, self.texts)} - {path.name for path in done.texts}
        for path in (path for path in paths if path.name in names):
            includes = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*"{re.escape(path.name)}"', re.M)
            around = (other for other in paths if other.parent == path.parent)
            found = next((other for other in around if includes.search(other.read_text(errors="replace"))), None)
            if found or path.parent == source.parent:
                by = os.path.relpath(found, stage.run.top) if found and found != source else self.real.shown
                message = f"{by} includes the file {path.name!r} beside it, which hides the Text of this name"
                raise DefinitionError(message, stage.where, "give one of them another name")


@dataclass(frozen=True)
class Objects:
    """The stages of a variant's sources.

    Arguments:
        objects: those that make the objects, in the order of the sources.
        texts: those that write what the definition makes.
    """

    objects: tuple[Stage, ...]
    texts: tuple[Stage, ...]


def make_all(kernel: KernelContext, slug: str, archs: Sequence[str]) -> Objects:
    """The stages of a variant's sources. Whoever lists a source with equal options has its stage in common.

    Arguments:
        archs: what device code is made for.

    Raises:
        DefinitionError: there is no such package, or the definition does not list the config.
        SettingsError: there is no nvcc.
    """
    listed = kernel.record.sources_of(slug)
    if listed is None:
        message = "its sources are made for the configs that the definition lists, and this is none of them"
        raise DefinitionError(message, kernel.where("lower", slug), "add it to configs")
    headers = {source.path: source.text for source in listed if source.text is not None and not source.is_compiled}
    common = _written(kernel, "headers", headers) if headers else None
    objects, texts = [], [common] if common else []
    for source in (source for source in listed if source.is_compiled):
        own = None if source.text is None else _written(kernel, source.path, {source.path: source.text})
        objects.append(_make(kernel, source.path, tuple(archs), own=own, headers=common))
        texts += [own] if own else []
    return Objects(tuple(dict.fromkeys(objects)), tuple(dict.fromkeys(texts)))


def _written(kernel: KernelContext, name: str, files: Mapping[str, str]) -> Stage:
    """The stage that writes texts into a folder of their own, whose name has a digest of them."""
    folder = kernel.package.work / FOLDER / name_of(name, files)
    stage = Stage("TEXT", ", ".join(files), kernel.where("lower"), Texts(files), files_in(folder, files), [])
    return kernel.in_common(stage)


def name_of(source: str, decides: Any) -> str:
    """The name of files that are made of a source: its path as one name, and a digest of what else decides them.

    Equal paths have one name, however they are written. Of a long path it has the end, as no file may have such a name.
    """
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", os.path.normpath(source))[-LONGEST:].strip("-.")
    return f"{readable}-{digest(decides)[:16]}"


def _make(
    kernel: KernelContext, source: str, archs: tuple[str, ...], *, own: Stage | None, headers: Stage | None
) -> Stage:
    """The stage of a source.

    Arguments:
        own: what writes it, if the definition makes it.
        headers: what writes headers that the definition makes.
    """
    top, folder, where = kernel.run.top, kernel.package.work / FOLDER, kernel.where("nvcc")
    nvcc, host_compiler = kernel.tools.nvcc, kernel.tools.host_compiler
    if host_compiler.brings_glibc:
        message = "its sources have host code of their own, which Zig does not compile: nvcc needs GNU's C++ compiler"
        raise SettingsError(message, where, remedy_for(kernel.package.settings.family))
    if nvcc is None or kernel.tools.nvrtc:
        message = "its sources have host code of their own, which NVRTC cannot compile"
        raise SettingsError(message, where, 'write cuda_compiler = "nvcc"')
    if unknown := [arch for arch in archs if kernel.tools.others and arch not in nvcc.archs]:
        message = (
            f"its sources have host code of their own, which nvcc {nvcc.version} compiles for all archs, and it does"
        )
        remedy = "give the kernel archs=[...] without it, or name a toolkit first in cuda that knows all of them"
        raise SettingsError(f"{message} not know {unknown[0]!r}", where, remedy)
    job, real = _jobs(kernel, _Place.of(kernel, source, own), archs, headers)
    tvm_ffi, folders = kernel.tools.lowerer.tvm_ffi, kernel.own_folders
    texts = tuple(path for stage in (own, headers) if stage for path in stage.paths)
    place = Compilation.place_in(top, kernel.flags, parted=False)
    given: dict[str, Any] = {"host_compiler": host_compiler, "source": source, "texts": texts}
    request = ObjectCompilation(job, real, folders, place, nvcc, tvm_ffi, **given)
    path = top / real.source
    sources = [*texts, *([str(path)] if path.is_file() and not own else [])]
    stage = Stage("OBJECT", real.shown, where, request, files_in(folder, job.outputs), sources, archs=archs)
    stage.outside = request.outside(top)
    output = os.path.relpath(folder / job.outputs[0], top)
    stage.command = command_of(top, real.source, real.arguments(nvcc.path, host_compiler.path, output), output)
    # The headers of the C++ library differ.
    of_family = "" if kernel.package.is_native else f" {kernel.package.settings.family}"
    return kernel.in_common(stage, f"object {job.name}{of_family}")


@dataclass(frozen=True)
class _Place:
    """Where a source is.

    Arguments:
        path: as commands name it.
        named: the same, with stand-ins for paths of this machine.
        listed: as the definition lists it.
        shown: as progress lines have it.
        packages: the folder in an installed package that it is in, and its name.
        texts: likewise, the folder of a text.
    """

    path: str
    named: str
    listed: str
    shown: str
    packages: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kernel: KernelContext, source: str, own: Stage | None) -> _Place:
        """The place of a source; raises a DefinitionError if there is no such package.

        Arguments:
            own: what writes it, if the definition makes it.
        """
        if own:
            folder, name = _folder_of(own, kernel.run.top)
            path, named = f"{folder}/{source}", f"{stand_in(HERE)}/{name}/{source}"
            return cls(path, named, source, source, texts={folder: name})
        package, _, file = source.rpartition("/")
        if source.startswith(IN_PACKAGE):
            place = str(package_folder(package, kernel.where("nvcc"), "sources"))
            return cls(f"{place}/{file}", f"{stand_in(package)}/{file}", source, source, packages={place: package})
        top = kernel.run.top
        path = os.path.relpath(top / Path(kernel.definition.file).parent / source, top)
        return cls(path, path, source, path)


def _folder_of(written: Stage, top: Path) -> tuple[str, str]:
    """The folder of texts as commands in the project's folder name it, and its own name."""
    folder = Path(written.paths[0]).parent
    path = os.path.relpath(folder, top) if folder.is_relative_to(top) else place_for_shell(folder, top)
    require_plain_path(path)
    return path, folder.name


def _jobs(
    kernel: KernelContext, source: _Place, archs: tuple[str, ...], headers: Stage | None
) -> tuple[ObjectJob, ObjectJob]:
    """What is compiled, with stand-ins for paths of this machine, and with these paths."""
    mode, top = kernel.package.settings.compress, kernel.run.top
    known = dict(zip(map(str, tvm_ffi_includes()), ("tvm_ffi", "dlpack"), strict=True))
    packages = {**{str(path): label for label, path in kernel.package_folders.items()}, **source.packages}
    first = dict([_folder_of(headers, top)]) if headers else {}
    compressed = [] if mode == "none" else [f"--compress-mode={mode}"]
    given = (word for folder in known for word in ("-I", folder))
    own = (word for folder in first for word in ("-I", folder))
    real = ObjectJob(
        *(source.path, "", archs, (*compressed, *own, *without_threads(kernel.flags_in(top)), *given)),
        folder=top,
        where=kernel.where("nvcc"),
        known=known,
        packages=packages,
        up=os.path.relpath(top, kernel.package.work / FOLDER),
        shown=source.shown,
        texts={**first, **source.texts},
    )
    stand_ins = dict(zip(known, map(stand_in, ("TVM_FFI", "DLPACK")), strict=True))
    stand_ins |= {folder: stand_in(label) for folder, label in packages.items()}
    stand_ins |= {folder: f"{stand_in(HERE)}/{label}" for folder, label in first.items()}
    job = replace(real, source=source.named, flags=tuple(stand_ins.get(word, word) for word in real.flags))
    name = name_of(source.listed, job)
    return replace(job, name=name), replace(real, name=name)
