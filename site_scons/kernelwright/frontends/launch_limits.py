"""Compares launches with the limits of CUDA when a kernel is built, as far as their sizes are known by then.

So a launch that can never work is an error of the build, and not of the first call. The limits are in the CUDA C++
Programming Guide (technical specifications for each compute capability). All archs have the same, except for shared
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core.arch import shared_memory
from ..core.entry_name import ENTRY
from ..core.errors import LoweringError
from .unit import Unit

THREADS = 1024
"""Threads of a block."""

BLOCK = (1024, 1024, 64)
"""Threads of a block in x, y and z."""

GRID = (2**31 - 1, 65535, 65535)
"""Blocks of a grid in x, y and z."""

CLUSTER = 16
"""Blocks of a cluster; more than 8 are for some devices only."""


def require_within_limits(launches: Iterable[Mapping[str, Any]], unit: Unit) -> None:
    """Check that a device can begin these launches, as far as their sizes are constants.

    Arguments:
        launches: as ``signature.json`` has them; a size is an integer, or an expression that only a call can compute.
        unit: the unit that launches, for CUDA.

    Raises:
        LoweringError: a launch is beyond a limit, and would fail in each call.
    """
    for launch in launches:
        for what, remedy in _excesses(launch, unit.arch):
            # Sources have one name for their functions, which is no name of the author's.
            whose = "" if launch["kernel"].startswith(ENTRY) else f" of {launch['kernel']}"
            raise LoweringError(f"the launch{whose} has {what}", unit.where, remedy)


def _excesses(launch: Mapping[str, Any], arch: str) -> Iterator[tuple[str, str]]:
    """Each limit that a launch exceeds, in words, and what the user can do about it."""
    block, cluster = launch["block"], launch.get("cluster", ())
    yield from _axes(block, "threads in a block", BLOCK, "make the block smaller")
    if (threads := math.prod(_known(block))) > THREADS:
        yield f"{threads} threads in a block, and {THREADS} are the most", "make the block smaller"
    yield from _axes(launch["grid"], "blocks", GRID, "let each block do more, or put the largest size on x", least=0)
    if (blocks := math.prod(_known(cluster))) > CLUSTER:
        yield f"{blocks} blocks in a cluster, and {CLUSTER} are the most", "make the cluster smaller"
    shared, limit = launch["shared"], shared_memory(arch)
    if isinstance(shared, int) and shared < 0:
        yield f"{shared} bytes of shared memory in a block", "write as many bytes as a block needs"
    if isinstance(shared, int) and limit is not None and shared > limit:
        remedy = "make its tiles or the number of stages smaller, or restrict the kernel to other archs"
        yield f"{shared} bytes of shared memory in a block, and {arch} has {limit}", remedy


def _axes(
    sizes: Sequence[int | str], what: str, limits: Sequence[int], remedy: str, least: int = 1
) -> Iterator[tuple[str, str]]:
    for axis, size, most in zip("xyz", sizes, limits, strict=True):
        if isinstance(size, int) and size > most:
            yield f"{size} {what} in {axis}, and {most} are the most", remedy
        elif isinstance(size, int) and size < least:
            yield f"{size} {what} in {axis}, and {least} is the least", f"write {least} or more"


def _known(sizes: Iterable[int | str]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]
