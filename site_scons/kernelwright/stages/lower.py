"""LOWER: a worker executes the definition and lowers one variant for one CPU arch, or for all CUDA archs together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.arch import image_file, is_ptx, lowering_arch
from ..processes.protocol import LowerRequest
from .context import KernelContext
from .stage import Stage


def make(kernel: KernelContext, slug: str, config: Mapping[str, Any], target: str, archs: tuple[str, ...]) -> Stage:
    """The stage that lowers a variant.

    Arguments:
        archs: one arch of the CPU, or all CUDA archs.
    """
    record, run = kernel.record, kernel.run
    arch = archs[0] if target == "llvm" else lowering_arch(archs)
    folder = kernel.folder / slug / target / (arch if target == "llvm" else "")
    names, own_archs = _outputs(kernel, target, archs)
    subject = f"{record.name}/{slug} {arch if target == 'llvm' else target}"
    where = kernel.where("lower", slug)

    def lower(scratch: Path) -> None:
        made = scratch / "made"
        made.mkdir()
        request = LowerRequest(
            *(kernel.definition.file, record.name, slug, dict(config), target, arch, str(made), run.strict),
            ",".join(own_archs),
        )
        result = kernel.call(request, where)
        write_anew(made, scratch, names)
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
    if own_archs:
        options |= {"archs": list(own_archs), "cutedsl": kernel.tools.cutedsl.identity}
    remember = kernel.later(subject, options)
    outputs = kernel.files(folder, names)
    stage = Stage("LOWER", subject, where, options, lower, outputs, kernel.definition_files, remember=remember)
    stage.archs = archs
    return stage


def _outputs(kernel: KernelContext, target: str, archs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a lowering makes, and the archs that the front end itself makes device code for."""
    if target == "llvm":
        return ("module.tir", "signature.json", "host.o"), ()
    if kernel.record.frontend != "cutedsl":
        return ("module.tir", "signature.json", "host.c", "device.cu"), ()
    images = [image_file(arch) for arch in archs]
    usages = [f"{arch}.json" for arch in archs if not is_ptx(arch)]
    return ("module.mlir", "signature.json", "host.c", "host.o", *images, *usages), archs


def write_anew(made: Path, folder: Path, names: Iterable[str]) -> None:
    """Have files that a worker has made be files of the build: with its umask, whatever that of the worker is by now.

    Arguments:
        made: where they are; what is missing there, or is no regular file, is left out.
        folder: where they are written to.
    """
    for name in names:
        path = made / name
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)  # a umask may have taken even the right to read
            (folder / name).write_bytes(path.read_bytes())
