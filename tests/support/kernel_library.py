"""The kernel library of this repository: a copy with few configs, and some of the configs of a kernel."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.contract import BACKENDS
from support.project import ROOT, SCONSTRUCT, Project

FEWER = {
    "decode_attention": "head_dim=[64, 128]",
    "gemm": "n=[1024, 4096]",
    "gemv_int8": "group=[64, 128]",
    "rms_norm": "hidden=[4096, 8192]",
    "softmax": "columns=[1000, 4096]",
    "swiglu": "hidden=[11008, 14336]",
}
"""Kernel -> values that go the same way through its code for the CPU, of which the copy has the first."""


def library_project(folder: Path, settings: str = "") -> Project:
    """A project with the library, for the CPU."""
    project = Project(folder)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for name, values in FEWER.items():
        project.replace(f"kernels/{name}.py", values, values.partition(",")[0] + "]")
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", f'[tool.kernelwright]\ntargets = ["llvm"]\n{settings}')
    return project


def installed_backends() -> list[str]:
    """The backends for which there is everything here."""
    return [name for name, backend in BACKENDS.items() if importlib.util.find_spec(backend.needs) is not None]


def covering(configs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of some configs, and few others: each value of each parameter is in one of them."""
    left = [*configs]
    missing = {value for config in left for value in config.items()}
    found = left[:1]
    while missing := missing - set(found[-1].items()) if found else set():
        found.append(max(left, key=lambda config: len(missing & config.items())))
    return found
