"""Which archs a kernel is compiled for on demand: those that were asked for, or those of this machine's devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.arch import CPU_LEVELS, arch_of_device
from ..core.errors import SettingsError, Where
from ..define.settings import Settings
from ..runtime.arch import suitable
from .machine import Machine

if TYPE_CHECKING:
    from ..define.record import KernelRecord
    from ..stages.selection import KernelSelection


def select_for(record: KernelRecord, settings: Settings, machine: Machine, given: frozenset[str]) -> KernelSelection:
    """What is compiled of a kernel.

    All archs that were asked for are compiled. Otherwise those of the settings are that this machine's devices would
    run; the source is still made for all archs of the settings, so that it is the same as in a build.

    Arguments:
        machine: the devices.
        given: which of ``targets`` and ``archs`` somebody has named: in arguments or variables.

    Raises:
        DefinitionError: the kernel's decorator does not fit the settings.
        SettingsError: there is no device that the kernel could run on, and no arch was named.
    """
    from ..stages.selection import select

    if "archs" in given:
        selection = select(record, settings)
        if not any(selection.archs.values()):
            raise _no_arch(record, settings)
        return selection
    allowed = record.options.targets or settings.targets
    targets = tuple(target for target in settings.targets if target in allowed)
    if not machine.cuda and "targets" not in given:
        targets = tuple(target for target in targets if target != "cuda")
    if not targets or (targets == ("cuda",) and not machine.cuda):
        raise _no_device(record)
    archs = (*_cpu(settings.archs_of("llvm"), machine), *_cuda(settings.archs_of("cuda"), machine))
    selection = select(record, replace(settings, targets=targets, archs=archs))
    own = selection.archs.get("cuda", ())
    compiled = tuple(dict.fromkeys(_best(own, number) for number in machine.cuda)) if own else None
    return replace(selection, compiled=compiled)


def _cpu(archs: Sequence[str], machine: Machine) -> list[str]:
    """The best of the listed CPU archs that this machine runs, or its own."""
    level = CPU_LEVELS.get(machine.cpu, 0)
    usable = [arch for arch in archs if CPU_LEVELS[arch] <= level]
    return [max(usable, key=CPU_LEVELS.__getitem__) if usable else machine.cpu]


def _cuda(archs: Sequence[str], machine: Machine) -> tuple[str, ...]:
    """The listed CUDA archs; or those of this machine's GPUs, if one of these GPUs can run none of the listed."""
    if all(suitable(archs, number) for number in machine.cuda):
        return tuple(archs)
    return tuple(dict.fromkeys(arch_of_device(number) for number in machine.cuda))


def _best(archs: Sequence[str], capability: int) -> str:
    return next(iter(suitable(archs, capability)), archs[0])


def _no_arch(record: KernelRecord, settings: Settings) -> SettingsError:
    targets = " and ".join(record.options.targets or settings.targets)
    restricted = f", and only for {', '.join(record.options.archs)}" if record.options.archs else ""
    return SettingsError(
        f"{record.name} is not compiled for any of the archs that were asked for: {', '.join(settings.archs)}",
        Where(record.name, stage="settings", location=record.location),
        f"it is compiled for {targets}{restricted}: name such archs, or none",
    )


def _no_device(record: KernelRecord) -> SettingsError:
    return SettingsError(
        f"{record.name} is to be compiled for CUDA only, this machine has no CUDA device, and no arch was given",
        Where(record.name, stage="settings", location=record.location),
        "name the archs to compile for: archs=['sm_90a'], or KERNELWRIGHT_ARCHS=sm_90a",
    )
