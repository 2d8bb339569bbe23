"""Where tileiras is, which compiles what cuTile makes of a function, and the programs that it runs.

It is of a newer CUDA than the nvcc of Kernelwright's extra ``cuda``, and pip cannot install both side by side.
"""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.core.errors import ToolchainError, Where
from kernelwright.core.need import OF_PLUGINS, Need, OwnEnvironment, Parts
from kernelwright.toolchain.elsewhere import find_elsewhere

VERSION = "1.7"
"""The releases of cuda-tile that the front end is written for."""

RELEASE = "13.4"
"""The release of tileiras: code of a later one needs a later driver than 580. Older ones cannot show code as text."""

NEED = Need("cuda.tile", f"cuda-tile=={VERSION}.*")
"""What definitions import."""

PARTS = Parts(("nvidia_cuda_tileiras", "nvidia_cuda_nvcc", "nvidia_nvvm"), modules="nvidia/cu13")
"""The distributions that have it, its ptxas and its libnvvm, and the folder that they share."""

ENVIRONMENT = OwnEnvironment(
    "tileiras", Need("cutile", f"cuda-tile[tileiras]=={VERSION}.*"), RELEASE, OF_PLUGINS, PARTS
)
"""Where tileiras is installed, if not beside TVM."""


def programs(python: str, where: Where) -> Path:
    """The folder of tileiras in the environment of an interpreter.

    Raises:
        ToolchainError: it is not there, or of another release than the programs that it runs.
    """
    _, records = find_elsewhere(python, PARTS)
    releases = {}
    for record in records:
        name, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
        releases[name] = ".".join(version.split(".")[:2])
    if PARTS.distributions[0] not in releases:
        raise ToolchainError(f"the environment of {python} has no tileiras", where, ENVIRONMENT.remedy)
    if {releases.get(name) for name in PARTS.distributions} != {RELEASE}:
        known = ", ".join(f"{re.sub('_', '-', name)} {release}" for name, release in sorted(releases.items()))
        message = f"the environment of {python} has {known}, and tileiras needs all three of {RELEASE}"
        raise ToolchainError(message, where, ENVIRONMENT.remedy)
    return PARTS.folder(records) / "bin"
