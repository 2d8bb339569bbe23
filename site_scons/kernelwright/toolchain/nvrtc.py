"""Finds and probes NVRTC, NVIDIA's CUDA compiler that is a library, with the CUDA headers that it compiles with."""

from __future__ import annotations

import json
import mmap
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.arch import CudaArch, with_suffixes
from ..core.errors import ToolchainError
from ..core.files import sha256_of
from ..core.request import ASIDE
from .ask import WHERE, failure, identity, run_tool
from .cuda import HEADERS, RELEASE, in_wheels

PROGRAM = Path(__file__).with_name("nvrtc_compile.py")
"""What runs NVRTC. It is not imported here: ctypes would be loaded by every build."""

INSTALL_NVRTC = "pip install 'kernelwright[nvrtc]', or set cuda_compiler to nvcc, or build without CUDA: TARGETS=llvm"

FIRST_RELEASE = (12, 8)
"""The first CUDA release with precompiled headers."""

CUDART_VERSION = re.compile(r"^#define CUDART_VERSION\s+([0-9]+)", re.M)

PROBE_SOURCE = """\
#include <cuda/std/cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void probe(__half *x) { x[threadIdx.x] = __float2half(1.0f); }
"""


@dataclass(frozen=True)
class Nvrtc:
    """An NVRTC that works.

    Arguments:
        library: path of ``libnvrtc.so.*``.
        include: folder of the CUDA headers.
        version: such as ``13.0.88``.
        identity: digest of everything that decides its output.
        archs: names that ``-arch`` takes and that we build for: ``sm_90a``, ``compute_80``, ...
    """

    library: str = field(metadata=ASIDE)
    include: str = field(metadata=ASIDE)
    version: str
    identity: str
    archs: tuple[str, ...] = field(metadata=ASIDE)

    name = "NVRTC"


def find_nvrtc(environment: Mapping[str, str]) -> Path:
    """Path of NVRTC: the PyPI wheel's, else CUDA_HOME's.

    Raises:
        ToolchainError: there is none.
    """
    for folder in library_folders(environment):
        # Besides the library there are variants of it (libnvrtc.alt.so.13) and links.
        libraries = [p for p in folder.glob("libnvrtc.so.*") if re.fullmatch(r"libnvrtc\.so\.[0-9]+", p.name)]
        if libraries:
            return max(libraries, key=lambda path: int(path.suffix[1:]))
    raise ToolchainError("no NVRTC: none in the Python environment or CUDA_HOME", WHERE, INSTALL_NVRTC)


def library_folders(environment: Mapping[str, str]) -> list[Path]:
    """The folders where NVRTC is looked for."""
    home = environment.get("CUDA_HOME")
    return [*in_wheels("lib"), *([Path(home, "lib64"), Path(home, "targets/x86_64-linux/lib")] if home else [])]


def nvrtc_parts(library: Path) -> list[Path]:
    """The files that decide what NVRTC makes: the library, what it loads, and headers that tell the versions."""
    include = include_beside(library)
    builtins = sorted(library.parent.glob("libnvrtc-builtins.so.*"))
    return [library, *builtins, *(include / name for name in HEADERS if (include / name).is_file())]


def include_beside(library: Path) -> Path:
    """The folder of the CUDA headers that belong to a library; it may not exist."""
    return library.parent.parent / "include"


def include_flags(include: str) -> list[str]:
    """The flags for CUDA's own headers, in the order in which nvcc looks for them."""
    return [f"-I{include}", f"-I{include}/cccl"]


def probe_nvrtc(library: Path, parts: Sequence[Path]) -> Nvrtc:
    """Identify NVRTC, and compile a small kernel with it.

    Raises:
        ToolchainError: it cannot be used, or its parts and the headers are of different releases.
    """
    answer = json.loads(_run([f"--library={library}", "--probe"], "NVRTC cannot be used"))
    release, include = str(answer["release"]), include_beside(library)
    if tuple(map(int, release.split("."))) < FIRST_RELEASE:
        needed = ".".join(map(str, FIRST_RELEASE))
        raise ToolchainError(f"NVRTC is of CUDA {release}, and {needed} or newer is needed", WHERE, INSTALL_NVRTC)
    _check_builtins(library, release)
    _check_headers(include, release)
    archs = with_suffixes(str(CudaArch(n, is_ptx=virtual)) for virtual in (False, True) for n in answer["archs"])
    _compile_probe(library, archs[0])
    version = _full_version(library, release)
    contents = (part.name.encode() + b"\0" + sha256_of(part).encode() for part in parts)
    return Nvrtc(str(library), str(include), version, identity([version], contents), archs)


def _run(arguments: Sequence[str], problem: str) -> str:
    """What the compiler process prints; raises a ToolchainError that begins with ``problem`` if it fails."""
    command = [*compiler_process(), *arguments]
    done = run_tool(command, problem, INSTALL_NVRTC)
    if done.returncode != 0:
        raise failure(problem, f"all CUDA packages must be of one release: {INSTALL_NVRTC}", command, done)
    return done.stdout


def compiler_process() -> list[str]:
    """The command that runs NVRTC, without its arguments."""
    return [sys.executable, "-I", "-S", "-B", str(PROGRAM)]


def _check_builtins(library: Path, release: str) -> None:
    """Raise a ToolchainError if the part that NVRTC loads when it compiles is missing, or of another release."""
    names = [path.name for path in library.parent.glob("libnvrtc-builtins.so.*")]
    if f"libnvrtc-builtins.so.{release}" not in names:
        beside = f"only {', '.join(sorted(names))}" if names else "no libnvrtc-builtins"
        remedy = f"pip install --force-reinstall 'nvidia-cuda-nvrtc=={release}.*', or {INSTALL_NVRTC}"
        raise ToolchainError(f"NVRTC is of CUDA {release}, and has {beside} beside it", WHERE, remedy, str(library))


def _check_headers(include: Path, release: str) -> None:
    """Raise a ToolchainError if CUDA's headers are missing, or of another release than NVRTC."""
    needed = {"cuda_fp16.h": "nvidia-cuda-runtime", "cccl/cuda/std/cstdint": "nvidia-cuda-cccl"}
    for name, package in needed.items():
        if not (include / name).is_file():
            remedy = f"pip install '{package}=={release}.*', or {INSTALL_NVRTC}"
            raise ToolchainError(f"NVRTC {release} has no {name} beside it", WHERE, remedy, f"looked in {include}")
    match = CUDART_VERSION.search((include / "cuda_runtime_api.h").read_text(errors="replace"))
    release_of_headers = f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else release
    if release_of_headers != release:
        remedy = f"pip install 'nvidia-cuda-runtime=={release}.*', or {INSTALL_NVRTC}"
        raise ToolchainError(
            f"NVRTC is of CUDA {release}, but the headers of CUDA {release_of_headers}", WHERE, remedy, str(include)
        )


def _compile_probe(library: Path, arch: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cu")
        source.write_text(PROBE_SOURCE)
        own = [f"--library={library}", f"--output={folder}/probe.cubin"]
        options = [f"-arch={arch}", "-no-cache", *include_flags(str(include_beside(library)))]
        _run([*own, *options, str(source)], f"NVRTC does not compile a small kernel for {arch}")


def _full_version(library: Path, release: str) -> str:
    """The version with its last number, which only ptxas in the library tells."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        match = RELEASE.search(data)
        return match[2].decode() if match and match[1].decode() == release else release
