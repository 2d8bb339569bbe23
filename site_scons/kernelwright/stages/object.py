"""OBJECT: nvcc makes an object of a source that has host code of its own, with device code of all archs in it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..compilers.host_code import ObjectJob, compile_object
from ..compilers.nvcc import stand_in
from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, SettingsError
from ..library.own_code import renaming
from ..toolchain.package_folder import package_folder
from ..toolchain.tvm import tvm_ffi_includes
from .commands import command_of
from .context import KernelContext
from .included import included
from .stage import Measured, Stage, files_in

FOLDER = "objects"
"""The folder of the objects, in that of the kernel; no variant can have this name, because its own has a dash."""


def make_all(kernel: KernelContext, archs: Sequence[str]) -> list[Stage]:
    """The stages of a kernel's sources.

    Arguments:
        archs: what device code is made for.

    Raises:
        DefinitionError: there is no such package.
        SettingsError: there is no nvcc.
    """
    names = [_name_of(source) for source in kernel.record.sources]
    numbered = [f"{name}-{names[:n].count(name)}" if name in names[:n] else name for n, name in enumerate(names)]
    return [_make(kernel, *both, tuple(archs)) for both in zip(kernel.record.sources, numbered, strict=True)]


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
    path = _path_of(kernel, source)
    job, by_hand = _job(kernel, source, path, name, archs)
    by_hand = replace(by_hand, made_in=os.path.relpath(folder, run.top))
    subject = f"{kernel.name} {source}"

    def compile_it(scratch: Path) -> None:
        _require_source(kernel, source, path)
        kernel.require_folders(where)
        begun = time.time_ns()
        done = compile_object(job, nvcc, host_compiler, scratch, run.compilers, by_hand)
        stage.measured = Measured(done.result.cpu_seconds, done.result.peak_kib)
        for note in done.notes:
            run.note_once(f"kernelwright: {note}")
        remember(included(kernel.run.top, done.headers, job, begun))

    options: dict[str, Any] = {
        "source": source if source.startswith(IN_PACKAGE) else job.source,
        "archs": list(archs),
        "flags": [*kernel.portable_flags, renaming(kernel.name)],
        "compress": kernel.package.settings.compress,
        "nvcc": nvcc.identity,
        "tvm_ffi": kernel.tools.lowerer.tvm_ffi,
    }
    remember = kernel.later(f"object {subject}", options)
    sources = [path] if os.path.isfile(path) else []  # noqa: PTH113
    stage = Stage("OBJECT", subject, where, options, compile_it, files_in(folder, job.outputs), sources)
    stage.remember, stage.archs = remember, archs
    output = os.path.relpath(folder / job.outputs[0], run.top)
    stage.command = command_of(run.top, job.source, job.arguments(nvcc.path, host_compiler.path, output), output)
    return stage


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


def _require_source(kernel: KernelContext, source: str, path: str) -> None:
    """Raise a DefinitionError if there is no such source; when it is compiled, so that only its kernel fails."""
    place, remedy = "in that package", "look for it in the folder of the installed package"
    if not source.startswith(IN_PACKAGE):
        beside = Path(kernel.definition.file).parent.as_posix()
        place, remedy = "beside the definition", f"give paths relative to {beside}"
    if not os.path.isfile(path):  # noqa: PTH113
        raise DefinitionError(f"sources names {source!r}, which is no file {place}", kernel.where("nvcc"), remedy)


def _packages(kernel: KernelContext, source: str) -> dict[str, Path]:
    """The folders in installed packages that a source has headers from, and its own."""
    if not source.startswith(IN_PACKAGE):
        return kernel.package_folders
    return {**kernel.package_folders, source.rpartition("/")[0]: _package_of(kernel, source)}


def _job(
    kernel: KernelContext, source: str, path: str, name: str, archs: tuple[str, ...]
) -> tuple[ObjectJob, ObjectJob]:
    """What is compiled, and the same as a script has it: with stand-ins and names for paths of this machine."""
    mode = kernel.package.settings.compress
    ours = [renaming(kernel.name), *([] if mode == "none" else [f"--compress-mode={mode}"])]
    includes = dict(zip((str(folder) for folder in tvm_ffi_includes()), ("tvm_ffi", "dlpack"), strict=True))
    given = [word for folder in includes for word in ("-I", folder)]
    flags = (*ours, *kernel.flags_in(kernel.run.top), *given)
    packages = {str(folder): label for label, folder in _packages(kernel, source).items()}
    place = path if source.startswith(IN_PACKAGE) else os.path.relpath(path, kernel.run.top)
    job = ObjectJob(place, name, archs, flags, kernel.run.top, kernel.where("nvcc"), includes, packages)
    stand_ins = dict(zip(includes, map(stand_in, ("TVM_FFI", "DLPACK")), strict=True))
    stand_ins |= {folder: stand_in(label) for folder, label in packages.items()}
    by_hand = tuple(stand_ins.get(word, word) for word in flags)
    top, _, file = source.rpartition("/")
    named = f"{stand_in(top)}/{file}" if source.startswith(IN_PACKAGE) else place
    return job, replace(job, source=named, flags=by_hand)
