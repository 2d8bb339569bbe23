"""The lowerings of a built project, as requests that a worker takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import BenchmarkError
from .projects import Project


@dataclass(frozen=True)
class Lowering:
    """One lowering: what a worker is asked for, without the folder for its files, and the files of the build."""

    request: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """Where the build has put the files."""
        return self.files[0].parent


LOWERED = {"llvm": ("module.tir", "signature.json", "host.o"), "cuda": ("module.tir", "signature.json", "host.c")}
"""Files of a lowering, beside device.cu."""


def lowerings_of(project: Project) -> list[Lowering]:
    """All lowerings of a project, found in its build folder."""
    signatures = sorted(project.kernels.rglob("signature.json"))
    definitions = {name: file for file in project.folder.glob("kernels/[!_]*.py") for name in _kernels(file)}
    return [_lowering(project, signature, definitions) for signature in signatures]


def write_requests(path: Path, lowerings: Iterable[tuple[Lowering, Path | None]]) -> None:
    """Write lowerings as JSON lines, each with the folder for its files, or None for a folder that is thrown away."""
    lines = (json.dumps({**lowering.request, "out": out and str(out)}) for lowering, out in lowerings)
    path.write_text("".join(f"{line}\n" for line in lines))


def _kernels(file: Path) -> list[str]:
    """Names of the functions in a definition file, those of kernels among them."""
    return re.findall(r"^def (\w+)\(", file.read_text(), re.M)


def _lowering(project: Project, signature: Path, definitions: dict[str, Path]) -> Lowering:
    """The lowering that made a signature.json: <kernel>/<slug>/cuda/..., or <kernel>/<slug>/llvm/<arch>/..."""
    kernel, slug, target, *_ = signature.relative_to(project.kernels).parts
    if kernel not in definitions:
        raise BenchmarkError(f"no definition file of {project.folder} has a function {kernel}")
    said = json.loads(signature.read_text())
    request = {
        "file": definitions[kernel].relative_to(project.folder).as_posix(),
        "kernel": kernel,
        "slug": slug,
        "symbol": said["entry"],
        "config": said["config"],
        "target": target,
        "arch": said["arch"],
    }
    names = ["device.cu"] if target == "cuda" else []
    return Lowering(request, tuple(signature.parent / name for name in (*LOWERED[target], *names)))
