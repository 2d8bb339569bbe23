"""Writes entries of a build cache to a remote cache, behind the build's back."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.dependencies import is_portable
from .entry import (
    LARGEST_OUTPUTS,
    MOST_NAMES,
    Wanted,
    entry_key,
    entry_with,
    file_with_answer,
    files_in,
    read_entry,
)
from .remote_entries import send_list

if TYPE_CHECKING:
    from .entries import Entries
    from .remote_client import RemoteCache


class Sender:
    """Sends entries of a folder to a remote cache.

    Arguments:
        entries: the folder.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._sent = set[str]()
        self._lock = threading.Lock()

    def share(self, remote: RemoteCache, key: str, later: Mapping[str, str]) -> None:
        """Have an entry written, and the list that leads from the key of its stage to it."""
        if len(later) > MOST_NAMES:
            return
        name, names = entry_key(key, later), sorted(later)

        def send() -> None:
            if self._send(remote, name) and names:
                send_list(remote, key, names)

        remote.write_behind(send)

    def push(self, remote: RemoteCache) -> None:
        """Write all entries of the folder that the remote cache lacks."""

        def push(path: Path) -> None:
            with contextlib.suppress(OSError, ValueError):  # it is damaged, or somebody has removed it
                header = read_entry(path, lambda header, data: header)
                if header.lists is None and not remote.has(path.name):
                    self._send(remote, path.name)
                for names in reversed(header.lists or ()):
                    if header.of and all(map(is_portable, names)):
                        send_list(remote, header.of, names)

        for _, _, path in self._entries.entries():
            remote.write_behind(functools.partial(push, path), patient=True)

    def _send(self, remote: RemoteCache, name: str) -> bool:
        """Write an entry to the remote cache; whether it is there now. Files that an answer refers to go with it."""
        try:
            place = self._entries.place(name)
            header, contents = read_entry(place, lambda header, data: (header, files_in(header, data)))
            for entry, files in header.refers.items():
                found = self._entries.outputs(self._entries.place(entry), Wanted(frozenset(files)))
                if found is None:
                    return False
                contents |= {file_with_answer(entry, file): data for file, data in found.items()}
            for entry in header.needs:
                self._send_once(remote, entry)
        except (OSError, ValueError):
            return False  # it was removed, or damaged, meanwhile
        if header.here or sum(map(len, contents.values())) > LARGEST_OUTPUTS:
            return False
        return remote.put(name, entry_with(name, contents)) is not None

    def _send_once(self, remote: RemoteCache, name: str) -> None:
        """See to it that an entry which many answers need is in the remote cache."""
        with self._lock:
            first = name not in self._sent
            self._sent.add(name)
        if first and not remote.has(name):
            self._send(remote, name)
