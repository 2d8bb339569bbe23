"""Finds and probes nvdisasm, NVIDIA's disassembler of cubins.

PyPI has it from CUDA 13.2 on. It reads the cubins of older compilers as well, so it need not be of nvcc's release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.files import sha256_of
from ..core.request import ASIDE
from .ask import WHERE, identity
from .cuda import first_program, in_wheels, version_of
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
    program = first_program(_candidates(nvcc, environment.get("CUDA_HOME", "")), "nvdisasm", environment)
    if program is None:
        message = "no nvdisasm: none in the Python environment, beside nvcc, in CUDA_HOME or in PATH"
        raise ToolchainError(message, WHERE, INSTALL_NVDISASM)
    return program


def _candidates(nvcc: str, home: str) -> Iterator[Path]:
    yield from in_wheels("bin/nvdisasm")
    # A wrapper script is in another folder than the ptxas that it runs.
    for part in nvcc_parts(nvcc) if nvcc else ():
        if part.name in (Path(nvcc).name, "ptxas"):
            yield part.with_name("nvdisasm")
    if home:
        yield Path(home, "bin", "nvdisasm")


def probe_nvdisasm(path: str) -> Nvdisasm:
    """Identify nvdisasm.

    Raises:
        ToolchainError: it does not answer.
    """
    version = version_of(path, INSTALL_NVDISASM)
    return Nvdisasm(path, version, identity([version, sha256_of(Path(path))]))
