"""What the device code of a package needs of NVIDIA's driver: in the manifest, in METADATA, and in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.files import UnitFiles
from ..core.arch import CudaArch, arch_order
from ..core.driver import NUMBERS, driver_text
from ..core.errors import DefinitionError, Where, shown
from ..core.records import Record, decoded
from ..runtime.arch import version_text
from ..toolchain.cuda import cuda_version
from .device_code import claim, device_code, drivers_of
from .images import archs_here

if TYPE_CHECKING:
    from .project import Project

VERSION = re.compile(r"[1-9][0-9]\.[0-9]")


def needed_by(units: Iterable[UnitFiles]) -> dict[str, str]:
    """What the device code of some units needs: arch -> the least CUDA version that a driver must be for.

    Raises:
        DefinitionError: it is made by a compiler that is newer than all that are known.
    """
    needed: dict[str, int] = {}
    for unit in (unit for unit in units if unit.target == "cuda"):
        for arch in unit.archs:
            paths = unit.own or (unit.images[arch],)
            needed[arch] = max([needed.get(arch, 0), *(_needed(Path(path), arch) for path in paths)])
    return {arch: version_text(driver) for arch, driver in needed.items() if driver}


def _needed(path: Path, arch: str) -> int:
    """What the code for an arch needs that a file has; 0: it has none."""
    try:
        return _of_arch(drivers_of(path.read_bytes()), arch)
    except ValueError as error:
        remedy = "compile it with an older CUDA, which this version of Kernelwright knows"
        where = Where(stage="link", location=str(path))
        raise DefinitionError(f"its device code cannot be read: {error}", where, remedy) from error


def _of_arch(found: Mapping[str, int], arch: str) -> int:
    """That of an arch among what :func:`drivers_of` found; only fatbins tell ``sm_90a`` from ``sm_90``."""
    return max(found.get(claim(arch, exact), 0) for exact in (True, False))


def least_drivers(manifest: Record) -> dict[str, int]:
    """What the device code needs that a manifest lists: arch -> CUDA version, 1000 * major + 10 * minor.

    Raises:
        ValueError: something has another form than a build writes.
    """
    if manifest.has("arch"):
        return {manifest.text("arch"): _counted(manifest.text("driver"))}
    least: dict[str, int] = {}
    here = archs_here(manifest)
    for _, kernel in manifest.members("kernels"):
        for arch, driver in of_kernel(kernel).items():
            if here is None or arch in here:
                least[arch] = max(driver, least.get(arch, 0))
    return {arch: least[arch] for arch in sorted(least, key=arch_order)}


def of_kernel(kernel: Record) -> dict[str, int]:
    """The same of a kernel.

    Raises:
        ValueError: as :func:`least_drivers`.
    """
    drivers = kernel.record("drivers") if kernel.has("drivers") else None
    found = {arch: _counted(drivers.text(arch)) for arch in drivers.raw} if drivers else {}
    if unknown := [arch for arch in found if CudaArch.of(arch) is None]:
        raise ValueError(f"it lists a driver for {shown(unknown[0])}, which is no arch of a GPU")
    return found


def _counted(version: str) -> int:
    if VERSION.fullmatch(version) is None:
        raise ValueError(f"it lists a driver for CUDA {shown(version)}, which there is not")
    return cuda_version(version)


def drivers_text(needed: Mapping[str, int]) -> str:
    """What wheels with some device code need, in words: ``570.26 (CUDA 12.8) or newer for compute_80``."""
    archs = {driver: [arch for arch, one in needed.items() if one == driver] for driver in sorted({*needed.values()})}
    return "; ".join(f"{driver_text(driver)} or newer for {', '.join(names)}" for driver, names in archs.items())


def external(needed: Mapping[str, int]) -> list[str]:
    """The fields Requires-External of METADATA: the first driver with which some of the device code runs."""
    if not needed:
        return []
    least = min(needed.values())
    number = NUMBERS.get(least)
    return [f"nvidia-driver (>={number})" if number else f"cuda-driver (>={version_text(least)})"]


def with_driver(project: Project, files: Mapping[str, bytes]) -> Project:
    """What a wheel with some files says of itself: METADATA has these fields, behind the other ones."""
    manifest = next(content for name, content in files.items() if name.endswith("/manifest.json"))
    head, blank, body = project.metadata.partition(b"\n\n")
    needed = external(least_drivers(Record(decoded(manifest), "")))
    lines = "".join(f"\nRequires-External: {value}" for value in needed).encode()
    return replace(project, metadata=head.rstrip(b"\n") + lines + (blank + body if blank else b"\n"))


def driver_problems(subject: str, drivers: Mapping[str, int], codes: Iterable[bytes]) -> Iterator[str]:
    """Device code needs just the drivers that the manifest says.

    Arguments:
        drivers: arch -> CUDA version, as the manifest has it.
        codes: all files of it.
    """
    found: dict[str, int] = {}
    for data in codes:
        for arch, driver in device_code(data):
            found[arch] = max(driver, found.get(arch, 0))
    for arch, driver in drivers.items():
        own = _of_arch(found, arch)
        if own != driver:
            needs = f"needs a driver for CUDA {version_text(own)}" if own else "is not there"
            yield f"{subject}: the code for {arch} {needs}, and the manifest says {version_text(driver)}"
    unsaid = found.keys() - {claim(arch, exact) for arch in drivers for exact in (True, False)}
    yield from (
        f"{subject}: the manifest does not say which driver the code for {arch} needs" for arch in sorted(unsaid)
    )
