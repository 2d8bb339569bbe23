"""Finds and probes nvdisasm, NVIDIA's disassembler of cubins.

PyPI has it from CUDA 13.2 on. It reads the cubins of older compilers as well, so it need not be of nvcc's release.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.request import ASIDE
from .ask import WHERE, answer, identity
from .cuda import RELEASE, in_wheels
from .nvcc import nvcc_parts

INSTALL_NVDISASM = "pip install 'kernelwright[sass]', or put the nvdisasm of a CUDA toolkit on PATH"


@dataclass(frozen=True)
class Nvdisasm:
    """A disassembler: its path, its version such as ``13.2.78``, and a digest of what decides its output."""

    path: str = field(metadata=ASIDE)
    version: str
    identity: str


def find_nvdisasm(nvcc: str, environment: Mapping[str, str]) -> str:
    """Path of nvdisasm: the PyPI wheel's, else the one beside nvcc, else CUDA_HOME's, else the one on PATH.

    Arguments:
        nvcc: path of the nvcc of the build; empty: it uses none.

    Raises:
        ToolchainError: there is none; it says how to get one.
    """
    home = environment.get("CUDA_HOME", "")
    for candidate in in_wheels("bin/nvdisasm"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    for folder in [*(_programs_of(nvcc) if nvcc else []), *([Path(home, "bin")] if home else [])]:
        if os.access(folder / "nvdisasm", os.X_OK):
            return str(folder / "nvdisasm")
    found = shutil.which("nvdisasm", path=environment.get("PATH"))
    if found is None:
        message = "no nvdisasm: none in the Python environment, beside nvcc, in CUDA_HOME or in PATH"
        raise ToolchainError(message, WHERE, INSTALL_NVDISASM)
    return found


def _programs_of(nvcc: str) -> list[Path]:
    """The folder of nvcc, and that of the ptxas that it runs, which is another one if nvcc is a wrapper script."""
    return list(dict.fromkeys(part.parent for part in nvcc_parts(nvcc) if part.name in (Path(nvcc).name, "ptxas")))


def probe_nvdisasm(path: str) -> Nvdisasm:
    """Ask nvdisasm who it is.

    Raises:
        ToolchainError: it does not answer.
    """
    text = answer([path, "--version"], INSTALL_NVDISASM)
    match = RELEASE.search(text.encode())
    if match is None:
        raise ToolchainError(f"{path} does not say which CUDA release it is of", WHERE, INSTALL_NVDISASM, text)
    content = hashlib.sha256(Path(path).resolve().read_bytes()).hexdigest()
    version = match[2].decode()
    return Nvdisasm(path, version, identity([version, content]))
