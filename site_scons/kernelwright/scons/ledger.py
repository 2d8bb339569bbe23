"""Remembers the content of every output, so that one edited by hand, or half replaced, is found and made again.

SCons compares the inputs of a target, never the target itself.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from ..files import sha256_of, write_atomically

Stamp = tuple[int, int, int]


class Ledger:
    """A journal of outputs: path, stamp (size, mtime, ctime in ns) and SHA-256; appended to as each output appears.

    Arguments:
        path: the journal. A line that cannot be read is left out, so that its output is made again.
        top: paths in the journal are relative to this folder, which lets a tree move.
    """

    def __init__(self, path: Path, top: Path) -> None:
        self._path = path
        self._top = top
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[Stamp, str]] = {}
        self._lines = 0
        self._read()

    def record(self, paths: Iterable[Path]) -> None:
        """Note the present content of these outputs."""
        found = {self._name(path): (_stamp(path), sha256_of(path)) for path in paths}
        with self._lock:
            self._entries.update(found)
            self._append(found)

    def knows(self, path: Path) -> bool:
        """Whether a record of this output exists."""
        return self._name(path) in self._entries

    def intact(self, path: Path) -> bool:
        """Whether an existing output still has the content that was recorded."""
        entry = self._entries.get(self._name(path))
        if entry is None:
            return False
        stamp, digest = entry
        if _stamp(path) == stamp:
            return True
        if sha256_of(path) != digest:
            return False
        self.record([path])
        return True

    def compact(self) -> None:
        """Rewrite a journal that has many outdated lines."""
        with self._lock:
            if self._lines > 2 * len(self._entries) + 100:
                write_atomically(self._path, "".join(_line(n, e) for n, e in sorted(self._entries.items())))
                self._lines = len(self._entries)

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._top)

    def _append(self, entries: dict[str, tuple[Stamp, str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write("".join(_line(name, entry) for name, entry in entries.items()))
        self._lines += len(entries)

    def _read(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        self._lines = len(lines)
        for line in lines:
            try:
                name, size, mtime, ctime, digest = json.loads(line)
                self._entries[str(name)] = ((int(size), int(mtime), int(ctime)), str(digest))
            except (ValueError, TypeError):
                continue


def _line(name: str, entry: tuple[Stamp, str]) -> str:
    return json.dumps([name, *entry[0], entry[1]]) + "\n"


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
