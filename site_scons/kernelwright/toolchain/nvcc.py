"""Finds and probes nvcc."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.arch import with_suffixes
from ..core.errors import ToolchainError
from ..core.files import file_stamp
from ..core.request import ASIDE
from .ask import WHERE, answer, content_digest, identity, run_tool
from .cuda import HEADERS, RELEASE, first_program, in_wheels, release_of_headers, version_of
from .host_compiler import HostCompiler

INSTALL_CUDA = "pip install 'kernelwright[cuda]', or set nvcc to another compiler, or have targets = llvm, without CUDA"


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler that works.

    Arguments:
        path: the executable.
        version: such as ``13.0.88``.
        identity: digest of everything that decides its output.
        archs: names that ``-arch`` takes and that we build for: ``sm_90a``, ``compute_80``, ...
    """

    path: str = field(metadata=ASIDE)
    version: str
    identity: str
    archs: tuple[str, ...] = field(metadata=ASIDE)

    name = "nvcc"


def find_nvcc(setting: str, environment: Mapping[str, str], release: str = "") -> str:
    """Path of nvcc: the setting, else the PyPI wheels', else CUDA_HOME's, else the one on PATH.

    Arguments:
        release: the CUDA release that it has to be of, such as ``13.0``; also looked for in ``/usr/local/cuda-13.0``.
            Empty: any.

    Raises:
        ToolchainError: there is none; it says how to get one.
    """
    if setting:
        path = shutil.which(setting, path=environment.get("PATH"))
        if path is None:
            raise ToolchainError(f"nvcc = {setting!r} is not an executable file", WHERE, INSTALL_CUDA)
        return str(Path(path).absolute())
    home = environment.get("CUDA_HOME", "")
    candidates = [*in_wheels("bin/nvcc"), *([Path(home, "bin", "nvcc")] if home else [])]
    if release:
        return _of_release(release, candidates, environment)
    program = first_program(candidates, "nvcc", environment)
    if program is None:
        raise ToolchainError("no nvcc: none in the Python environment, CUDA_HOME or PATH", WHERE, INSTALL_CUDA)
    return program


def _of_release(release: str, candidates: Sequence[Path], environment: Mapping[str, str]) -> str:
    """The first nvcc of a CUDA release.

    Raises:
        ToolchainError: there is none.
    """
    on_path = shutil.which("nvcc", path=environment.get("PATH"))
    places = [*candidates, Path(f"/usr/local/cuda-{release}/bin/nvcc"), *([Path(on_path)] if on_path else [])]
    found = {str(path): _release(path) for path in places if os.access(path, os.X_OK)}
    path = next((path for path, own in found.items() if own == release), None)
    if path is None:
        has = f" (there is that of {', '.join(dict.fromkeys(found.values()))})" if found else ""
        place = f"the Python environment, CUDA_HOME, /usr/local/cuda-{release} or PATH"
        remedy = f"install the toolkit of CUDA {release}"
        if release.startswith("12."):
            remedy += f', as PyPI has no nvcc of CUDA 12; or write cuda = ["nvrtc-{release}", ...], which PyPI has'
        raise ToolchainError(f"no nvcc of CUDA {release}{has}: none in {place}", WHERE, remedy)
    return path


def _release(nvcc: Path) -> str:
    """The CUDA release of an nvcc, by the headers beside it, or else by what it says."""
    top = nvcc.resolve().parent.parent
    places = (top / folder for folder in ("include", "targets/x86_64-linux/include"))
    known = next(filter(None, map(release_of_headers, places)), "")
    return known or ".".join(version_of(str(nvcc), INSTALL_CUDA).split(".")[:2])


def fatbinary_beside(nvcc: str) -> str | None:
    """Path of the ``fatbinary`` that belongs to an nvcc."""
    return next((str(part) for part in nvcc_parts(nvcc) if part.name == "fatbinary"), None)


def nvcc_parts(nvcc: str) -> list[Path]:
    """The files that decide what nvcc makes: those beside it or, for a wrapper script, beside the nvcc that it runs."""
    return [Path(nvcc), *(_parts_below(Path(nvcc).resolve().parent.parent) or _parts_below(_top_of_wrapped(nvcc)))]


def _parts_below(top: Path) -> list[Path]:
    include = next(
        (top / d for d in ("include", "targets/x86_64-linux/include") if (top / d).is_dir()), top / "include"
    )
    # The profile has nvcc's own include folders and flags for its parts.
    names = ["bin/nvcc.profile", "bin/ptxas", "bin/cudafe++", "bin/fatbinary"]
    names += ["nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"]
    return [path for path in (*(top / n for n in names), *(include / h for h in HEADERS)) if path.is_file()]


def _top_of_wrapped(nvcc: str) -> Path:
    """The CUDA folder that ``nvcc --dryrun`` prints as TOP; a folder that does not exist if it prints none."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "probe.cu").touch()
        try:
            done = run_tool([nvcc, "--dryrun", "-cubin", "probe.cu"], "", "", Path(folder))
        except ToolchainError:
            return Path("/nonexistent")
    match = re.search(r"^#\$ TOP=(.+)$", done.stderr + done.stdout, re.M)
    return Path(match[1]).resolve() if match else Path("/nonexistent")


def probe_nvcc(path: str, parts: Sequence[Path], host_compiler: HostCompiler) -> Nvcc:
    """Identify nvcc.

    Raises:
        ToolchainError: it does not answer, a part of it is missing, or its parts have different versions.
    """
    version = version_of(path, INSTALL_CUDA)
    _check_parts(path, version, parts)
    archs = [name for kind in ("code", "arch") for name in answer([path, f"--list-gpu-{kind}"], INSTALL_CUDA).split()]
    digests = ((part.name, content_digest(str(part), file_stamp(part))) for part in parts)
    contents = (name.encode() + b"\0" + bytes.fromhex(digest) for name, digest in digests)
    return Nvcc(path, version, identity([version, host_compiler.identity], contents), with_suffixes(archs))


def _check_parts(nvcc: str, version: str, parts: Sequence[Path]) -> None:
    """Raise a ToolchainError if ptxas or cicc are of another release than nvcc, or missing beside nvcc's own files."""
    packages = {"cicc": "nvidia-nvvm", "ptxas": "nvidia-cuda-nvcc"}
    release = ".".join(version.split(".")[:2])
    by_name = {part.name: part for part in parts}
    for name, package in packages.items():
        remedy = f"pip install '{package}=={release}.*', or {INSTALL_CUDA}"
        if name not in by_name:
            if "nvidia/cu" in nvcc:
                raise ToolchainError(f"nvcc {version} has no {name} beside it", WHERE, remedy, f"nvcc: {nvcc}")
            continue
        match = RELEASE.search(by_name[name].read_bytes())
        if match and match[1].decode() != release:
            raise ToolchainError(
                f"nvcc is of CUDA {release}, but {name} of CUDA {match[1].decode()}", WHERE, remedy, f"nvcc: {nvcc}"
            )
