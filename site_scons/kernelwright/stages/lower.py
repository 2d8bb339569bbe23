"""LOWER: a worker executes the definition and lowers one variant for a CPU arch, or for CUDA archs with one source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.arch import lowering_arch
from ..define.unit import alike
from ..processes.protocol import LowerRequest
from .context import KernelContext
from .stage import IR, Stage, files_in


def make(kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]) -> Stage:
    """The stage that lowers a variant.

    Arguments:
        archs: one arch of the CPU, or all CUDA archs that share a source.
    """
    folder = folder_of(kernel, slug, target, archs)
    files = kernel.front_end.files(target, archs)
    subject = subject_of(kernel, slug, target, archs)
    where = kernel.where("lower", slug)

    def lower(scratch: Path) -> None:
        made = scratch / "made"
        made.mkdir()
        result = kernel.call(request_of(kernel, slug, config, target, archs, made), where)
        write_anew(made, scratch, files.names)
        remember(result["dependencies"])
        stage.measured.cpu_seconds = result["cpu_seconds"]

    options = options_of(kernel, slug, config, target, archs)
    remember = kernel.later(subject, options)
    outputs = files_in(folder, files.names)
    stage = Stage("LOWER", subject, where, options, lower, outputs, kernel.definition_files, remember=remember)
    stage.archs = archs
    stage.here = not kernel.definition.shared
    stage.keeps = folder / IR
    return stage


def arch_of(target: str, archs: tuple[str, ...]) -> str:
    """The arch that TVM generates code for."""
    return archs[0] if target == "llvm" else lowering_arch(archs)


def subject_of(kernel: KernelContext, slug: str, target: str, archs: tuple[str, ...]) -> str:
    """What a lowering works on."""
    return f"{kernel.name}/{slug} {own_arch(kernel, target, archs) or target}"


def folder_of(kernel: KernelContext, slug: str, target: str, archs: tuple[str, ...]) -> Path:
    """The folder of a lowering's files."""
    return kernel.folder / slug / target / own_arch(kernel, target, archs)


def own_arch(kernel: KernelContext, target: str, archs: tuple[str, ...]) -> str:
    """The arch that a lowering is for, if others have one of their own; empty, if it is for all of the target."""
    return arch_of(target, archs) if target == "llvm" or kernel.record.per_arch else ""


def request_of(
    kernel: KernelContext,
    slug: str,
    config: Mapping[str, Any],
    target: str,
    archs: tuple[str, ...],
    made: Path,
    ir: str = "",
) -> LowerRequest:
    """What a worker is asked for.

    Arguments:
        made: the folder that receives the files.
        ir: that of the IR after each pass, if that is asked for.
    """
    record, run, arch = kernel.record, kernel.run, arch_of(target, archs)
    images = ",".join(kernel.front_end.files(target, archs).images)
    return LowerRequest(
        *(kernel.definition.file, record.name, slug, dict(config), target, arch, str(made), run.strict, images),
        kernel.lists(slug),
        record.pass_configs,
        ir,
        kernel.python,
    )


def options_of(
    kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]
) -> dict[str, Any]:
    """What decides, besides the sources, what a lowering makes."""
    record, images = kernel.record, kernel.front_end.files(target, archs).images
    options: dict[str, Any] = {
        "kernel": record.name,
        "slug": slug,
        "config": dict(config),
        "outputs": list(record.outputs),
        "target": target,
        "arch": arch_of(target, archs),
        "tvm": kernel.tools.lowerer.identity,
        "definition": kernel.definition_identity,
    } | ({"strict": True} if kernel.run.strict else {})
    options |= {"archs": list(images)} if images else {}
    options |= {"pass_configs": dict(record.pass_configs)} if record.pass_configs else {}
    options |= {name: tool["identity"] for name, tool in kernel.own_tools.items()}
    if kernel.definition.recorded and (same := _alike(kernel, slug)):
        options["alike"] = same  # the symbol depends on them, and recorded configs are not among the contents
    return options


def _alike(kernel: KernelContext, slug: str) -> list[str]:
    """The other variants that the definition lists and whose slugs are the same identifier in C."""
    listed = {other for found in kernel.definition.kernels if found.name == kernel.name for other in found.slugs}
    return alike(slug, sorted(listed - {slug}))


def write_anew(made: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy files that a worker has made, so that they get the permissions of the build and not those of the worker.

    Arguments:
        made: where they are; what is missing there, or is no regular file, is left out.
        folder: where they are written to.
    """
    for name in names:
        path = made / name
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)  # a umask may have taken even the right to read
            (folder / name).write_bytes(path.read_bytes())
