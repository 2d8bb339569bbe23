"""Archs: their names in settings, JSON and paths, and all that follows from such a name.

A name of the target ``llvm`` is one that C compilers have for an arch of x86-64 or aarch64; one of ``cuda`` is nvcc's.
What a package has to know of the latter where it runs is in ``runtime/arch.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ..runtime.arch import CudaArch as CudaArch
from ..runtime.arch import is_ptx as is_ptx
from .errors import SettingsError, Where

TARGETS = ("llvm", "cuda")


class Family(NamedTuple):
    """A family of CPUs: libraries for one of them load on no other.

    Arguments:
        archs: its archs, the baseline first; each runs what was compiled for those before it.
        usual: the arch that is built for where nothing names one.
        elf: its number in ELF files (``e_machine`` of elf.h).
        loader: the file name of its dynamic linker.
        baseline: LLVM's name of the baseline.
        cuda: the name of a CUDA toolkit's folder for it, below ``targets``.
    """

    archs: tuple[str, ...]
    usual: str
    elf: int
    loader: str
    baseline: str
    cuda: str


FAMILIES = {
    # The micro-architecture levels of the x86-64 psABI.
    "x86_64": Family(
        ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
        "x86-64-v3",
        62,
        "ld-linux-x86-64.so.2",
        "x86-64",
        "x86_64-linux",
    ),
    # Names for -march and -mcpu: Armv8.0; Armv8.2 with dot products and half precision; Armv9.0 with SVE2.
    "aarch64": Family(
        ("armv8-a", "neoverse-n1", "neoverse-v2"), "neoverse-n1", 183, "ld-linux-aarch64.so.1", "generic", "sbsa-linux"
    ),
}
"""The families of CPUs that there is code for, by the name that ``uname -m`` has for them."""

CPU_LEVELS = {arch: rank for family in FAMILIES.values() for rank, arch in enumerate(family.archs, 1)}
"""CPU arch -> its rank in its family: code for a lower one runs on CPUs of a higher one."""

FAMILY_OF = {arch: name for name, family in FAMILIES.items() for arch in family.archs}
"""CPU arch -> the name of its family."""


def native_family() -> str:
    """The name of this machine's family of CPUs; that of x86-64 on a machine of which nothing is known."""
    machine = os.uname().machine
    return machine if machine in FAMILIES else "x86_64"


def llvm_target(arch: str) -> tuple[str, str]:
    """The triple and the CPU by which LLVM knows a CPU arch.

    >>> llvm_target("neoverse-n1")
    ('aarch64-unknown-linux-gnu', 'neoverse-n1')
    """
    name = FAMILY_OF[arch]
    family = FAMILIES[name]
    return f"{name}-unknown-linux-gnu", family.baseline if arch == family.archs[0] else arch


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
