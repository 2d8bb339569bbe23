"""The kernel library of this repository, built and checked once in a test run."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.contract import BACKENDS
from support.project import ROOT, SCONSTRUCT, Project, Run

LIKE_OTHERS = ("cumsum", "gemm", "layer_norm", "rms_norm", "row_argmax", "row_sum", "swiglu", "top_k", "transpose")
"""Kernels whose arguments are of kinds that others have, too: an extension of each would take two seconds."""


def installed_backends() -> list[str]:
    """The backends for which there is everything here."""
    return [name for name, backend in BACKENDS.items() if importlib.util.find_spec(backend.needs) is not None]


def build_kernel_library(folder: Path) -> Run:
    """Build the library for the CPU and all backends in a folder, and check it; the package is ``build/demo``.

    It is built in strict mode: no definition or reference of it reads what it does not declare.
    """
    project = Project(folder)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    others = [name for name in installed_backends() if name != "cython"]
    for name in LIKE_OTHERS:
        project.replace(f"kernels/{name}.py", "@kernel(", f"@kernel(backends={others}, ")
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    return project.built("-j2", "--strict", "build/demo", "check", f"BACKENDS={','.join(installed_backends())}")


def covering(configs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of some configs, and each further one that has a value of a parameter which none before it has."""
    seen: set[tuple[str, Any]] = set()
    found: list[Mapping[str, Any]] = []
    for config in configs:
        if not found or not seen.issuperset(config.items()):
            found.append(config)
        seen.update(config.items())
    return found
