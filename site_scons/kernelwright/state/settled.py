"""Which kernels are finished, so that a build with nothing to do for them need not make their nodes.

SCons takes a fifth of a millisecond for each node, and a thousand kernels have more than ten thousand. So when a run
ends, the state of every kernel that SCons has found or made up to date is written down: the stamps of all files that
decide what it is, and of all its outputs. A later run that finds all stamps as they were leaves the kernel out of the
graph. This is no second kind of signature: whatever differs, be it only a time, sends the kernel back to SCons, which
decides by content.

Nothing here imports SCons.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.files import (
    COARSE_NS,
    Stamp,
    canonical_json,
    dependency_digest,
    file_stamp,
    lasting_stamp,
    read_record,
    sealed,
    unsealed,
    write_atomically,
)

SCHEMA = 2
"""Revision of the file's format; another one is read as an empty file."""

FINE_NS = 20_000_000
"""How long after a change a file's time may not have moved on, on file systems that count parts of a second."""

Recorded = list[int]
"""A stamp as JSON has it."""

Outputs = dict[str, Recorded]
"""Path relative to the top -> stamp."""


@dataclass
class SettledKernel:
    """A finished kernel.

    Arguments:
        file: its definition file, relative to the top.
        stages: how many stages it has up to its library.
        outputs: what they made.
        checks: how many checks were done, or 0.
        check_outputs: what those made.
        backends: how it can be called, its default first.
        products: path in the package -> path in the folder of builds and SHA-256 of what is copied there.
        entry: SHA-256 of entry.json.
    """

    file: str
    stages: int
    outputs: Outputs
    checks: int
    check_outputs: Outputs
    backends: list[str]
    products: dict[str, list[str]]
    entry: str


@dataclass
class Settled:
    """The finished kernels of one package.

    Arguments:
        key: digest of everything that all kernels depend on; with another key nothing counts.
        files: definition file -> all files that its kernels depend on, with their stamps; None: the file is absent.
        notes: definition file -> what a run says about its kernels.
        kernels: the finished kernels by name.
        copies: path in the package -> stamp and SHA-256 of the copy of a product.
    """

    key: str
    files: dict[str, dict[str, Recorded | None]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, SettledKernel] = field(default_factory=dict)
    copies: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    @cached_property
    def of_file(self) -> dict[str, dict[str, SettledKernel]]:
        """The finished kernels by definition file."""
        found: dict[str, dict[str, SettledKernel]] = {}
        for name, kernel in self.kernels.items():
            found.setdefault(kernel.file, {})[name] = kernel
        return found


def read_settled(path: Path, key: str) -> Settled:
    """What an earlier run wrote; empty if there is nothing, if it is damaged, or if it has another key."""
    try:
        return _from_json(json.loads(unsealed(read_record(path))), key)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Settled(key)


def write_settled(path: Path, settled: Settled) -> None:
    """Write it, so that damage is found."""
    kernels = {name: vars(kernel) for name, kernel in settled.kernels.items()}
    body = [SCHEMA, settled.key, settled.files, settled.notes, kernels, settled.copies]
    write_atomically(path, sealed(canonical_json(body)))


def is_current(top: str, stamps: Mapping[str, Recorded | None]) -> bool:
    """Whether all files are as their stamps say, without reading any."""
    stat = os.stat  # this loop is most of a build that has nothing to do
    for name, stamp in stamps.items():
        try:
            now = stat(f"{top}/{name}")
        except (OSError, ValueError):  # ValueError: no file can have such a name
            if stamp is not None:
                return False
        else:
            if [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino] != stamp:
                return False
    return True


def trusted_stamps(top: str, digests: Mapping[str, str]) -> dict[str, Recorded | None] | None:
    """Stamps of files, if their content is what these digests say, and if the stamps will tell the next change.

    A file that was changed just now may be changed again without another time; then nothing can be told from a stamp.
    That includes files from the future, which a clock that was set back leaves.
    """
    stamps: dict[str, Recorded | None] = {}
    for name, digest in digests.items():
        now = time.time_ns()
        stamp = _stamp_or_none(f"{top}/{name}")
        if dependency_digest(Path(top), name) != digest or (stamp is not None and not _told_by_time(stamp, now)):
            return None
        stamps[name] = None if stamp is None else [*stamp]
    return stamps


def stamps_of(top: str, paths: Iterable[str]) -> Outputs:
    """Stamps of outputs by their path relative to the top. Raises OSError if one is missing."""
    return {os.path.relpath(path, top): [*lasting_stamp(path)] for path in paths}


def _told_by_time(stamp: Stamp, now: int) -> bool:
    changed = max(stamp[1], stamp[2])
    return changed + (FINE_NS if stamp[2] % 1_000_000_000 else COARSE_NS) < now


def _stamp_or_none(path: str) -> Stamp | None:
    try:
        return file_stamp(path)
    except OSError:
        return None


def _from_json(body: Any, key: str) -> Settled:
    schema, found, files, notes, kernels, copies = body
    if schema != SCHEMA or found != key:
        return Settled(key)
    settled = Settled(key, files, notes)
    settled.kernels = {name: SettledKernel(**kernel) for name, kernel in kernels.items()}
    for path, ((size, mtime, ctime, inode), digest) in copies.items():
        settled.copies[path] = (size, mtime, ctime, inode), digest
    if not _is_sound(settled):
        raise ValueError("something has another form")
    return settled


def _is_sound(settled: Settled) -> bool:
    """Whether everything is of the kind that its use expects; files are removed and copied by these names."""
    return (
        all(isinstance(stamps, dict) for stamps in settled.files.values())
        and all(isinstance(n, list) and all(isinstance(note, str) for note in n) for n in settled.notes.values())
        and all(name.isidentifier() and name.isascii() for name in settled.kernels)
        and all(map(_is_inside, settled.copies))
        and all(_is_sound_kernel(kernel) for kernel in settled.kernels.values())
        and all(isinstance(digest, str) for _, digest in settled.copies.values())
    )


def _is_sound_kernel(kernel: SettledKernel) -> bool:
    texts = (kernel.file, kernel.entry, *kernel.backends)
    return (
        all(isinstance(text, str) for text in texts)
        and all(_is_inside(path) and _is_inside(source) for path, (source, _) in kernel.products.items())
        and all(isinstance(digest, str) for _, digest in kernel.products.values())
        and all(isinstance(count, int) for count in (kernel.stages, kernel.checks))
        and all(isinstance(outputs, dict) for outputs in (kernel.outputs, kernel.check_outputs))
    )


def _is_inside(path: str) -> bool:
    """Whether a relative path stays inside of the folder that it is relative to."""
    return "\0" not in path and not path.startswith("/") and ".." not in path.split("/")
