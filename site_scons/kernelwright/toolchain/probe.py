"""Finds and probes nvcc, NVRTC, the host compiler and TVM, and says who they are.

An identity is made from versions and contents, never from paths or times, so that two machines with the same tools
agree. Probing costs a second, so its result is kept and keyed by the size, time and inode of each binary.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.arch import is_ptx, with_suffixes
from ..core.errors import ToolchainError, Where
from ..core.files import canonical_json
from ..core.records import Record, decoded
from ..core.sealed import read_sealed, write_sealed
from ..processes.environment import require_plain_path, tool_environment

if TYPE_CHECKING:
    from .nvrtc import Nvrtc

PROBE_REVISION = 3
"""Raise when a probe reads something else, so that kept results are not used."""

SCHEMA = "toolchain 2"
"""Schema of the sealed file of kept results."""

PROBED = {
    "nvcc": ("version", "identity"),
    "nvrtc": ("version", "identity"),
    "cc": ("version", "identity"),
    "tvm": ("tvm", "tvm_ffi", "identity"),
    "cutedsl": ("version", "identity"),
}
"""Kind of a probe -> the texts in its result; those of CUDA compilers have their archs besides."""

CUDA_COMPILERS = ("nvcc", "nvrtc")

RELEASE = re.compile(rb"Cuda compilation tools, release ([0-9.]+), V([0-9.]+)")
INSTALL_CUDA = (
    "pip install 'kernelwright[cuda]', or set nvcc to another compiler, or build without CUDA: scons TARGETS=llvm"
)
HEADERS = ("cuda_runtime_api.h", "cuda_fp16.hpp", "cuda_bf16.hpp", "cuda_fp8.hpp")
"""Headers whose content tells the versions of nvidia-cuda-runtime and of the half-precision types."""

PROBE_SOURCE = """\
#include <cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void probe(__half *x) { x[threadIdx.x] = __float2half(1.0f); }
"""


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler that works.

    Arguments:
        path: the executable.
        version: such as ``13.0.88``.
        identity: digest of everything that decides its output.
        archs: names that ``-arch`` takes and that we build for: ``sm_90a``, ``compute_80``, ...
    """

    path: str
    version: str
    identity: str
    archs: tuple[str, ...]

    name = "nvcc"


@dataclass(frozen=True)
class HostCompiler:
    """A C compiler: its path, the first line of ``--version``, and a digest of what decides its output."""

    path: str
    version: str
    identity: str


@dataclass(frozen=True)
class Lowerer:
    """TVM and tvm-ffi as they are installed: versions, and a digest of the installed files' hashes."""

    tvm: str
    tvm_ffi: str
    identity: str


@dataclass(frozen=True)
class CuteDsl:
    """NVIDIA's CuTe DSL as it is installed: its version, and a digest of the installed files' hashes; or absent."""

    version: str
    identity: str


