"""Targets and archs: their names, which arch belongs to which target, and their order."""

from __future__ import annotations

import re

from ..core.errors import SettingsError, Where

TARGETS = ("llvm", "cuda")
CPU_ARCHS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The micro-architecture levels of the x86-64 psABI, lowest first."""
GPU_ARCH = re.compile(r"(?:sm|compute)_(\d{2,3})([af]?)")
"""nvcc's names of a real (``sm_90a``: code for exactly that chip) or virtual (``compute_80``: PTX) architecture."""


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
