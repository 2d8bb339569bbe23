"""``[tool.kernelwright]``, a build file's keywords and the command line's variables become one frozen Settings."""

from __future__ import annotations

import difflib
import keyword
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError, Where, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TARGETS = ("llvm", "cuda")
CPU_ARCHS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The micro-architecture levels of the x86-64 psABI, lowest first."""
GLIBC = re.compile(r"2\.[0-9]{1,3}")
CHOICES = {
    "cuda_compiler": ("nvcc", "nvrtc"),
    "compress": ("none", "speed", "balance", "size"),
    "split": ("none", "arch"),
}
"""Settings that are one word out of a few, the default first. Those of ``compress`` are the modes of ``fatbinary``."""
GPU_ARCH = re.compile(r"(?:sm|compute)_(\d{2,3})([af]?)")
"""nvcc's names of a real (``sm_90a``: code for exactly that chip) or virtual (``compute_80``: PTX) architecture."""


@dataclass(frozen=True)
class Settings:
    """Everything that a user can choose about a kernel package.

    Arguments:
        package: import name of the generated package, used where a build file gives none.
        targets: TVM targets to build for.
        archs: architectures; each belongs to the target that its name tells.
        backends: execution backends; the first is the default.
        cuda_compiler: what compiles device code: ``nvcc``, or ``nvrtc``, NVIDIA's compiler that is a library.
        nvcc: path of nvcc, or empty: the PyPI wheels', else CUDA_HOME's, else the one on PATH.
        nvcc_flags: further flags of every run of the CUDA compiler.
        host_compiler: C compiler, a name or a path; empty: cc, gcc or clang, whichever comes first on PATH.
        glibc: the oldest glibc that libraries run with, such as ``"2.28"``; empty: that of the machine that builds.
        worker_timeout: seconds that one request to a worker may take.
        tool_timeout: seconds that one run of nvcc or of the host compiler may take.
        memory_limit: memory that all runs of tools together may take, such as ``"16G"``; empty: 80 % of what is free.
        nvcc_memory: memory that one run of nvcc is taken to need, such as ``"2G"``; empty: learnt from earlier builds.
        pch_size: size that NVRTC's precompiled headers are kept within, such as ``"2G"``; empty: there are none.
        cache_dir: folder of the build cache, relative to the SConstruct's; empty: no cache.
        cache_size: size that the build cache is cut down to at the end of a build, such as ``"2G"``.
        compress: how device code is compressed: ``none``, ``speed``, ``balance`` or ``size``.
        split: ``arch``: the device code of each CUDA arch is in a wheel of its own; ``none``: all is in one wheel.
        max_wheel_size: largest size that a wheel may have, such as ``"100M"``; empty: no limit.
        max_registers: registers per thread that a device function may use; None: no limit.
        max_spills: bytes that a device function may spill, stores and loads together; None: no limit.
    """

    package: str = ""
    targets: tuple[str, ...] = TARGETS
    archs: tuple[str, ...] = ("x86-64-v3", "sm_80", "sm_90a", "compute_80")
    backends: tuple[str, ...] = ("tvm_ffi",)
    cuda_compiler: str = "nvcc"
    nvcc: str = ""
    nvcc_flags: tuple[str, ...] = ()
    host_compiler: str = ""
    glibc: str = "2.28"
    worker_timeout: float = 300.0
    tool_timeout: float = 1800.0
    memory_limit: str = ""
    nvcc_memory: str = ""
    pch_size: str = "2G"
    cache_dir: str = "build/.kernelwright/cache"
    cache_size: str = "2G"
    compress: str = "none"
    split: str = "none"
    max_wheel_size: str = ""
    max_registers: int | None = None
    max_spills: int | None = None

    def archs_of(self, target: str) -> tuple[str, ...]:
        """The archs of one target, in the order given."""
        return tuple(arch for arch in self.archs if target_of(arch) == target)

    @property
    def providers(self) -> tuple[str, ...]:
        """The archs whose device code is in wheels of their own."""
        return self.archs_of("cuda") if self.split == "arch" else ()


HELP = {
    "package": "import name of the generated package",
    "targets": f"targets to build for, from: {', '.join(TARGETS)}",
    "archs": "architectures: x86-64-v3, sm_90a, compute_80 (PTX), ...; replaces those of the targets it names",
    "backends": "execution backends, the first is the default",
    "cuda_compiler": f"what compiles device code, one of: {', '.join(CHOICES['cuda_compiler'])}",
    "nvcc": "path of nvcc (default: PyPI wheels, else CUDA_HOME, else PATH)",
    "nvcc_flags": "further nvcc flags",
    "host_compiler": "C compiler (default: cc, gcc or clang on PATH)",
    "glibc": "oldest glibc that libraries run with, such as 2.28; empty for this machine's",
    "worker_timeout": "seconds that one request to a worker may take",
    "tool_timeout": "seconds that one run of a compiler may take",
    "memory_limit": "memory for all runs of compilers together, such as 16G (default: 80 % of what is free)",
    "nvcc_memory": "memory that one run of nvcc is taken to need, such as 2G (default: learnt from earlier builds)",
    "pch_size": "size that NVRTC's precompiled headers are kept within, such as 2G; empty for none",
    "cache_dir": "folder of the build cache; empty for none",
    "cache_size": "size that the build cache is cut down to, such as 2G",
    "compress": f"compression of device code, one of: {', '.join(CHOICES['compress'])}",
    "split": "arch: a wheel of its own for the device code of each CUDA arch; none: one wheel",
    "max_wheel_size": "largest size that a wheel may have, such as 100M (default: no limit)",
    "max_registers": "registers per thread that a device function may use (default: no limit)",
    "max_spills": "bytes that a device function may spill (default: no limit)",
}
"""One line for each setting, shown by ``scons -h``."""

