"""Compares the registers and spills of device functions, which ptxas reports, with the limits in the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import KernelwrightError, Where
from ..core.records import Record, read_json

REMEDY = (
    "make the tile or the unrolled part of the definition smaller, so that fewer values live at once; or raise the "
    "limit. The option --maxrregcount of nvcc lowers registers and adds spills"
)


USED = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "shared_bytes", "constant_bytes")
"""What ``<arch>.json`` has for each device function."""


class LimitError(KernelwrightError):
    """A device function uses more registers, or spills more, than the settings allow."""


def read_usage(path: Path) -> dict[str, Any]:
    """The content of ``<arch>.json``.

    Raises:
        KernelwrightError: the file is missing or damaged.
    """
    return read_json(path, _checked_usage, "remove it and try again")


def read_reports(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What some objects report, as the contents of ``<arch>.json``, arch by arch.

    Raises:
        KernelwrightError: a file is missing or damaged.
    """
    usages: dict[str, dict[str, Any]] = {}
    for path in paths:
        report = read_json(Path(path), _checked_report, "remove it and try again")
        for arch, kernels in report["archs"].items():
            usages.setdefault(arch, {"kernels": {}})["kernels"].update(kernels)
    return {arch: {"kernels": dict(sorted(usage["kernels"].items()))} for arch, usage in sorted(usages.items())}


def _checked_report(document: Record) -> dict[str, Any]:
    archs = document.record("archs")
    for arch in archs.raw:
        _require_usage(archs, arch)
    return document.raw


def _checked_usage(document: Record) -> dict[str, Any]:
    _require_usage(document, "kernels")
    return document.raw


def _require_usage(record: Record, name: str) -> None:
    for _, used in record.members(name):
        for each in USED:
            used.count(each)


def check_limits(
    arch: str, usage: Mapping[str, Any], max_registers: int | None, max_spills: int | None, where: Where
) -> None:
    """Compare what each device function of one cubin uses with the limits.

    Arguments:
        arch: the arch of the cubin.
        usage: the content of ``<arch>.json``; for PTX it names no function, so that no limit applies.
        max_registers: registers per thread, or None for no limit.
        max_spills: bytes of spill stores and spill loads together, or None for no limit.
        where: what was compiled.

    Raises:
        LimitError: a limit is exceeded; the message lists every device function and limit concerned.
    """
    exceeded = [
        line
        for name, used in sorted(usage["kernels"].items())
        for line in _exceeded(name, used, arch, max_registers, max_spills)
    ]
    if not exceeded:
        return
    if len(exceeded) == 1:
        raise LimitError(exceeded[0], where, REMEDY)
    message = f"device functions exceed limits for {arch} in {len(exceeded)} places"
    raise LimitError(message, where, REMEDY, "\n".join(exceeded))


def _exceeded(
    name: str, used: Mapping[str, int], arch: str, max_registers: int | None, max_spills: int | None
) -> Iterator[str]:
    registers, stores, loads = used["registers"], used["spill_store_bytes"], used["spill_load_bytes"]
    if max_registers is not None and registers > max_registers:
        yield f"{name} uses {registers} registers for {arch}, max_registers is {max_registers}"
    if max_spills is not None and stores + loads > max_spills:
        total = f"{stores + loads} bytes (stores {stores}, loads {loads})"
        yield f"{name} spills {total} for {arch}, max_spills is {max_spills}"
