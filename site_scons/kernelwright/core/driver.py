"""What device code needs of NVIDIA's driver: the least CUDA version that a driver must be for, as CUDA counts versions.

Machine code runs with drivers for the major version of CUDA that made it, and later ones, if they know the arch. PTX is
read by drivers that know its version. Sources: "CUDA Compatibility", the release notes of the CUDA toolkit (driver
versions), and the release history in the specification of PTX (versions of PTX, and the first one with an arch).
"""

from __future__ import annotations

from ..runtime.arch import version_text
from .arch import CudaArch

LEAST = 12000
"""What the launcher itself needs."""

PTX_VERSIONS = {
    **{(8, minor): 12000 + 10 * minor for minor in range(6)},
    **{(8, 6): 12070, (8, 7): 12080, (8, 8): 12090},
    **{(9, minor): 13000 + 10 * minor for minor in range(10)},
}
"""Version of PTX -> the CUDA version whose drivers are the first that read it. That of CUDA 12.6 is that of 12.5."""

FIRST_WITH = {100: 12080, 101: 12080, 103: 12090, 110: 13000, 120: 12080, 121: 12090}
"""Number of an arch -> the CUDA version whose drivers are the first that know it, for those that not all know."""

CUDA_13_ABI = 8
"""The ABI that the header of a cubin has from CUDA 13 on."""

NUMBERS = {
    **{12000: "525.60.13", 12010: "530.30.02", 12020: "535.54.03", 12030: "545.23.06", 12040: "550.54.14"},
    **{12050: "555.42.02", 12060: "560.28.03", 12080: "570.26", 12090: "575.51.03"},
    **{13000: "580.65.06", 13010: "590.44.01"},
}
"""CUDA version -> the first driver for it, on Linux."""


def of_ptx(version: tuple[int, int]) -> int:
    """What PTX of a version needs: ``(8, 7)`` needs 12080.

    Raises:
        ValueError: the version is newer than all that are known.
    """
    if version not in PTX_VERSIONS and version > (8, 0):
        raise ValueError(f"PTX has the version {version[0]}.{version[1]}, which is not known")
    return PTX_VERSIONS.get(version, LEAST)


def of_cubin(number: int, abi: int) -> int:
    """What machine code needs.

    Arguments:
        number: that of its arch, such as 90.
        abi: that in the header of the cubin.
    """
    return max(LEAST, FIRST_WITH.get(number, 0), 13000 if abi >= CUDA_13_ABI else 0)


def of_toolkit(arch: str, toolkit: int) -> int:
    """What the code needs that a CUDA toolkit makes for an arch; 0: the toolkit is not known.

    >>> of_toolkit("sm_80", 12080), of_toolkit("compute_80", 12080)
    (12000, 12080)
    """
    cuda = CudaArch.of(arch)
    if not toolkit or cuda is None:
        return 0
    if cuda.is_ptx:
        return max([LEAST, *(needed for needed in PTX_VERSIONS.values() if needed <= toolkit)])
    return of_cubin(cuda.number, CUDA_13_ABI if toolkit >= 13000 else 0)


def driver_text(cuda: int) -> str:
    """A driver for a CUDA version: ``570.26 (CUDA 12.8)``; without the number if that is not known."""
    number = NUMBERS.get(cuda)
    return f"{number} (CUDA {version_text(cuda)})" if number else f"for CUDA {version_text(cuda)}"