SIZES = ("memory_limit", "nvcc_memory", "pch_size", "cache_size", "max_wheel_size")
"""Settings that are amounts of memory."""

WHEEL_TABLES = ("project", "sdist", "version")
"""Tables of ``[tool.kernelwright]`` that are no settings: what wheels and source distributions are made of."""

BUILD_FOLDERS = ("kernels", "check", "wheels")
"""Folders beside the packages in the build folder."""

TAKEN = frozenset(
    {"kernelwright", "SCons", "numpy", "ml_dtypes", "tvm", "tvm_ffi", "cutlass", "Cython"}
    | {"torch", "jax", "jaxlib", "jax_tvm_ffi", "cupy", "cuda"}
    | {"pip", "setuptools", "pkg_resources", "_distutils_hack", "sitecustomize", "usercustomize"}
    | {"auditwheel", "dunamai", "elftools", "packaging", "pyproject_metadata", "tomli", "wheel"}
    | sys.stdlib_module_names
)
"""Modules that a build, a package, its user or Python itself imports: a package of such a name would replace one."""

COMMAND_LINE = {name.upper(): name for name in HELP if name != "package"}
"""Name on SCons's command line -> name of the setting."""


def target_of(arch: str, where: Where | None = None) -> str:
    """The target that an arch belongs to; ``where`` is the place that an error names.

    Raises:
        SettingsError: the name is not one of a known arch.
    """
    if arch in CPU_ARCHS:
        return "llvm"
    if GPU_ARCH.fullmatch(arch):
        return "cuda"
    raise SettingsError(
        f"unknown arch {arch!r}",
        where or Where(stage="settings"),
        f"use one of {', '.join(CPU_ARCHS)} for the CPU; sm_80, sm_90a, ... or compute_80 (PTX), ... for CUDA",
    )


def arch_order(arch: str) -> tuple[int, str]:
    """Sort key: the arch's number, so that ``sm_80`` comes before ``sm_100``; CPU levels in order."""
    match = GPU_ARCH.fullmatch(arch)
    return (int(match[1]), match[2]) if match else (CPU_ARCHS.index(arch), "")


def read_pyproject(path: Path) -> dict[str, Any]:
    """The settings in the table ``[tool.kernelwright]`` of a pyproject.toml; empty when there is no such file or table.

    Raises:
        SettingsError: the file is not TOML, or the table has an unknown key.
    """
    where = Where(stage="settings", location=path.name)
    tools = read_document(path).get("tool", {})
    table = tools.get("kernelwright", {}) if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise SettingsError("[tool.kernelwright] is not a table", where)
    for name in WHEEL_TABLES:
        if not isinstance(table.get(name, {}), dict):
            raise SettingsError(f"[tool.kernelwright.{name}] is not a table", where)
    settings = {name: value for name, value in table.items() if name not in WHEEL_TABLES}
    reject_unknown(settings, where, "[tool.kernelwright]")
    return settings


