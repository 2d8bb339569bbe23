"""LOWER: a worker executes the definition and lowers one variant for one CPU arch, or for all CUDA archs together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.arch import lowering_arch
from ..lower.unit import alike
from ..processes.protocol import LowerRequest
from .context import KernelContext
from .stage import Stage, files_in


def make(kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]) -> Stage:
    """The stage that lowers a variant.

    Arguments:
        archs: one arch of the CPU, or all CUDA archs.
    """
    record, run = kernel.record, kernel.run
    arch = archs[0] if target == "llvm" else lowering_arch(archs)
    folder = kernel.folder / slug / target / (arch if target == "llvm" else "")
    files = kernel.front_end.files(target, archs)
    subject = f"{record.name}/{slug} {arch if target == 'llvm' else target}"
    where = kernel.where("lower", slug)

    def lower(scratch: Path) -> None:
        made = scratch / "made"
        made.mkdir()
        request = LowerRequest(
            *(kernel.definition.file, record.name, slug, dict(config), target, arch, str(made), run.strict),
            ",".join(files.images),
            kernel.lists(slug),
            record.pass_configs,
        )
        result = kernel.call(request, where)
        write_anew(made, scratch, files.names)
        remember(result["dependencies"])
        stage.measured.cpu_seconds = result["cpu_seconds"]

    options: dict[str, Any] = {
        "kernel": record.name,
        "slug": slug,
        "config": dict(config),
        "outputs": list(record.outputs),
        "target": target,
        "arch": arch,
        "tvm": kernel.tools.lowerer.identity,
        "definition": kernel.definition_identity,
    } | ({"strict": True} if run.strict else {})
    options |= {"archs": list(files.images)} if files.images else {}
    options |= {"pass_configs": dict(record.pass_configs)} if record.pass_configs else {}
    options |= {name: tool["identity"] for name, tool in kernel.own_tools.items()}
    if kernel.definition.recorded and (same := _alike(kernel, slug)):
        options["alike"] = same  # the symbol depends on them, and recorded configs are not among the contents
    remember = kernel.later(subject, options)
    outputs = files_in(folder, files.names)
    stage = Stage("LOWER", subject, where, options, lower, outputs, kernel.definition_files, remember=remember)
    stage.archs = archs
    return stage


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
