"""OBJECT: nvcc makes an object of a source that has host code of its own, with device code of all archs in it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, SettingsError, Where
from ..core.request import ASIDE, digest
from ..package.device_code import is_for_cpu
from ..toolchain.host_code import ObjectJob, compile_object
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.nvcc import Nvcc
from ..toolchain.nvcc_run import stand_in
from ..toolchain.package_folder import package_folder
from ..toolchain.plain_flags import without_threads
from ..toolchain.tvm import tvm_ffi_includes
from .commands import command_of
from .compilation import Compilation
from .context import KernelContext
from .stage import Stage, files_in
from .stage_run import StageRun

FOLDER = "_objects"
"""The folder of the objects, in that of the package's kernels; no kernel can have this name."""

LONGEST = 150
"""Characters that names of files have of the path of a source. File systems allow 255 in a whole name."""


@dataclass(frozen=True)
class ObjectCompilation(Compilation[ObjectJob]):
    """How a source becomes an object.

    Arguments:
        tvm_ffi: version of tvm-ffi, whose headers it may include.
        host_compiler: what nvcc runs for the host; the identity of nvcc covers it.
        source: the source as the definition names it.
    """

    nvcc: Nvcc
    tvm_ffi: str
    host_compiler: HostCompiler = field(metadata=ASIDE)
    source: str = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Compile the source."""
        self._require_source(stage.where)
        self.require_sound(stage.run.top)
        begun = time.time_ns()
        done = compile_object(self.real, self.nvcc, self.host_compiler, scratch, stage.tools, self.job)
        self._require_object(scratch / self.job.outputs[0], stage.where)
        self.note(done, begun, stage)

    def _require_source(self, where: Where) -> None:
        """Raise a DefinitionError if there is no such source; when it is compiled, so that only its kernel fails."""
        place, remedy = "in that package", "look for it in the folder of the installed package"
        if not self.source.startswith(IN_PACKAGE):
            beside = Path((where.location or "").rpartition(":")[0]).parent.as_posix()
            place, remedy = "beside the definition", f"give paths relative to {beside}"
        if not (self.real.folder / self.real.source).is_file():
            raise DefinitionError(f"sources names {self.source!r}, which is no file {place}", where, remedy)

    def _require_object(self, made: Path, where: Where) -> None:
        """Raise a DefinitionError if nvcc made something else, as some flags have it, and ended well."""
        if not made.is_file() or not is_for_cpu(made.read_bytes()):
            remedy = "leave out flags that have nvcc make something else, such as -E, -cubin or -clean"
            raise DefinitionError(f"nvcc made no object of {self.real.shown}", where, remedy)


def make_all(kernel: KernelContext, archs: Sequence[str]) -> list[Stage]:
    """The stages of a kernel's sources. Kernels that list a source with equal options have its stage in common.

    Arguments:
        archs: what device code is made for.

    Raises:
        DefinitionError: there is no such package.
        SettingsError: there is no nvcc.
    """
    return list(dict.fromkeys(_make(kernel, source, tuple(archs)) for source in kernel.record.options.sources))


def name_of(source: str, decides: Any) -> str:
    """The name of files that are made of a source: its path as one name, and a digest of what else decides them.

    Equal paths have one name, however they are written. Of a long path it has the end, as no file may have such a name.
    """
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", os.path.normpath(source))[-LONGEST:].strip("-.")
    return f"{readable}-{digest(decides)[:16]}"


def _make(kernel: KernelContext, source: str, archs: tuple[str, ...]) -> Stage:
    top, folder, where = kernel.run.top, kernel.package.work / FOLDER, kernel.where("nvcc")
    nvcc, host_compiler = kernel.tools.nvcc, kernel.tools.host_compiler
    if nvcc is None or kernel.tools.nvrtc:
        message = "its sources have host code of their own, which NVRTC cannot compile"
        raise SettingsError(message, where, 'write cuda_compiler = "nvcc"')
    job, real = _jobs(kernel, source, archs)
    tvm_ffi, folders = kernel.tools.lowerer.tvm_ffi, kernel.own_folders
    request = ObjectCompilation(*(job, real, folders, nvcc, tvm_ffi), host_compiler=host_compiler, source=source)
    path = top / real.source
    sources, subject = [str(path)] if path.is_file() else [], real.shown
    stage = Stage("OBJECT", subject, where, request, files_in(folder, job.outputs), sources, archs=archs)
    output = os.path.relpath(folder / job.outputs[0], top)
    stage.command = command_of(top, real.source, real.arguments(nvcc.path, host_compiler.path, output), output)
    return kernel.in_common(stage, f"object {job.name}")


def _jobs(kernel: KernelContext, source: str, archs: tuple[str, ...]) -> tuple[ObjectJob, ObjectJob]:
    """What is compiled, with stand-ins for paths of this machine, and with these paths.

    Raises:
        DefinitionError: there is no such package.
    """
    mode, top, where = kernel.package.settings.compress, kernel.run.top, kernel.where("nvcc")
    known = dict(zip(map(str, tvm_ffi_includes()), ("tvm_ffi", "dlpack"), strict=True))
    packages = {str(path): label for label, path in kernel.package_folders.items()}
    package, _, file = source.rpartition("/")
    if source.startswith(IN_PACKAGE):
        place = package_folder(package, where, "sources")
        packages[str(place)] = package
        path, named = f"{place}/{file}", f"{stand_in(package)}/{file}"
    else:
        path = named = os.path.relpath(top / Path(kernel.definition.file).parent / source, top)
    compressed = [] if mode == "none" else [f"--compress-mode={mode}"]
    given = (word for folder in known for word in ("-I", folder))
    real = ObjectJob(
        *(path, "", archs, (*compressed, *without_threads(kernel.flags_in(top)), *given)),
        folder=top,
        where=where,
        known=known,
        packages=packages,
        up=os.path.relpath(top, kernel.package.work / FOLDER),
        shown=source if source.startswith(IN_PACKAGE) else path,
    )
    stand_ins = dict(zip(known, map(stand_in, ("TVM_FFI", "DLPACK")), strict=True))
    stand_ins |= {folder: stand_in(label) for folder, label in packages.items()}
    job = replace(real, source=named, flags=tuple(stand_ins.get(word, word) for word in real.flags))
    name = name_of(source, job)
    return replace(job, name=name), replace(real, name=name)