def read_document(path: Path) -> dict[str, Any]:
    """The content of a pyproject.toml; empty when there is no such file.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    where = Where(stage="settings", location=path.name)
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot be read: {error}", where) from error
    except RecursionError as error:
        raise SettingsError("is nested too deeply", where, "mend the file") from error
    except ValueError as error:  # not only TOMLDecodeError: an integer may have too many digits
        raise SettingsError(f"is not valid TOML: {error}", where, "mend the file") from error
    return document


def reject_unknown(names: Iterable[str], where: Where, place: str) -> None:
    """Raise a SettingsError for a name that is no setting, with the nearest one that is."""
    for name in names:
        if name not in HELP:
            near = difflib.get_close_matches(name, HELP, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(f"{place} has no setting {name!r}", where, f"{hint}the settings are {', '.join(HELP)}")


def merge(layers: Iterable[tuple[str, Mapping[str, Any]]], known_backends: Iterable[str]) -> Settings:
    """Settings from layers of raw values, later ones winning.

    ``archs`` of a later layer replaces only the archs of the targets that it names, so that ``ARCHS=sm_90a`` chooses
    the GPU code and leaves the CPU's alone.

    Arguments:
        layers: pairs of the place, for messages, and setting -> value. Lists may be strings with commas or blanks.
        known_backends: names that ``backends`` may hold.

    Raises:
        SettingsError: a value is of the wrong kind or unknown.
    """
    values: dict[str, Any] = {}
    for place, layer in layers:
        where = Where(stage="settings", location=place)
        reject_unknown(layer, where, place)
        for name, raw in layer.items():
            value = _convert(name, raw, where)
            if name == "archs" and "archs" in values:
                named = {target_of(arch) for arch in value}
                value = (*(a for a in values["archs"] if target_of(a) not in named), *value)
            if name == "backends":
                _choose("backend", value, tuple(known_backends), where)
            values[name] = value
    settings = Settings(**values)
    _require_archs(settings)
    if settings.split != "none" and "cuda" not in settings.targets:
        remedy = "add the target cuda, or write split = none; on the command line: SPLIT=none"
        raise SettingsError(f"split = {settings.split!r} without the target cuda", Where(stage="settings"), remedy)
    return settings


def _convert(name: str, raw: Any, where: Where) -> Any:
    kind = next(f.type for f in fields(Settings) if f.name == name)
    if kind == "tuple[str, ...]":
        value = _string_list(name, raw, where)
        if name == "targets":
            _choose("target", value, TARGETS, where)
        if name == "archs":
            for arch in value:
                target_of(arch, where)
        return value
    if kind == "float":
        return _positive_number(name, raw, where)
    if kind == "int | None":
        return _limit(name, raw, where)
    if name in SIZES:
        return _size(name, raw, where)
    if name in CHOICES and not isinstance(raw, str):
        raise SettingsError(f"{name} is {shown(raw)}, expected one of {', '.join(CHOICES[name])}", where)
    if not isinstance(raw, str) or "\0" in raw:
        raise SettingsError(f"{name} is {shown(raw)}, expected a string without NUL", where)
    if name == "package":
        _check_package(raw, where)
    if name == "glibc":
        _check_glibc(raw, where)
    if name in CHOICES:
        _choose(name, [raw], CHOICES[name], where)
    return raw


def _check_glibc(version: str, where: Where) -> None:
    if version and not GLIBC.fullmatch(version):
        raise SettingsError(f"glibc is {version!r}, expected a version such as '2.28', or ''", where)


def is_importable(package: str) -> bool:
    """Whether a package of that dotted name can be imported; in ``__pycache__`` Python looks for compiled modules."""
    parts = package.split(".")
    named = all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts)
    return named and "__pycache__" not in parts


def _check_package(name: str, where: Where) -> None:
    parts = name.split(".")
    if not is_importable(name):
        raise SettingsError(f"package is {name!r}, which Python cannot import", where, "use a Python identifier")
    if parts[0] in BUILD_FOLDERS:
        listed = ", ".join(BUILD_FOLDERS)
        raise SettingsError(f"package is {name!r}, but {listed} are folders of the build", where, "use another name")
    if parts[0] in TAKEN:
        message = f"package is {name!r}, which would take the place of the module {parts[0]!r}"
        raise SettingsError(message, where, "use another name, such as acme_kernels")


def _string_list(name: str, raw: Any, where: Where) -> tuple[str, ...]:
    items = re.split(r"[,\s]+", raw.strip()) if isinstance(raw, str) and name != "nvcc_flags" else raw
    if isinstance(items, str):
        items = items.split()
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and "\0" not in item for item in items):
        raise SettingsError(f"{name} is {shown(raw)}, expected a list of strings without NUL", where)
    result = tuple(item for item in items if item)
    if not result and name != "nvcc_flags":
        raise SettingsError(f"{name} is empty", where, HELP[name])
    return result if name == "nvcc_flags" else tuple(dict.fromkeys(result))


def _positive_number(name: str, raw: Any, where: Where) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if isinstance(raw, bool) or not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {shown(raw)}, expected a number of seconds above 0", where)
    return value


def _limit(name: str, raw: Any, where: Where) -> int | None:
    """A number from 0 up; an empty string from the command line lifts the limit."""
    if raw == "" or raw is None:
        return None
    if isinstance(raw, str) and re.fullmatch("[0-9]{1,18}", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 10**18:
        raise SettingsError(f"{name} is {shown(raw)}, expected a number from 0 up", where)
    return raw


def _size(name: str, raw: Any, where: Where) -> str:
    from ..core.quantity import parse_size

    try:
        if raw != "":
            parse_size(raw)
    except (TypeError, ValueError, AttributeError):
        raise SettingsError(f"{name} is {shown(raw)}, expected a size such as '512M' or '16G'", where) from None
    return str(raw)


def _choose(what: str, chosen: Iterable[str], valid: tuple[str, ...], where: Where) -> None:
    for name in chosen:
        if name not in valid:
            raise SettingsError(f"unknown {what} {name!r}", where, f"the valid ones are {', '.join(valid)}")


def _require_archs(settings: Settings) -> None:
    for target in settings.targets:
        if not settings.archs_of(target):
            raise SettingsError(
                f"target {target!r} has no arch in archs = {list(settings.archs)}",
                Where(stage="settings"),
                "add one (x86-64-v3 for llvm, sm_80 for cuda), or remove the target",
            )
