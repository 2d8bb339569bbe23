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


SEAL = "sealed"
"""Line that ends the entries of a run."""


class Ledger:
    """A journal of outputs: path, stamp (size, mtime, ctime in ns) and SHA-256; appended to as each output appears.

    A run that ends seals its entries. Those of a run that was killed do not count: SCons writes its signatures at the
    end only, so it still describes the outputs as they were before that run, and would take the new ones for those.

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
        self._unsealed = False
        self._stale_tail = False
        self._read()

    def record(self, paths: Iterable[Path]) -> None:
        """Note the present content of these outputs."""
        found = {self._name(path): (_stamp(path), sha256_of(path)) for path in paths}
        with self._lock:
            self._append(found)
            self._entries.update(found)

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

    def seal(self, unfinished: Iterable[Path] = ()) -> None:
        """End the run: its entries count from now on. A journal that has many outdated lines is written anew.

        Arguments:
            unfinished: outputs that do not count all the same, because SCons was interrupted before it noted them.
        """
        with self._lock:
            dropped = [self._entries.pop(self._name(path), None) for path in unfinished]
            if any(dropped) or self._lines > 2 * len(self._entries) + 100:
                self._rewrite()
            elif self._unsealed:
                self._append_text(f"{json.dumps(SEAL)}\n")
            self._unsealed = False

    def _rewrite(self) -> None:
        lines = [_line(name, entry) for name, entry in sorted(self._entries.items())]
        write_atomically(self._path, "".join([*lines, f"{json.dumps(SEAL)}\n"]))
        self._lines = len(lines) + 1

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._top)

    def _append(self, entries: dict[str, tuple[Stamp, str]]) -> None:
        if self._stale_tail:
            # What a killed run appended must not be sealed together with the entries of this one.
            self._rewrite()
            self._stale_tail = False
        self._append_text("".join(_line(name, entry) for name, entry in entries.items()))
        self._lines += len(entries)
        self._unsealed = True

    def _append_text(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(text)

    def _read(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        self._lines = len(lines)
        pending: dict[str, tuple[Stamp, str]] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                if entry == SEAL:
                    self._entries.update(pending)
                    pending = {}
                else:
                    name, size, mtime, ctime, digest = entry
                    pending[str(name)] = ((int(size), int(mtime), int(ctime)), str(digest))
            except (ValueError, TypeError):
                continue
        for name in pending:
            self._entries.pop(name, None)
        self._stale_tail = bool(pending)


def _line(name: str, entry: tuple[Stamp, str]) -> str:
    return json.dumps([name, *entry[0], entry[1]]) + "\n"


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
