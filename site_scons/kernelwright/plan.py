"""Which variants of which kernels a package gets, for which archs: the settings narrowed by each kernel's own."""

from __future__ import annotations

from dataclasses import dataclass

from .discovery import KernelRecord
from .errors import DefinitionError, SettingsError, Where
from .settings import TARGETS, Settings, arch_order, target_of
from .toolchain import Nvcc


@dataclass(frozen=True)
class KernelSelection:
    """What is built of one kernel.

    Arguments:
        record: the discovered kernel.
        archs: target -> archs in the order of the settings; no target without an arch.
        backends: execution backends, the default first.
        left_out: targets that the kernel allows, but for which the package builds none of its archs.
    """

    record: KernelRecord
    archs: dict[str, tuple[str, ...]]
    backends: tuple[str, ...]
    left_out: tuple[str, ...]


def select(record: KernelRecord, settings: Settings, backends: tuple[str, ...]) -> KernelSelection:
    """Narrow the package's targets, archs and backends to those that the kernel's decorator allows.

    ``archs`` of a kernel restrict only the targets that they name, as on the command line.

    Arguments:
        backends: the backends that exist.

    Raises:
        DefinitionError: the decorator names a target, an arch or a backend that does not exist, or only backends that
            the package does not have.
    """
    where = Where(record.name, stage="discover", location=record.location)
    _known("target", record.targets or (), TARGETS, where)
    _known("backend", record.backends or (), backends, where)
    restricted: dict[str, set[str]] = {}
    for arch in record.archs or ():
        try:
            restricted.setdefault(target_of(arch), set()).add(arch)
        except SettingsError as error:
            raise DefinitionError(error.message, where, error.remedy) from error
    archs = {}
    for target in settings.targets:
        if record.targets is None or target in record.targets:
            allowed = [a for a in settings.archs_of(target) if target not in restricted or a in restricted[target]]
            archs[target] = tuple(allowed)
    chosen = tuple(name for name in record.backends or settings.backends if name in settings.backends)
    if not chosen:
        remedy = f"the package's backends are {', '.join(settings.backends)}"
        raise DefinitionError(f"none of its backends {list(record.backends or ())} is built", where, remedy)
    left_out = tuple(target for target, listed in archs.items() if not listed)
    return KernelSelection(record, {t: listed for t, listed in archs.items() if listed}, chosen, left_out)


def require_archs(record: KernelRecord, nvcc: Nvcc) -> None:
    """Raise a DefinitionError for a CUDA arch in a decorator that nvcc does not know."""
    for arch in record.archs or ():
        if target_of(arch) == "cuda" and arch not in nvcc.archs:
            where = Where(record.name, stage="discover", location=record.location)
            remedy = f"use some of {', '.join(nvcc.archs)}"
            raise DefinitionError(f"nvcc {nvcc.version} does not know the arch {arch!r}", where, remedy)


def lowering_arch(archs: tuple[str, ...]) -> str:
    """The arch that CUDA source is made for: the lowest, so that every listed arch can compile it."""
    return min(archs, key=arch_order).replace("compute_", "sm_")


def _known(what: str, names: tuple[str, ...], valid: tuple[str, ...], where: Where) -> None:
    for name in names:
        if name not in valid:
            raise DefinitionError(f"unknown {what} {name!r}", where, f"the valid ones are {', '.join(valid)}")
