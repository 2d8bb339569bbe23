"""OBJECT: nvcc makes an object of a source that has host code of its own, with device code of all archs in it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..backends.own_code import renaming
from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, SettingsError, Where
from ..core.request import ASIDE
from ..toolchain.host_code import ObjectJob, compile_object
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc import Nvcc
from ..toolchain.nvcc_run import stand_in
from ..toolchain.package_folder import package_folder
from ..toolchain.tvm import tvm_ffi_includes
from .commands import command_of
from .context import KernelContext, require_folders, require_no_device_linker
from .included import included
from .stage import Stage, files_in
from .stage_run import StageRun

FOLDER = "objects"
"""The folder of the objects, in that of the kernel; no variant can have this name, because its own has a dash."""


@dataclass(frozen=True)
class ObjectCompilation:
    """What is compiled, and with what.

    Arguments:
        job: what is compiled, with stand-ins for paths of this machine.
        tvm_ffi: version of tvm-ffi, whose headers it may include.
        host_compiler: what nvcc runs for the host; the identity of nvcc covers it.
        places: stand-ins -> the paths.
        folders: folders of headers in the project by their names; they have to be there.
        source: the source as the definition names it.
        path: the source.
    """

    job: ObjectJob
    nvcc: Nvcc
    tvm_ffi: str
    host_compiler: HostCompiler = field(metadata=ASIDE)
    places: Mapping[str, str] = field(metadata=ASIDE)
    folders: Mapping[str, Path] = field(metadata=ASIDE)
    source: str = field(metadata=ASIDE)
    path: str = field(metadata=ASIDE)

    @property
    def real(self) -> ObjectJob:
        """The job with the paths of this machine."""
        flags = tuple(self.places.get(word, word) for word in self.job.flags)
        return replace(self.job, source=self.path if "\0" in self.job.source else self.job.source, flags=flags)


def make_all(kernel: KernelContext, archs: Sequence[str]) -> list[Stage]:
    """The stages of a kernel's sources.

    Arguments:
        archs: what device code is made for.

    Raises:
        DefinitionError: there is no such package.
        SettingsError: there is no nvcc.
    """
    names = [_name_of(source) for source in kernel.record.options.sources]
    numbered = [f"{name}-{names[:n].count(name)}" if name in names[:n] else name for n, name in enumerate(names)]
    return [_make(kernel, *both, tuple(archs)) for both in zip(kernel.record.options.sources, numbered, strict=True)]


def _name_of(source: str) -> str:
    """The name of a source's files: its path, as one name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", source).strip("-.")


def _make(kernel: KernelContext, source: str, name: str, archs: tuple[str, ...]) -> Stage:
    run, folder, where = kernel.run, kernel.folder / FOLDER, kernel.where("nvcc")
    nvcc, host_compiler = kernel.tools.nvcc, kernel.tools.host_compiler
    if nvcc is None or kernel.tools.nvrtc:
        raise SettingsError(
            "its sources have host code of their own, which NVRTC cannot compile", where, 'write cuda_compiler = "nvcc"'
        )
    path, top = _path_of(kernel, source), run.top
    job, places = _job(kernel, source, path, name, archs)
    tvm_ffi, folders = kernel.tools.lowerer.tvm_ffi, kernel.own_folders
    request = ObjectCompilation(job, nvcc, tvm_ffi, host_compiler, places, folders, source, path)
    sources = [path] if os.path.isfile(path) else []  # noqa: PTH113
    outputs, subject = files_in(folder, job.outputs), f"{kernel.name} {source}"
    stage = Stage("OBJECT", subject, where, request, compile_it, outputs, sources, archs=archs)
    output = os.path.relpath(folder / job.outputs[0], top)
    command = request.real.arguments(nvcc.path, host_compiler.path, output)
    stage.command = command_of(top, request.real.source, command, output)
    return kernel.remembering(stage, f"object {subject}")


def compile_it(request: ObjectCompilation, scratch: Path, stage: StageRun) -> None:
    """Compile the source."""
    _require_source(request, stage.where)
    require_folders(request.folders, stage.where)
    require_no_device_linker(request.job.flags, stage.where)
    job, begun = request.real, time.time_ns()
    done = compile_object(job, request.nvcc, request.host_compiler, scratch, stage.tools, request.job)
    stage.compiled(done)
    stage.stage.remember(included(stage.run.top, done.headers, job, begun))


def _path_of(kernel: KernelContext, source: str) -> str:
    """The path of a source, which is beside the definition or in an installed package.

    Raises:
        DefinitionError: there is no such package.
    """
    if not source.startswith(IN_PACKAGE):
        return os.path.normpath(f"{kernel.run.top}/{Path(kernel.definition.file).parent}/{source}")
    return str(_package_of(kernel, source) / source.rpartition("/")[2])


def _package_of(kernel: KernelContext, source: str) -> Path:
    """The folder of a source in an installed package."""
    return package_folder(source.rpartition("/")[0], kernel.where("nvcc"), "sources")


def _require_source(request: ObjectCompilation, where: Where) -> None:
    """Raise a DefinitionError if there is no such source; when it is compiled, so that only its kernel fails."""
    place, remedy = "in that package", "look for it in the folder of the installed package"
    if not request.source.startswith(IN_PACKAGE):
        beside = Path((where.location or "").rpartition(":")[0]).parent.as_posix()
        place, remedy = "beside the definition", f"give paths relative to {beside}"
    if not os.path.isfile(request.path):  # noqa: PTH113
        raise DefinitionError(f"sources names {request.source!r}, which is no file {place}", where, remedy)


def _packages(kernel: KernelContext, source: str) -> dict[str, Path]:
    """The folders in installed packages that a source has headers from, and its own."""
    if not source.startswith(IN_PACKAGE):
        return kernel.package_folders
    return {**kernel.package_folders, source.rpartition("/")[0]: _package_of(kernel, source)}


def _job(
    kernel: KernelContext, source: str, path: str, name: str, archs: tuple[str, ...]
) -> tuple[ObjectJob, dict[str, str]]:
    """What is compiled, as a script has it: with stand-ins for paths of this machine; and the paths."""
    mode, top = kernel.package.settings.compress, kernel.run.top
    ours = [*renaming(kernel.linked_names), *([] if mode == "none" else [f"--compress-mode={mode}"])]
    includes = dict(zip((str(folder) for folder in tvm_ffi_includes()), ("tvm_ffi", "dlpack"), strict=True))
    given = [word for folder in includes for word in ("-I", folder)]
    packages = {str(folder): label for label, folder in _packages(kernel, source).items()}
    stand_ins = dict(zip(includes, map(stand_in, ("TVM_FFI", "DLPACK")), strict=True))
    stand_ins |= {folder: stand_in(label) for folder, label in packages.items()}
    flags = tuple(stand_ins.get(word, word) for word in (*ours, *kernel.flags_in(top), *given))
    package, _, file = source.rpartition("/")
    named = f"{stand_in(package)}/{file}" if source.startswith(IN_PACKAGE) else os.path.relpath(path, top)
    up = os.path.relpath(top, kernel.folder / FOLDER)
    job = ObjectJob(named, name, archs, flags, top, kernel.where("nvcc"), includes, packages, up)
    return job, {name: folder for folder, name in stand_ins.items()}
