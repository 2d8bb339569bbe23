"""The build cache: finished stages by what they were made from, shared by runs, by branches and by trees.

An entry is one file: a line of JSON, the contents of the stage's outputs, and the SHA-256 of all that. One that does
not fit is removed and counts as a miss, so nothing that happens to a cache can get into an output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import write_atomically
from .records import is_file_name

SCHEMA = 1
"""Revision of the entries' format; it is a part of their keys."""

DIGEST_SIZE = hashlib.sha256().digest_size

TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# A build cache of Kernelwright; it is safe to delete.\n"
"""Content of CACHEDIR.TAG, by which backup programs know a cache (https://bford.info/cachedir/)."""


class BuildCache:
    """A folder of entries. Safe to use from several threads and processes, on a local or a shared file system.

    Arguments:
        folder: where the entries are; made when the first one is written.
        limit: size in bytes that :meth:`trim` cuts the cache down to.
        writable: whether entries may be added and removed.
    """

    def __init__(self, folder: Path, limit: int, writable: bool = True) -> None:
        self._folder = folder
        self._limit = limit
        self._writable = writable
        self._stored = False
        self.problem: str | None = None

    def fetch(self, key: str, out: Path, current: Callable[[str], str]) -> dict[str, str] | None:
        """Write the outputs of an entry into a folder.

        Arguments:
            key: of the stage, from :func:`key_of`.
            out: receives the files.
            current: gives the present digest of a file that the stage turned out to depend on while it ran.

        Returns:
            These files with their digests, or None if there is no entry, it is damaged, or one of these files changed.
        """
        entry = self._place(key)
        content = self._content(entry)
        if content is None:
            return None
        try:
            later, files = _unpack(content, key)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._remove(entry)
            return None
        if any(current(name) != digest for name, digest in later.items()):
            return None
        for name, data in files.items():
            (out / name).write_bytes(data)
        with contextlib.suppress(OSError):
            os.utime(entry)  # the entries used least recently are removed first
        return later

    def store(self, key: str, out: Path, names: Sequence[str], later: Mapping[str, str]) -> None:
        """Keep the outputs of a stage. A cache that cannot be written is no reason to fail: see :attr:`problem`."""
        if not self._writable:
            return
        files = [(name, (out / name).read_bytes()) for name in names]
        header = {"key": key, "later": dict(later), "files": [[name, len(data)] for name, data in files]}
        content = b"".join([json.dumps(header).encode() + b"\n", *(data for _, data in files)])
        try:
            if not self._stored:
                self._tag()
            write_atomically(self._place(key), content + hashlib.sha256(content).digest())
            self._stored = True
        except OSError as error:
            self.problem = f"{error.strerror or error} ({self._folder})"

    def trim(self) -> None:
        """Remove the entries used least recently if this run has added some and they are too large together."""
        if not self._stored:
            return
        entries = [found for found in map(_size_and_time, self._folder.glob("??/*")) if found]
        excess = sum(size for size, _, _ in entries) - self._limit
        for size, _, path in sorted(entries, key=lambda entry: entry[1]):
            if excess <= 0:
                return
            self._remove(path)
            excess -= size

    def _tag(self) -> None:
        if not (self._folder / "CACHEDIR.TAG").exists():
            write_atomically(self._folder / "CACHEDIR.TAG", TAG)

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _content(self, entry: Path) -> bytes | None:
        try:
            data = entry.read_bytes()
        except OSError:
            return None
        content, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
        if hashlib.sha256(content).digest() == digest:
            return content
        self._remove(entry)
        return None

    def _remove(self, entry: Path) -> None:
        if self._writable:
            with contextlib.suppress(OSError):
                entry.unlink()


def key_of(signature: str, sources: Sequence[tuple[str, str]]) -> str:
    """Key of a stage.

    Arguments:
        signature: everything besides the sources that decides the outputs.
        sources: name and SHA-256 of each source, in order.
    """
    return hashlib.sha256(json.dumps([SCHEMA, signature, sources]).encode()).hexdigest()


def _unpack(content: bytes, key: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """The dependencies and the files of an entry whose digest is right.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: it has another form, or another key.
    """
    line, _, data = content.partition(b"\n")
    header: dict[str, Any] = json.loads(line)
    if header["key"] != key:
        raise ValueError("an entry of another key")
    later = {str(name): str(digest) for name, digest in header["later"].items()}
    files: dict[str, bytes] = {}
    for name, size in header["files"]:
        if not is_file_name(name) or not 0 <= size <= len(data):
            raise ValueError("not the name or the size of a file")
        files[name], data = data[:size], data[size:]
    if data:
        raise ValueError("more than the files")
    return later, files


def _size_and_time(path: Path) -> tuple[int, int, Path] | None:
    try:
        status = path.stat()
    except OSError:
        return None  # another process removed it
    return status.st_size, status.st_mtime_ns, path
