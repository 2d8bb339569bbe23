"""Which kernels are finished, so that a build with nothing to do for them need not make their nodes.

SCons takes a fifth of a millisecond for each node, and a thousand kernels have more than ten thousand. So when a run
ends, the state of every kernel that SCons has found or made up to date is written down: the stamps of all files that
decide what it is, and of all its outputs. A later run that finds all stamps as they were leaves the kernel out of the
graph. This is no second kind of fingerprint: whatever differs, be it only a time, sends the kernel back to SCons, which
decides by content.

Nothing here imports SCons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from ..core.converter import Count, that
from ..core.dependencies import has_file, path_of, present_digest
from ..core.files import COARSE_NS, Stamp, file_stamp, lasting_stamp
from ..core.records import Output
from ..core.sealed import read_sealed, write_sealed

FINE_NS = 20_000_000
"""For so long two changes of a file may have the same time, on file systems that count parts of a second."""

Recorded = list[int]
"""A stamp as JSON has it."""

Stamps = dict[str, Any]
"""Path or other name -> stamp; None: it is absent. Stamps are only compared as a whole, so nobody checks their form:
that would double the time in which the file of a thousand kernels is read."""

KernelName = Annotated[str, that("the name of a kernel", lambda name: name.isidentifier() and name.isascii())]


def is_inside(path: str) -> bool:
    """Whether a relative path stays inside of the folder that it is relative to."""
    return not ("\0" in path or path.startswith("/") or ".." in path.split("/"))


Inside = Annotated[str, that("a path that does not lead out of its folder", is_inside)]
"""Files are removed and copied by such paths."""


@dataclass(frozen=True)
class SettledKernel:
    """A finished kernel.

    Arguments:
        file: its definition file, relative to the top.
        stages: how many stages it has up to its library.
        outputs: the files that these stages made, with stamps.
        checks: how many checks were done, or 0.
        check_outputs: the files that the checks made, with stamps.
        backends: how it can be called, its default first.
        products: path in the package -> path in the folder of builds and SHA-256 of what is copied there.
        entry: SHA-256 of entry.json.
    """

    file: str
    stages: Count
    outputs: Stamps
    checks: Count
    check_outputs: Stamps
    backends: list[str]
    products: dict[Inside, tuple[Inside, str]]
    entry: str


@dataclass
class Settled:
    """The finished kernels of one package.

    Arguments:
        key: digest of everything that all kernels depend on; with another key nothing counts.
        files: definition file -> all that its kernels depend on, with stamps; None: it is absent.
        notes: definition file -> what a run says about its kernels.
        kernels: the finished kernels by name.
        copies: path in the package -> stamp and SHA-256 of the copy of a product.
    """

    key: str
    files: dict[str, Stamps] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[KernelName, SettledKernel] = field(default_factory=dict)
    copies: dict[Inside, Output] = field(default_factory=dict)

    @cached_property
    def of_file(self) -> dict[str, dict[str, SettledKernel]]:
        """The finished kernels by definition file."""
        found: dict[str, dict[str, SettledKernel]] = {}
        for name, kernel in self.kernels.items():
            found.setdefault(kernel.file, {})[name] = kernel
        return found


def read_settled(path: Path, key: str) -> Settled:
    """What an earlier run wrote; empty if there is nothing, if it is damaged, or if it has another key."""
    found = read_sealed(path, Settled)
    return found if found is not None and found.key == key else Settled(key)


def write_settled(path: Path, settled: Settled) -> None:
    """Write the finished kernels, so that damage is found. Raises OSError if that is not possible."""
    write_sealed(path, settled)


def is_current(top: str, stamps: Mapping[str, Any]) -> bool:
    """Whether all files, variables and packages are as their stamps say, without reading any file."""
    stat = os.stat  # this loop is most of a build that has nothing to do
    for name, stamp in stamps.items():
        if name[:1] == "/":
            if _stamp_of(Path(top), name) != (None if stamp is None else tuple(stamp)):
                return False
            continue
        try:
            now = stat(f"{top}/{name}")
        except (OSError, ValueError):  # ValueError: no file can have such a name
            if stamp is not None:
                return False
        else:
            if [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino] != stamp:
                return False
    return True


def trusted_stamps(top: str, digests: Mapping[str, str]) -> Stamps | None:
    """Stamps of all these names, if they still have these digests, and if the stamps will show the next change.

    A file that was changed just now may be changed again and keep its time; then its stamp shows nothing. So it is with
    a time in the future, which files have after a clock was set back.
    """
    stamps: Stamps = {}
    for name, digest in digests.items():
        now = time.time_ns()
        stamp = _stamp_of(Path(top), name)
        untold = stamp is not None and has_file(name) and not _told_by_time(stamp, now)
        if present_digest(Path(top), name) != digest or untold:
            return None
        stamps[name] = None if stamp is None else [*stamp]
    return stamps


def stamps_of(top: str, paths: Iterable[str]) -> Stamps:
    """Stamps of outputs by their path relative to the top. Raises OSError if one is missing."""
    begin = top + os.sep
    # Most paths are as they would come out of relpath, which takes as long as the rest.
    return {
        path[len(begin) :] if path.startswith(begin) else os.path.relpath(path, top): [*lasting_stamp(path)]
        for path in paths
    }


def _told_by_time(stamp: Stamp, now: int) -> bool:
    changed = max(stamp[1], stamp[2])
    return changed + (FINE_NS if stamp[2] % 1_000_000_000 else COARSE_NS) < now


def _stamp_of(top: Path, name: str) -> Stamp | None:
    """A stamp that shows a change of a file, variable or package; None: it is absent."""
    if not has_file(name):
        digest = present_digest(top, name)
        return (int(digest[:15], 16), 0, 0, 0) if digest else None
    try:
        return file_stamp(path_of(top, name))
    except (OSError, ValueError):
        return None