class Toolchain:
    """The tools of one build, probed when first asked for.

    Arguments:
        cache: file that keeps the results of probes.
        environment: variables that a search may look at (``CUDA_HOME``, ``PATH``).

    Attributes:
        probed: the tools of which nothing was known, with the seconds of processor time that probing took.
    """

    def __init__(self, cache: Path, environment: dict[str, str]) -> None:
        self._cache = cache
        self._environment = environment
        self._kept: dict[str, Any] = read_sealed(cache, SCHEMA, _kept) or {}
        self.probed: dict[str, float] = {}

    def nvcc(self, setting: str, host_compiler: HostCompiler) -> Nvcc:
        """The CUDA compiler: the setting, else the PyPI wheels', else CUDA_HOME's, else the one on PATH.

        Raises:
            ToolchainError: there is none, a part of it is missing, its parts have different versions, or it does not
                compile a small kernel.
        """
        path = find_nvcc(setting, self._environment)
        for part in (path, host_compiler.path):
            require_plain_path(part)
        parts = [Path(path), *_nvcc_parts(Path(path))]
        values = self._probe(
            "nvcc", path, [*parts, Path(host_compiler.path)], lambda: _probe_nvcc(path, parts, host_compiler)
        )
        return Nvcc(path, values["version"], values["identity"], tuple(values["archs"]))

    def nvrtc(self) -> Nvrtc:
        """The CUDA compiler that is a library: the PyPI wheel's, else CUDA_HOME's.

        Raises:
            ToolchainError: as :meth:`nvcc`.
        """
        # Imported here, because few builds use it.
        from .nvrtc import Nvrtc, find_nvrtc, include_beside, nvrtc_parts, probe_nvrtc

        library = find_nvrtc(self._environment)
        parts = nvrtc_parts(library)
        values = self._probe("nvrtc", str(library), parts, lambda: probe_nvrtc(library, parts))
        include = str(include_beside(library))
        return Nvrtc(str(library), include, values["version"], values["identity"], tuple(values["archs"]))

    def host_compiler(self, setting: str) -> HostCompiler:
        """The C compiler: the setting, else cc, gcc or clang on PATH.

        Raises:
            ToolchainError: there is none, or it does not answer.
        """
        path = find_host_compiler(setting, self._environment)
        values = self._probe("cc", path, [Path(path)], lambda: _probe_host_compiler(path))
        return HostCompiler(path, values["version"], values["identity"])

    def lowerer(self) -> Lowerer:
        """TVM and tvm-ffi, found through the records of their distributions without importing them.

        Raises:
            ToolchainError: one of them is not installed.
        """
        records = [find_record("apache_tvm"), find_record("apache_tvm_ffi")]
        values = self._probe("tvm", "", records, lambda: _probe_lowerer(records))
        return Lowerer(values["tvm"], values["tvm_ffi"], values["identity"])

    def cutedsl(self) -> CuteDsl:
        """CuTe DSL, found through the records of its distributions; "absent" where it is not installed."""
        records = _cutedsl_records()
        values = self._probe("cutedsl", "", records, lambda: _probe_cutedsl(records))
        return CuteDsl(values["version"], values["identity"])

    def _probe(
        self, tool: str, path: str, files: Iterable[Path], probe: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        name = f"{tool} {path}".rstrip()
        stamp = canonical_json([PROBE_REVISION, [_stamp(file) for file in files]])
        kept = self._kept.get(name, {})
        if kept.get("stamp") == stamp:
            return dict(kept["values"])
        before = _children_cpu_seconds()
        values = decoded(canonical_json(probe()))
        self.probed[tool] = _children_cpu_seconds() - before
        self._kept[name] = {"stamp": stamp, "values": values}
        write_sealed(self._cache, SCHEMA, self._kept)
        return dict(values)


def _children_cpu_seconds() -> float:
    """Processor time of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def find_nvcc(setting: str, environment: dict[str, str]) -> str:
    """Path of nvcc; raises ToolchainError when there is none, saying how to get one."""
    where = Where(stage="settings")
    if setting:
        path = shutil.which(setting, path=environment.get("PATH"))
        if path is None:
            raise ToolchainError(f"nvcc = {setting!r} is not an executable file", where, INSTALL_CUDA)
        return str(Path(path).absolute())
    home = environment.get("CUDA_HOME", "")
    candidates = [*_wheel_nvccs(), *([Path(home, "bin", "nvcc")] if home else [])]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("nvcc", path=environment.get("PATH"))
    if found is None:
        raise ToolchainError("no nvcc: none in the Python environment, CUDA_HOME or PATH", where, INSTALL_CUDA)
    return found


def find_host_compiler(setting: str, environment: dict[str, str]) -> str:
    """Path of the C compiler; raises ToolchainError when there is none."""
    for name in [setting] if setting else ["cc", "gcc", "clang"]:
        path = shutil.which(name, path=environment.get("PATH"))
        if path is not None:
            return str(Path(path).absolute())
    wanted = f"host_compiler = {setting!r}" if setting else "a C compiler (cc, gcc or clang)"
    raise ToolchainError(
        f"{wanted} is not on PATH", Where(stage="settings"), "install gcc and g++, or set host_compiler"
    )


def find_record(distribution: str) -> Path:
    """The RECORD file of an installed distribution, which lists the sha256 of each of its files.

    ``importlib.metadata`` does the same and takes 30 ms to import, a third of a null build's start.
    """
    for folder in sys.path:
        for record in sorted(Path(folder or ".").glob(f"{distribution}-*.dist-info/RECORD")):
            return record
    name = distribution.replace("_", "-")
    raise ToolchainError(f"{name} is not installed", Where(stage="settings"), f"pip install {name}")


def _cutedsl_records() -> list[Path]:
    """The RECORD files of the distributions that CuTe DSL consists of; empty: it is not installed."""
    for folder in sys.path:
        # Every run of scons asks this, and a search takes a millisecond.
        if os.path.isdir(f"{folder or '.'}/nvidia_cutlass_dsl"):  # noqa: PTH112
            return sorted(Path(folder or ".").glob("nvidia_cutlass_dsl*-*.dist-info/RECORD"))
    return []


def _wheel_nvccs() -> list[Path]:
    site = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    return sorted((p for s in site if s for p in Path(s).glob("nvidia/cu*/bin/nvcc")), reverse=True)


def fatbinary_beside(nvcc: str) -> str | None:
    """Path of the ``fatbinary`` that belongs to an nvcc."""
    return next((str(part) for part in _nvcc_parts(Path(nvcc)) if part.name == "fatbinary"), None)


def _nvcc_parts(nvcc: Path) -> list[Path]:
    """The files that decide what nvcc makes: those beside it or, for a wrapper script, beside the nvcc that it runs."""
    return _parts_below(nvcc.resolve().parent.parent) or _parts_below(_top_of_wrapped(str(nvcc)))


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
            done = subprocess.run(
                [nvcc, "--dryrun", "-cubin", "probe.cu"],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                env=tool_environment(),
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return Path("/nonexistent")
    match = re.search(r"^#\$ TOP=(.+)$", done.stderr + done.stdout, re.M)
    return Path(match[1]).resolve() if match else Path("/nonexistent")


def _probe_nvcc(path: str, parts: list[Path], host_compiler: HostCompiler) -> dict[str, Any]:
    version = _release(_run([path, "--version"], path), path)
    _check_parts(path, version, parts)
    archs = _run([path, "--list-gpu-code"], path).split() + _run([path, "--list-gpu-arch"], path).split()
    _compile_probe(path, host_compiler, next(a for a in archs if not is_ptx(a)))
    digest = hashlib.sha256(canonical_json([PROBE_REVISION, version, host_compiler.identity]).encode())
    for part in parts:
        digest.update(part.name.encode() + b"\0" + hashlib.sha256(part.read_bytes()).digest())
    return {"version": version, "identity": digest.hexdigest(), "archs": with_suffixes(archs)}


def _check_parts(nvcc: str, version: str, parts: list[Path]) -> None:
    """Raise a ToolchainError if ptxas or cicc are of another release than nvcc, or missing beside nvcc's own files."""
    where = Where(stage="settings")
    packages = {"cicc": "nvidia-nvvm", "ptxas": "nvidia-cuda-nvcc"}
    release = ".".join(version.split(".")[:2])
    found = {part.name: part for part in parts}
    for name, package in packages.items():
        remedy = f"pip install '{package}=={release}.*', or {INSTALL_CUDA}"
        if name not in found:
            if "nvidia/cu" in nvcc:
                raise ToolchainError(f"nvcc {version} has no {name} beside it", where, remedy, f"nvcc: {nvcc}")
            continue
        match = RELEASE.search(found[name].read_bytes())
        if match and match[1].decode() != release:
            raise ToolchainError(
                f"nvcc is of CUDA {release}, but {name} of CUDA {match[1].decode()}", where, remedy, f"nvcc: {nvcc}"
            )


def _compile_probe(nvcc: str, host_compiler: HostCompiler, arch: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "probe.cu").write_text(PROBE_SOURCE)
        command = [nvcc, "-ccbin", host_compiler.path, "-cubin", f"-arch={arch}", "-o", "probe.cubin", "probe.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=tool_environment(), check=False)
        if done.returncode != 0:
            raise ToolchainError(
                f"nvcc does not compile a small kernel for {arch}",
                Where(stage="settings"),
                f"a C++ compiler (g++) must be installed, and all CUDA packages be of one release: {INSTALL_CUDA}",
                f"$ {' '.join(command)}\n{done.stdout}{done.stderr}",
            )


def _probe_host_compiler(path: str) -> dict[str, Any]:
    version = _run([path, "--version"], path).splitlines()[0]
    machine = _run([path, "-dumpmachine"], path).strip()
    content = hashlib.sha256(Path(path).resolve().read_bytes()).hexdigest()
    identity = hashlib.sha256(canonical_json([PROBE_REVISION, version, machine, content]).encode()).hexdigest()
    return {"version": version, "identity": identity}


def _probe_cutedsl(records: list[Path]) -> dict[str, Any]:
    versions = [re.sub(r".*/(.+)\.dist-info$", r"\1", record.parent.as_posix()) for record in records]
    digest = hashlib.sha256(canonical_json([PROBE_REVISION, sorted(versions)]).encode())
    for record in records:
        rows = [row for row in record.read_text().splitlines() if re.search(r"\.(so|py|a|h|bc)(\.\d+)*,", row)]
        digest.update("\n".join(sorted(row for row in rows if ".cpython-" not in row)).encode())
    version = next((v.rpartition("-")[2] for v in versions if v.startswith("nvidia_cutlass_dsl-")), "absent")
    return {"version": version, "identity": digest.hexdigest()}


def _probe_lowerer(records: list[Path]) -> dict[str, Any]:
    versions = [re.sub(r".*-(.+)\.dist-info$", r"\1", str(record.parent)) for record in records]
    digest = hashlib.sha256(canonical_json([PROBE_REVISION, versions]).encode())
    for record in records:
        # Only the hashes of shared libraries and sources. The rows of pip's own files (INSTALLER, *.pyc) differ between
        # installs, and those of extension modules between Python versions, which does not change what is lowered.
        rows = [row for row in record.read_text().splitlines() if re.search(r"\.(so|py|h)(\.\d+)*,", row)]
        rows = [row for row in rows if ".cpython-" not in row and ".abi3" not in row]
        digest.update("\n".join(sorted(rows)).encode())
    return {"tvm": versions[0], "tvm_ffi": versions[1], "identity": digest.hexdigest()}


def tvm_ffi_includes() -> tuple[Path, Path]:
    """The folders of tvm-ffi's headers and of DLPack's, which it brings along."""
    top = find_record("apache_tvm_ffi").parent.parent / "tvm_ffi"
    return top / "include", top / "3rdparty" / "dlpack" / "include"


def _run(command: list[str], tool: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=tool_environment(), timeout=60, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{tool} cannot be run: {error}", Where(stage="settings"), INSTALL_CUDA) from error
    if done.returncode != 0:
        raise ToolchainError(
            f"{tool} ended with exit status {done.returncode}",
            Where(stage="settings"),
            "repair or replace it",
            f"$ {' '.join(command)}\n{done.stdout}{done.stderr}",
        )
    return done.stdout


def _release(text: str, path: str) -> str:
    match = RELEASE.search(text.encode())
    if match is None:
        raise ToolchainError(
            f"{path} does not say which CUDA release it is of", Where(stage="settings"), INSTALL_CUDA, text
        )
    return match[2].decode()


def cuda_version(version: str) -> int:
    """A version such as ``13.0.88`` as CUDA counts them: 1000 * major + 10 * minor."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)


def _stamp(file: Path) -> list[Any]:
    try:
        status = file.stat()
    except OSError:
        return [str(file), None]
    return [str(file), status.st_size, status.st_mtime_ns, status.st_ino]


def _kept(document: Record) -> dict[str, Any]:
    """The kept results by kind and path, each with what its use expects."""
    for name, probe in document.members():
        kind, values = name.partition(" ")[0], probe.record("values")
        _ = probe.text("stamp"), [values.text(field) for field in PROBED.get(kind, ())]
        if kind in CUDA_COMPILERS:
            values.texts("archs")
    return document.raw


def describe(*tools: Any) -> list[dict[str, Any]]:
    """The tools as plain data, without paths, for the manifest."""
    return [{key: value for key, value in asdict(tool).items() if key != "path"} for tool in tools]
