"""Archs: their names in settings, JSON and paths, and all that follows from such a name.

A name of the target ``llvm`` is a level of x86-64, one of ``cuda`` is nvcc's. What a package has to know of the latter
where it runs is in ``runtime/arch.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..runtime.arch import CudaArch as CudaArch
from ..runtime.arch import is_ptx as is_ptx
from .errors import SettingsError, Where

TARGETS = ("llvm", "cuda")

CPU_LEVELS = {"x86-64": 1, "x86-64-v2": 2, "x86-64-v3": 3, "x86-64-v4": 4}
"""The micro-architecture levels of the x86-64 psABI, lowest first, and their rank."""

FIRST_SPECIFIC, FIRST_FAMILY = 90, 100
"""The numbers of the first CUDA archs that exist with the suffixes ``a`` and ``f``, too."""


SHARED_MEMORY = {
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_90a": 227,
    "sm_100a": 227,
    "sm_103a": 227,
    "sm_110a": 227,
    "sm_120a": 99,
    "sm_121a": 99,
}
"""CUDA arch -> KiB of shared memory that a block can have (CUDA C++ Programming Guide), by its most specific name."""


def shared_memory(arch: str) -> int | None:
    """Bytes of shared memory that a block can have on a CUDA arch; None: it is not known.

    >>> shared_memory("sm_90")
    232448
    """
    kib = SHARED_MEMORY.get(arch, SHARED_MEMORY.get(f"{without_suffix(arch)}a"))
    return None if kib is None else kib * 1024


def target_of(arch: str, where: Where | None = None) -> str:
    """The target that an arch belongs to; ``where`` is the place that an error names.

    Raises:
        SettingsError: the name is not one of a known arch.
    """
    if arch in CPU_LEVELS:
        return "llvm"
    if CudaArch.of(arch):
        return "cuda"
    raise SettingsError(
        f"unknown arch {arch!r}",
        where or Where(stage="settings"),
        f"use one of {', '.join(CPU_LEVELS)} for the CPU; sm_80, sm_90a, ... or compute_80 (PTX), ... for CUDA",
    )


def arch_order(arch: str) -> tuple[int, str]:
    """Sort key: the arch's number, so that ``sm_80`` comes before ``sm_100``; CPU levels in order."""
    cuda = CudaArch.of(arch)
    return (cuda.number, cuda.suffix) if cuda else (CPU_LEVELS[arch], "")


def real_arch(arch: str) -> str:
    """The CUDA arch that code is generated for: PTX of ``compute_90`` is that of ``sm_90``."""
    return arch.replace("compute_", "sm_")


def virtual_arch(arch: str) -> str:
    """The CUDA arch of the PTX that a cubin is made from: ``compute_90a`` of ``sm_90a``."""
    return arch.replace("sm_", "compute_")


def lowering_arch(archs: tuple[str, ...]) -> str:
    """The arch that CUDA source is made for: the lowest, so that every listed arch can compile it."""
    return real_arch(min(archs, key=arch_order))


def source_groups(archs: Iterable[str], per_arch: bool) -> list[tuple[str, ...]]:
    """The CUDA archs that share a source: all of them, or those that are compiled for one virtual arch.

    >>> source_groups(("sm_80", "sm_90a", "compute_80"), per_arch=True)
    [('sm_80', 'compute_80'), ('sm_90a',)]
    """
    groups: dict[str, tuple[str, ...]] = {}
    for arch in archs:
        key = virtual_arch(arch) if per_arch else ""
        groups[key] = (*groups.get(key, ()), arch)
    return list(groups.values())


def without_suffix(arch: str) -> str:
    """The CUDA arch that is numbered alike and has no suffix: ``sm_90`` of ``sm_90a``."""
    return arch.rstrip("af")


def image_file(arch: str) -> str:
    """Name of the file with the device code for a CUDA arch, as a compiler makes it: ``sm_90a.cubin``."""
    return f"{arch}.{'ptx' if is_ptx(arch) else 'cubin'}"


def with_suffixes(archs: Iterable[str]) -> tuple[str, ...]:
    """CUDA compilers list plain names only; from 9.0 on each also exists with ``a``, and from 10.0 on with ``f``."""
    result: list[str] = []
    for arch in archs:
        cuda = CudaArch.of(arch)
        number = cuda.number if cuda else 0
        result += [arch, *([arch + "a"] if number >= FIRST_SPECIFIC else [])]
        result += [arch + "f"] if number >= FIRST_FAMILY else []
    return tuple(result)


def arch_of_device(capability: int) -> str:
    """The most specific arch whose code runs on a CUDA device of a capability, 10 * major + minor."""
    return str(CudaArch(capability, "a" if capability >= FIRST_SPECIFIC else ""))
