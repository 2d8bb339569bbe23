"""What the tools of CUDA have in common: where NVIDIA's wheels are, headers, programs and their versions."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.errors import ToolchainError
from .ask import WHERE, answer

RELEASE = re.compile(rb"Cuda compilation tools, release ([0-9.]+), V([0-9.]+)")

HEADERS = (
    *("cuda_runtime_api.h", "cuda_fp16.hpp", "cuda_bf16.hpp", "cuda_fp8.hpp", "crt/mma.h"),
    *("cccl/cuda/std/__cccl/version.h", "cuda/std/__cccl/version.h"),
)
"""Headers whose content tells the versions of nvidia-cuda-runtime, of the half-precision types, of nvidia-cuda-crt, and
of nvidia-cuda-cccl, which has a folder of its own since CUDA 13."""


CUDART_VERSION = re.compile(r"^#define CUDART_VERSION\s+([0-9]+)", re.M)


def release_of_headers(include: Path) -> str:
    """The CUDA release that some headers are of, such as ``12.8``; empty: they do not tell, or are not there."""
    try:
        match = CUDART_VERSION.search((include / "cuda_runtime_api.h").read_text(errors="replace"))
    except OSError:
        return ""
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else ""


def in_wheels(name: str) -> list[Path]:
    """The files or folders of that name in the PyPI wheels of CUDA's parts, those of the newest CUDA first.

    ``cuda.pathfinder`` finds some of them too, and takes 25 ms to import, a tenth of a null build.
    """
    return _below(sys.path, name) or _below(_site_folders(), name)


def _below(folders: Iterable[str], name: str) -> list[Path]:
    return sorted(
        (path for folder in {*folders} if folder for path in Path(folder).glob(f"nvidia/cu*/{name}")), reverse=True
    )


def _site_folders() -> list[str]:
    """Where Python installs, which is not in the path of a build that pip isolates."""
    # Imported here, because it takes 2 ms and sys.path nearly always has what is looked for.
    import sysconfig

    return [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]


def first_program(candidates: Iterable[Path], name: str, environment: Mapping[str, str]) -> str | None:
    """The first of some files that can be executed, or else the program of that name on PATH; None: there is none."""
    programs = (str(path) for path in candidates if os.access(path, os.X_OK))
    return next(programs, None) or shutil.which(name, path=environment.get("PATH"))


def version_of(program: str, remedy: str) -> str:
    """The version that a program of CUDA prints, such as ``13.0.88``.

    Arguments:
        remedy: how to get another one.

    Raises:
        ToolchainError: it does not answer, or says none.
    """
    text = answer([program, "--version"], remedy)
    match = RELEASE.search(text.encode())
    if match is None:
        raise ToolchainError(f"{program} does not say which CUDA release it is of", WHERE, remedy, text)
    return match[2].decode()


def cuda_version(version: str) -> int:
    """A version such as ``13.0.88`` as CUDA counts them: 1000 * major + 10 * minor."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)
