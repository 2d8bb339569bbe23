"""A folder of entries: finished stages, and answers, by what they were made from (``state.entry``).

Some files that a stage depends on are known only when it has run, as with the headers of a C compiler. So there are two
kinds of entries. The first has, for the key of a stage, lists with the names of these files: one list for each set
that was seen, because another branch may read others. The second has the outputs. Its key is made of the stage's key,
one such list, and the digests of these files. Entries of stages that read no such files need no list.

An entry whose content does not match its first line is removed and counts as a miss, so no damage to the folder can
get into an output.
"""

from __future__ import annotations

import contextlib
import functools
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..core.files import SCRATCH, held_folder, write_atomically
from .entry import (
    ENTRY,
    LARGEST_OUTPUTS,
    MOST_LISTS,
    Header,
    Wanted,
    checked,
    entry_key,
    entry_with,
    entry_with_lists,
    list_key,
    lists_in,
    possible_entries,
    read_entry,
    wanted_files,
)
from .own_folder import Removable, mark_own, mark_used, remove_oldest, require_own

Parsed = TypeVar("Parsed")

SHELF = re.compile(r"[0-9a-f]{2}")
"""Name of a folder with entries: the first two digits of their names."""

STALE_S = 24 * 3600
"""A half-written file that is older comes from a process that was killed, perhaps on another machine."""

Found = tuple[dict[str, bytes], dict[str, str]]
"""The files of an entry, and what they turned out to depend on, with the digests."""


class Entries:
    """A folder of entries. Safe to use from several threads and processes, on a local or a shared file system.

    Arguments:
        folder: where the entries are; made when the first one is written.
        limit: size in bytes that :meth:`trim` cuts the folder down to.
        writable: whether entries may be added and removed.
        owned: whether the folder can have no files of others, because it is inside a folder of the build's own.

    Attributes:
        problem: why an entry could not be written; None: nothing went wrong.

    Raises:
        SettingsError: the folder is not empty, and is no build cache.
    """

    def __init__(self, folder: Path, limit: int, writable: bool = True, owned: bool = False) -> None:
        self._folder = folder
        self._limit = limit
        self._writable = writable
        self._stored = False
        self.problem: str | None = None
        if not owned:
            require_own(folder, "build cache", "cache_dir", self._has_entries)

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self._folder

    @property
    def writable(self) -> bool:
        """Whether entries may be added and removed."""
        return self._writable

    def _find(self, key: str, files: Wanted, digest: Callable[[str], str]) -> Found | None:
        """The content of an entry in this folder, and the files that it depends on; None: no entry fits."""
        for entry, later in possible_entries(key, self._lists(key), digest):
            contents = self.outputs(self.place(entry), files)
            if contents is not None:
                # The list is touched last: it must not be removed before the entries that it leads to.
                self._touch(self.place(entry))
                if later:
                    self._touch(self.place(list_key(key)))
                return contents, later
        return None

    def _keep(
        self, key: str, contents: Mapping[str, bytes], later: Mapping[str, str], more: Mapping[str, Any] | None = None
    ) -> None:
        """Add an entry, if entries may be added and it is not too large.

        Arguments:
            more: further fields of the line.
        """
        if self._writable and sum(map(len, contents.values())) <= LARGEST_OUTPUTS:
            name = entry_key(key, later)
            self._keep_whole(name, entry_with(name, contents, more), key, later)

    def _keep_whole(self, name: str, entry: bytes, key: str = "", later: Mapping[str, str] | None = None) -> None:
        """Add an entry as it is, if entries may be added, and the list that leads from the stage's key to it."""
        if not self._writable:
            return
        try:
            if not self._stored:
                mark_own(self._folder)
            self._write(name, entry)
            if later:
                self._add_list(list_key(key), sorted(later), key)
            self._stored = True
        except OSError as error:
            self.problem = f"{error.strerror or error} ({self._folder})"

    def trim(self) -> None:
        """Remove the entries used least recently, if this run has added some and all together exceed the limit."""
        if self._stored:
            remove_oldest(self.removable(), self._limit)

    def removable(self) -> Iterator[Removable]:
        """All entries, for :func:`remove_oldest`."""
        for size, used_ns, path in self.entries():
            yield Removable(size, used_ns / 1e9, functools.partial(self.remove, path))

    def damage(self, entry: Path) -> str | None:
        """What is wrong with an entry; None: nothing. It stays as it is."""
        try:
            read_entry(entry, checked)
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def remove(self, entry: Path) -> None:
        """Remove an entry, if entries may be removed."""
        if self._writable:
            with contextlib.suppress(OSError), held_folder(entry.parent) as held:
                (held / entry.name).unlink()

    def entries(self) -> Iterator[tuple[int, int, Path]]:
        """Size, time of the last use, and path of each entry. Old half-written files are removed."""
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            # Another process may remove it at any moment.
            with contextlib.suppress(OSError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or path.parent.is_symlink():
                    continue
                if ENTRY.fullmatch(path.name) and path.name[:2] == path.parent.name:
                    yield status.st_size, status.st_mtime_ns, path
                elif path.name.startswith(SCRATCH) and status.st_mtime < time.time() - STALE_S:
                    self.remove(path)

    def _has_entries(self, names: Collection[str]) -> bool:
        """Whether these are all names of folders of entries, and one folder has an entry: only our cache is so."""
        shelves = (self._folder / name for name in names)
        return all(map(SHELF.fullmatch, names)) and any(
            ENTRY.fullmatch(path.name) for shelf in shelves for path in shelf.iterdir()
        )

    def place(self, key: str) -> Path:
        """Where an entry is, or would be."""
        return Path(f"{self._folder}/{key[:2]}/{key}")  # with / it takes twice the time

    def _lists(self, key: str) -> Iterator[list[str]]:
        """The sets of files that a stage was seen to depend on, the newest first."""
        yield from self._read(self.place(list_key(key)), lists_in) or []

    def _add_list(self, entry: str, names: list[str], of: str | None) -> None:
        """Note a set of files in the entry of this name; ``of`` is the key of the stage, if it is known.

        If two processes do so for one stage at once, one set is lost until a stage reads it again.
        """
        lists = self._read(self.place(entry), lists_in) or []
        if names in lists:
            self._touch(self.place(entry))
        else:
            self._write(entry, entry_with_lists(entry, [names, *lists][:MOST_LISTS], of))

    def outputs(self, place: Path, files: Wanted) -> dict[str, bytes] | None:
        """The outputs in an entry; None: there is none, or it does not fit, and is removed."""
        return self._read(place, functools.partial(wanted_files, files))

    def _read(self, place: Path, parse: Callable[[Header, bytes], Parsed]) -> Parsed | None:
        """What ``parse`` makes of the line and of the rest of an entry; None: there is none, or it is removed.

        It is removed if it is damaged, or has another key, or if ``parse`` raises a ValueError.
        """
        try:
            return read_entry(place, parse)
        except ValueError:
            self.remove(place)
        except OSError:
            pass
        return None

    def _write(self, key: str, entry: bytes) -> None:
        """Write an entry. Raises OSError if that is not possible."""
        shelf = self.place(key).parent
        shelf.mkdir(parents=True, exist_ok=True)
        with held_folder(shelf) as held:
            write_atomically(held / key, entry)

    def _touch(self, place: Path) -> None:
        """Note that an entry was used: those used least recently are removed first."""
        if self._writable:
            mark_used(place)
