"""The build cache: finished stages by what they were made from, shared by runs, by branches and by trees.

Some files that a stage depends on are known only when it has run, as with the headers of a C compiler. So there are two
kinds of entries. One has, for the key of a stage, the names of these files: a list for each set that was ever seen,
because a branch may read others. The other has the outputs, and its key is made of the stage's key, one such list, and
the digests of these files. Entries of stages that read no such files need no list.

What a build found out and no stage made, such as what a tool says of itself, is kept in the same way: as the one file
of an entry whose key is made of the question.

An entry is one file: a sealed line, and behind it, because they are large and binary, the contents of the stage's
outputs, whose digests are in the line. One that does not fit is removed and counts as a miss, so nothing that happens
to a cache can get into an output.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..core.files import LARGEST_RECORD, SCRATCH, canonical_json, read_record, write_atomically
from ..core.records import Record, decoded
from ..core.sealed import sealed_object, unsealed_object
from .own_folder import mark_own, require_own

Parsed = TypeVar("Parsed")

SCHEMA = "cache 3"
"""Schema of the sealed line of an entry; it is a part of the keys, too."""

ENTRY = re.compile(r"[0-9a-f]{64}")
"""Name of an entry; it is in a folder that has its first two digits as name."""

MOST_LISTS = 16
"""Sets of files that are known for a stage; the one that was stored longest ago goes."""

LARGEST_OUTPUTS = LARGEST_RECORD // 2
"""Bytes that the outputs of a stage may have together; larger ones are not kept."""

ANSWER = "answer.json"
"""Name of the file in the entry of an answer."""

STALE_S = 24 * 3600
"""After so long a file that is half written has been left by a process that was killed, perhaps on another machine."""


class BuildCache:
    """A folder of entries. Safe to use from several threads and processes, on a local or a shared file system.

    Arguments:
        folder: where the entries are; made when the first one is written.
        limit: size in bytes that :meth:`trim` cuts the cache down to.
        writable: whether entries may be added and removed.
        owned: whether nobody else can have anything in the folder, because all that it is in is the build's own.
        behind: gives another cache, which is asked for what this one lacks; called at the first miss. What the other
            one has is kept in this one, too, so that it lives as long as all else that is used here.

    Raises:
        SettingsError: there is something in the folder, and it is no build cache.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        writable: bool = True,
        owned: bool = False,
        behind: Callable[[], BuildCache | None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._writable = writable
        self._stored = False
        self._find_behind = behind
        self.problem: str | None = None
        if not owned:
            require_own(folder, "build cache", "cache_dir")

    @functools.cached_property
    def behind(self) -> BuildCache | None:
        """The cache that is asked for what this one lacks."""
        return self._find_behind()

    def fetch(self, key: str, out: Path, files: Sequence[str], current: Callable[[str], str]) -> dict[str, str] | None:
        """Write the outputs of an entry into a folder.

        Arguments:
            key: of the stage, from :func:`key_of`.
            out: receives the files.
            files: the names that they must have.
            current: gives the present digest of a file that the stage turned out to depend on while it ran.

        Returns:
            These files with their digests, or None if no entry fits.
        """
        found = self._look_up(key, files, functools.cache(current))
        if found is None:
            return None
        contents, later = found
        for name, data in contents.items():
            (out / name).write_bytes(data)
        return later

    def store(self, key: str, out: Path, names: Sequence[str], later: Mapping[str, str]) -> None:
        """Keep the outputs of a stage. A cache that cannot be written is no reason to fail: see :attr:`problem`."""
        if self._writable and sum((out / name).stat().st_size for name in names) <= LARGEST_OUTPUTS:
            self._keep(key, {name: (out / name).read_bytes() for name in names}, later)

    def recall(self, question: Any, current: Callable[[str], str]) -> Record | None:
        """The answer to a question that somebody has asked before; see :class:`core.answers.Answers`."""
        found = self._look_up(_question_key(question), [ANSWER], functools.cache(current))
        try:
            return None if found is None else Record(decoded(found[0][ANSWER]), "")
        except ValueError:
            return None

    def remember(self, question: Any, answer: Mapping[str, Any], later: Mapping[str, str]) -> None:
        """Keep the answer to a question; see :class:`core.answers.Answers`."""
        # Not sorted: the order of a config's parameters counts.
        self._keep(_question_key(question), {ANSWER: json.dumps(answer, separators=(",", ":")).encode()}, later)

    def entry_of(self, key: str, later: Mapping[str, str]) -> str:
        """Name of the entry with the outputs of a stage; ``later`` is what the stage turned out to depend on."""
        return _entry_key(key, later)

    def contents(self, entry: str, files: Sequence[str]) -> dict[str, bytes] | None:
        """The files in an entry, which must have these names; None: it is missing, or damaged."""
        contents = self._outputs(self._place(entry), files)
        if contents is not None:
            self._touch(self._place(entry))
        return contents

    def _look_up(
        self, key: str, files: Sequence[str], digest: Callable[[str], str]
    ) -> tuple[dict[str, bytes], dict[str, str]] | None:
        """The contents in an entry of this cache or of the one behind it, and the files that they depend on."""
        found = self._find(key, files, digest)
        if found is None and self.behind is not None:
            found = self.behind._look_up(key, files, digest)
            if found is not None:
                self._keep(key, *found)
        return found

    def _find(
        self, key: str, files: Sequence[str], digest: Callable[[str], str]
    ) -> tuple[dict[str, bytes], dict[str, str]] | None:
        """What :meth:`_look_up` gives for an entry of this cache."""
        for names in ([], *self._lists(key)):
            later = {name: digest(name) for name in names}
            place = self._place(_entry_key(key, later))
            contents = self._outputs(place, files)
            if contents is not None:
                # The list comes last: it must not be removed before the entries that it leads to.
                self._touch(place)
                if names:
                    self._touch(self._place(_list_key(key)))
                return contents, later
        return None

    def _keep(self, key: str, contents: Mapping[str, bytes], later: Mapping[str, str]) -> None:
        """Add an entry, if entries may be added and it is not too large."""
        if not self._writable or sum(map(len, contents.values())) > LARGEST_OUTPUTS:
            return
        files = [{"name": name, "size": len(data), "sha256": _sha256(data)} for name, data in contents.items()]
        try:
            if not self._stored:
                mark_own(self._folder)
            self._write(_entry_key(key, later), {"files": files}, *contents.values())
            if later:
                self._add_list(key, sorted(later))
            self._stored = True
        except OSError as error:
            self.problem = f"{error.strerror or error} ({self._folder})"

    def trim(self) -> None:
        """Remove the entries used least recently if this run has added some and they are too large together."""
        if not self._stored:
            return
        entries = list(self.entries())
        excess = sum(size for size, _, _ in entries) - self._limit
        for size, _, path in sorted(entries, key=lambda entry: entry[1]):
            if excess <= 0:
                return
            self.remove(path)
            excess -= size

    def damage(self, entry: Path) -> str | None:
        """What is wrong with an entry; None: nothing. It stays as it is."""
        try:
            _parsed(entry, _checked)
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _lists(self, key: str) -> list[list[str]]:
        """The sets of files that a stage was seen to depend on, the newest first."""
        return self._read(self._place(_list_key(key)), _listed) or []

    def _add_list(self, key: str, names: list[str]) -> None:
        """Note a set of files. If two processes do so for one stage at once, one set is lost until it is met again."""
        lists = self._lists(key)
        if names in lists:
            self._touch(self._place(_list_key(key)))
        else:
            self._write(_list_key(key), {"lists": [names, *lists][:MOST_LISTS]})

    def _outputs(self, place: Path, files: Sequence[str]) -> dict[str, bytes] | None:
        """The outputs in an entry; None: there is none, or it does not fit, and is removed."""

        def parse(header: Record, data: bytes) -> dict[str, bytes]:
            contents = _unpacked(header, data)
            if contents.keys() != set(files):
                raise ValueError("the files of another stage")
            return contents

        return self._read(place, parse)

    def _read(self, place: Path, parse: Callable[[Record, bytes], Parsed]) -> Parsed | None:
        """What ``parse`` makes of the line and of the rest of an entry; None: there is none, or it is removed.

        It is removed if it is damaged, or has another key, or if ``parse`` raises a ValueError.
        """
        try:
            return _parsed(place, parse)
        except ValueError:
            self.remove(place)
        except OSError:
            pass
        return None

    def _write(self, key: str, header: Mapping[str, Any], *contents: bytes) -> None:
        """Write an entry. Raises OSError if that is not possible."""
        place = self._place(key)
        if place.parent.is_symlink():
            raise OSError(f"{place.parent.name} in it is a symbolic link")
        write_atomically(place, b"".join([sealed_object(SCHEMA, {"key": key, **header}), *contents]))

    def _touch(self, place: Path) -> None:
        """Note that an entry was used: those used least recently are removed first."""
        if self._writable:
            with contextlib.suppress(OSError):
                os.utime(place)

    def remove(self, entry: Path) -> None:
        """Remove an entry, if entries may be removed."""
        if self._writable and not entry.parent.is_symlink():
            with contextlib.suppress(OSError):
                entry.unlink()

    def entries(self) -> Iterator[tuple[int, int, Path]]:
        """Size, time of the last use, and path of each entry. What processes have left half written is removed."""
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


def key_of(fingerprint: str, sources: Sequence[tuple[str, str]]) -> str:
    """Key of a stage.

    Arguments:
        fingerprint: everything besides the sources that decides the outputs.
        sources: name and SHA-256 of each source, in order.
    """
    return _digest([SCHEMA, fingerprint, sources])


def _question_key(question: Any) -> str:
    """Key of an answer, which can be that of no stage."""
    return _digest([SCHEMA, "question", ANSWER, question])


def _entry_key(key: str, later: Mapping[str, str]) -> str:
    """Key of a stage's outputs: the stage's key, and name and digest of each file that the stage read while it ran."""
    return _digest([key, sorted(later.items())])


def _list_key(key: str) -> str:
    """Key of the entry that lists for a stage which files it turned out to read."""
    return _digest([key, "lists"])


def _digest(value: Any) -> str:
    return _sha256(canonical_json(value).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parsed(place: Path, parse: Callable[[Record, bytes], Parsed]) -> Parsed:
    """What ``parse`` makes of the line and of the rest of an entry. Raises OSError or ValueError if it is damaged."""
    line, newline, data = read_record(place).partition(b"\n")
    header = unsealed_object(line + newline, SCHEMA)
    if header.text("key") != place.name:
        raise ValueError("an entry of another key")
    return parse(header, data)


def _checked(header: Record, data: bytes) -> None:
    """Raise a ValueError if an entry of either kind does not fit its line."""
    if header.has("lists"):
        _listed(header, data)
    else:
        _unpacked(header, data)


def _listed(header: Record, data: bytes) -> list[list[str]]:
    if data:
        raise ValueError("more than the lists")
    return header.lists_of_texts("lists")


def _unpacked(header: Record, data: bytes) -> dict[str, bytes]:
    """The files of an entry. Raises ValueError if their sizes or contents are not those that its line lists."""
    files: dict[str, bytes] = {}
    for item in header.records("files"):
        name, size = item.file_name("name"), item.count("size", len(data))
        files[name], data = data[:size], data[size:]
        if _sha256(files[name]) != item.text("sha256"):
            raise ValueError("the content does not fit its digest")
    if data:
        raise ValueError("more than the files")
    return files
