"""CUDA's archs: what their names say, and which devices can run code for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


def is_ptx(arch: str) -> bool:
    """Whether a CUDA arch is virtual (``compute_80``): then its code is PTX. Code for a real arch is a cubin."""
    return arch.startswith("compute_")


class CudaArch(NamedTuple):
    """A CUDA arch, by the parts of nvcc's name for it.

    Arguments:
        number: the compute capability, 10 * major + minor.
        suffix: ``a`` or ``f`` for code that runs on exactly that capability, or on its family; else empty.
        is_ptx: see :func:`is_ptx`.
    """

    number: int
    suffix: str = ""
    is_ptx: bool = False

    @classmethod
    def of(cls, name: str) -> CudaArch | None:
        """The arch with that name; None: CUDA has no such arch."""
        found = re.fullmatch(r"(?:sm|compute)_([0-9]{2,3})([af]?)", name)
        return cls(int(found[1]), found[2], is_ptx(name)) if found else None

    def __str__(self) -> str:
        return f"{'compute' if self.is_ptx else 'sm'}_{self.number}{self.suffix}"


def version_text(cuda: int) -> str:
    """A CUDA version number, 1000 * major + 10 * minor, as people write it: ``12.8`` for 12080."""
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def suitability(name: str, capability: int) -> int:
    """How well an image suits a device: 0 not at all, otherwise more is better.

    A cubin runs on devices with its major capability and the same or a higher minor one; PTX runs on all devices that
    are not older than it. Code with suffix ``a`` runs on its exact capability only; code with suffix ``f`` runs on its
    major capability, from its minor one on. Cubins suit better than PTX. Among either, suffix ``a`` comes first, then
    the exact capability, then suffix ``f``, then the highest capability.

    Arguments:
        name: the arch of the image, such as ``sm_90a``.
        capability: the device's, 10 * major + minor.
    """
    arch = CudaArch.of(name)
    if arch is None or arch.number > capability:
        return 0
    score = 1 + 2 * arch.number + (0 if arch.is_ptx else 10000)
    same_major = arch.number // 10 == capability // 10
    if arch.suffix == "a":
        return score + 2000 if arch.number == capability else 0
    if arch.suffix == "f":
        return score + 500 if same_major else 0
    if arch.number == capability:
        return score + 1000
    return score if same_major or arch.is_ptx else 0


def suitable(archs: Sequence[str], capability: int) -> list[str]:
    """The archs whose images run on a device, best first."""
    return sorted(
        (arch for arch in archs if suitability(arch, capability)), key=lambda arch: -suitability(arch, capability)
    )
