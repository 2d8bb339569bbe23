"""The entries of the build cache: their keys and their content.

An entry is one file. It begins with a sealed line. Behind the line are the contents of the stage's outputs, which are
large and binary; their digests are in the line. Other entries have lists of names instead, see ``state.entries``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ..core.converter import Count, that
from ..core.files import LARGEST_RECORD, canonical_json, read_record
from ..core.records import is_file_name
from ..core.sealed import form_of, sealed_record, unsealed_record

Parsed = TypeVar("Parsed")

ENTRY = re.compile(r"[0-9a-f]{64}")
"""Name of an entry; it is in a folder that has its first two digits as name."""

MOST_LISTS = 16
"""Sets of files that are kept for a stage; a further one takes the place of the oldest."""

MOST_NAMES = 10_000
"""Files that a stage may turn out to read if other machines are to get its outputs: each machine looks at them all."""

LARGEST_OUTPUTS = LARGEST_RECORD // 2
"""Bytes that the outputs of a stage may have together; larger ones are not kept."""

ANSWER = "answer.json"
"""Name of the file in the entry of an answer."""

EntryName = Annotated[str, that("the name of an entry", lambda name: ENTRY.fullmatch(name) is not None)]


@dataclass(frozen=True)
class FileInEntry:
    """A file in an entry: its name, how many bytes it has, and their digest."""

    name: Annotated[str, that("a name", is_file_name)]
    size: Count
    sha256: str


@dataclass(frozen=True)
class Header:
    """The line of an entry.

    Arguments:
        key: name of the entry.
        files: the files behind the line, in order; None: it has lists.
        lists: the sets of files that a stage was seen to read, the newest first; None: it has files.
        of: key of the stage that the lists belong to, if it is known.
        here: whether no other machine may have it.
        refers: the entries whose files travel with an answer -> names of these files.
        needs: further entries that an answer needs.
    """

    key: str
    files: tuple[FileInEntry, ...] | None = None
    lists: list[list[str]] | None = None
    of: str | None = None
    here: bool = False
    refers: Mapping[EntryName, tuple[str, ...]] = field(default_factory=dict)
    needs: tuple[EntryName, ...] = ()

    def __post_init__(self) -> None:
        if (self.files is None) == (self.lists is None):
            raise ValueError("either files or lists are expected")


FORM = ["cache 3", form_of(Header)]
"""A part of all keys. No key covers the code of the cache: if a mistake in that may have spoilt entries, change the
number."""


@dataclass(frozen=True)
class Wanted:
    """The files of an entry that are looked for.

    Arguments:
        names: the files that must be there.
        exactly: whether there must be no others.
    """

    names: frozenset[str]
    exactly: bool = True

    def require(self, contents: Mapping[str, bytes]) -> None:
        """Raise a ValueError if an entry has other files."""
        if not (contents.keys() == self.names if self.exactly else contents.keys() >= self.names):
            raise ValueError("the files of another stage")


HERE = {"here": True}
"""Further fields of the line of an entry that no other machine may have."""

AN_ANSWER = Wanted(frozenset([ANSWER]), exactly=False)
"""Fits the entry of an answer."""

ANYTHING = Wanted(frozenset(), exactly=False)
"""Fits any entry."""


def key_of(fingerprint: str, sources: Sequence[tuple[str, str]]) -> str:
    """Key of a stage.

    Arguments:
        fingerprint: everything besides the sources that decides the outputs.
        sources: name and SHA-256 of each source, in order.
    """
    return _digest([FORM, fingerprint, sources])


def question_key(question: Any) -> str:
    """Key of an answer. No stage can have the same key."""
    return _digest([FORM, "question", ANSWER, question])


def entry_key(key: str, later: Mapping[str, str]) -> str:
    """Key of a stage's outputs: the stage's key, and name and digest of each file that the stage read while it ran."""
    return _digest([key, sorted(later.items())])


def possible_entries(
    key: str, lists: Iterable[Iterable[str]], digest: Callable[[str], str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """The entries that a stage may have now: the key of each, and the files that it depends on, with their digests.

    The first one depends on no further files. So it is known before the first list is read.

    Arguments:
        key: of the stage.
        lists: the sets of files that the stage was seen to depend on.
        digest: gives the present digest of such a file.
    """
    yield entry_key(key, {}), {}
    for names in lists:
        later = {name: digest(name) for name in names}
        yield entry_key(key, later), later


def list_key(key: str) -> str:
    """Key of the entry that lists for a stage which files it turned out to read."""
    return _digest([key, "lists"])


def slot_key(key: str, slot: int) -> str:
    """Key of the remote entry that has the list of that number; the first may be the outputs themselves."""
    return _digest([key, "lists", slot]) if slot else entry_key(key, {})


def file_with_answer(entry: str, name: str) -> str:
    """Name, in the entry of an answer, of a file that comes with it: the build cache has that file in another entry."""
    return f"{entry}-{name}"


def _digest(value: Any) -> str:
    return _sha256(canonical_json(value).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_entry(place: Path, parse: Callable[[Header, bytes], Parsed]) -> Parsed:
    """What ``parse`` makes of the line and of the rest of an entry. Raises OSError or ValueError if it is damaged."""
    return open_entry(place.name, read_record(place), parse)


def open_entry(key: str, entry: bytes, parse: Callable[[Header, bytes], Parsed]) -> Parsed:
    """Like :func:`read_entry`, for an entry that was read already. Raises ValueError if it is damaged."""
    line, newline, data = entry.partition(b"\n")
    header = unsealed_record(line + newline, Header)
    if header.key != key:
        raise ValueError("an entry of another key")
    return parse(header, data)


def entry_with(name: str, contents: Mapping[str, bytes], more: Mapping[str, Any] | None = None) -> bytes:
    """An entry with files; ``more`` has further fields of its line."""
    files = tuple(FileInEntry(file, len(data), _sha256(data)) for file, data in contents.items())
    return b"".join([sealed_record(Header(name, files, **(more or {}))), *contents.values()])


def entry_with_lists(name: str, lists: list[list[str]], of: str | None = None) -> bytes:
    """An entry with lists; ``of`` is the key of the stage, if it is known."""
    return sealed_record(Header(name, lists=lists, of=of))


def wanted_files(files: Wanted, header: Header, data: bytes) -> dict[str, bytes]:
    """The files of an entry, if they are those that are looked for. Raises ValueError otherwise."""
    contents = files_in(header, data)
    files.require(contents)
    return contents


def files_or_list(files: Wanted, header: Header, data: bytes) -> dict[str, bytes] | list[str]:
    """The files of an entry, or its one list."""
    if header.lists is None:
        return wanted_files(files, header, data)
    lists = lists_in(header, data)
    if len(lists) != 1 or not lists[0]:
        raise ValueError("a slot has one list")
    if len(lists[0]) > MOST_NAMES:
        raise ValueError(f"a list of {len(lists[0]):,} names, and {MOST_NAMES:,} are the most")
    return lists[0]


def checked(header: Header, data: bytes) -> list[list[str]] | None:
    """The lists in an entry; None: it has outputs. Raises ValueError if either does not fit its line."""
    if header.lists is not None:
        return lists_in(header, data)
    files_in(header, data)
    return None


def whole(header: Header, data: bytes) -> bytes:
    """All bytes of an entry that was read. Raises ValueError if they do not fit its line."""
    checked(header, data)
    return sealed_record(header) + data


def lists_in(header: Header, data: bytes) -> list[list[str]]:
    """The lists of an entry. Raises ValueError if it has anything else."""
    if data or header.lists is None:
        raise ValueError("something else than lists")
    return header.lists


def files_in(header: Header, data: bytes) -> dict[str, bytes]:
    """The files of an entry. Raises ValueError if their sizes or contents are not those that its line lists."""
    files: dict[str, bytes] = {}
    for file in header.files or ():
        files[file.name], data = data[: file.size], data[file.size :]
        if len(files[file.name]) != file.size or _sha256(files[file.name]) != file.sha256:
            raise ValueError("the content does not fit its digest")
    if data or header.files is None:
        raise ValueError("something else than the files")
    return files
