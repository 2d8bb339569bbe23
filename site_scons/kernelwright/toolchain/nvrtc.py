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
from .cuda import HEADERS, RELEASE, in_wheels, release_of_headers

PROGRAM = Path(__file__).with_name("nvrtc_compile.py")
"""What runs NVRTC. It is not imported here: ctypes would be loaded by every build."""

INSTALL_NVRTC = "pip install 'kernelwright[nvrtc]', or set cuda_compiler to nvcc, or build without CUDA: TARGETS=llvm"

FIRST_RELEASE = (12, 8)
"""The first CUDA release with precompiled headers."""

BUILTINS = "libnvrtc-builtins.so."
"""The part that NVRTC loads when it compiles, with the release behind it."""

FIRST_CACHE = (12, 9)
"""The first CUDA release whose NVRTC keeps what it compiles; older ones do not know the option that says no."""

OF_CUDA_12 = ("cuda_nvrtc", ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"))
"""The folder of NVRTC and those of the headers among the wheels of CUDA 12, which have a folder for each part."""

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
        include: folder of the CUDA headers, of those with the API of the runtime if there are several.
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

    def options(self, include: str = "") -> list[str]:
        """The options of every run.

        Arguments:
            include: what stands for :attr:`include` in paths; empty: itself.
        """
        return own_options(self.version, self.include, include)


def find_nvrtc(environment: Mapping[str, str], release: str = "") -> Path:
    """Path of NVRTC: the PyPI wheel's, else CUDA_HOME's.

    Arguments:
        release: the CUDA release that it has to be of; empty: the newest one.

    Raises:
        ToolchainError: there is none.
    """
    found: list[tuple[str, Path]] = []
    for folder in library_folders(environment):
        # Besides the library there are variants of it (libnvrtc.alt.so.13) and links.
        libraries = [p for p in folder.glob("libnvrtc.so.*") if re.fullmatch(r"libnvrtc\.so\.[0-9]+", p.name)]
        if libraries:
            library = max(libraries, key=lambda path: int(path.suffix[1:]))
            own = [path.name.removeprefix(BUILTINS) for path in folder.glob(f"{BUILTINS}*")]
            found.append((release if release in own else max(own, default=""), library))
    for name, library in found:
        if not release or name == release:
            return library
    if release:
        has = f" (there is that of {', '.join(name for name, _ in found)})" if found else ""
        message = f"no NVRTC of CUDA {release}{has}: none in the Python environment or CUDA_HOME"
        raise ToolchainError(message, WHERE, f"{_install(release)}; or name another toolkit in cuda")
    raise ToolchainError("no NVRTC: none in the Python environment or CUDA_HOME", WHERE, INSTALL_NVRTC)


def _install(release: str) -> str:
    """How to get the NVRTC of a CUDA release, with its headers."""
    suffix = "-cu12" if release.startswith("12.") else ""
    names = ("nvrtc", "runtime", "cccl", "nvcc" if suffix else "crt")
    parts = " ".join(f"'nvidia-cuda-{name}{suffix}=={release}.*'" for name in names)
    extra = {"12.8": "nvrtc12", "13.0": "nvrtc"}.get(release)
    return f"pip install 'kernelwright[{extra}]'" if extra else f"pip install {parts}"


def library_folders(environment: Mapping[str, str]) -> list[Path]:
    """The folders where NVRTC is looked for, those of the newest CUDA first."""
    home = environment.get("CUDA_HOME")
    # CUDA 12 has a folder for each part.
    wheels = sorted(in_wheels("lib"), key=lambda path: path.parent.name[:4] == "cuda")
    return [*wheels, *([Path(home, "lib64"), Path(home, "targets/x86_64-linux/lib")] if home else [])]


def nvrtc_parts(library: Path) -> list[Path]:
    """The files that decide what NVRTC makes: the library, what it loads, and headers that tell the versions."""
    folders = [Path(folder) for folder in header_folders(str(include_beside(library)))]
    builtins = sorted(library.parent.glob(f"{BUILTINS}*"))
    headers = (next((f / name for f in folders if (f / name).is_file()), None) for name in HEADERS)
    return [library, *builtins, *dict.fromkeys(path for path in headers if path)]


def include_beside(library: Path) -> Path:
    """The folder of the CUDA headers that belong to a library; it may not exist."""
    top, (own, (runtime, *_)) = library.parent.parent, OF_CUDA_12
    return top.parent / runtime if top.name == own else top / "include"


def own_options(version: str, include: str, called: str = "") -> list[str]:
    """The options of every run of NVRTC: the folders of headers, and none of its own cache in the user's home folder.

    Arguments:
        include, called: as for :func:`header_folders`.
    """
    caches = tuple(map(int, version.split(".")[:2])) >= FIRST_CACHE
    return [*(["-no-cache"] if caches else []), *(f"-I{folder}" for folder in header_folders(include, called))]


def header_folders(include: str, called: str = "") -> list[str]:
    """The folders of CUDA's own headers, in the order in which nvcc looks for them.

    Arguments:
        include: as :func:`include_beside` has it.
        called: what stands for it; empty: itself.
    """
    name, (first, *others) = called or include, OF_CUDA_12[1]
    beside = [f"../../{folder}" for folder in others] if include.endswith(f"/{first}") else ["cccl"]
    return [name, *(f"{name}/{folder}" for folder in beside)]


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
    _compile_probe(library, release, archs[0])
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
    needed = {"cuda_fp16.h": "nvidia-cuda-runtime", "cuda/std/cstdint": "nvidia-cuda-cccl"}
    suffix = "-cu12" if release.startswith("12.") else ""
    folders = header_folders(str(include))
    for name, package in needed.items():
        if not any(Path(folder, name).is_file() for folder in folders):
            remedy = f"pip install '{package}{suffix}=={release}.*', or {INSTALL_NVRTC}"
            where = f"looked in {', '.join(folders)}"
            raise ToolchainError(f"NVRTC {release} has no {name} beside it", WHERE, remedy, where)
    found = release_of_headers(include) or release
    if found != release:
        remedy = f"pip install 'nvidia-cuda-runtime{suffix}=={release}.*', or {INSTALL_NVRTC}"
        message = f"NVRTC is of CUDA {release}, but the headers of CUDA {found}"
        raise ToolchainError(message, WHERE, remedy, str(include))


def _compile_probe(library: Path, release: str, arch: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cu")
        source.write_text(PROBE_SOURCE)
        own = [f"--library={library}", f"--output={folder}/probe.cubin"]
        options = [f"-arch={arch}", *own_options(release, str(include_beside(library)))]
        _run([*own, *options, str(source)], f"NVRTC does not compile a small kernel for {arch}")


def _full_version(library: Path, release: str) -> str:
    """The version with its last number, which only ptxas in the library tells."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        match = RELEASE.search(data)
        return match[2].decode() if match and match[1].decode() == release else release
