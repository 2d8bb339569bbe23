"""The entries that a remote cache has. It can only be asked for names, and its objects never change.

So it has the lists of a stage in slots, one list in each, which are created one after the other. The first slot has the
same name as the entry of a stage that reads no further files: so one request tells, for any stage, what there is of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .entry import (
    AN_ANSWER,
    ANYTHING,
    MOST_LISTS,
    MOST_NAMES,
    Header,
    Wanted,
    entry_key,
    entry_with_lists,
    files_or_list,
    open_entry,
    slot_key,
)

if TYPE_CHECKING:
    from .remote_client import RemoteCache

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Compressed:
    """An answer as it came from the remote cache. Its signature was checked, and nothing else; it is not kept here yet.

    Arguments:
        key: of the question.
        later: what it turned out to depend on, with the digests.
        data: what ``state.remote_objects.decompressed`` takes.
    """

    key: str
    later: Mapping[str, str]
    data: bytes


def fetched(remote: RemoteCache, name: str, parse: Callable[[Header, bytes], Parsed]) -> tuple[bytes, Parsed] | None:
    """An entry of the remote cache, and what ``parse`` makes of it; None: there is none, or it is damaged.

    The user is told of damage.
    """
    entry = remote.get(name)
    if entry is None:
        return None
    try:
        return entry, open_entry(name, entry, functools.partial(from_afar, parse))
    except ValueError as error:
        remote.damaged(name, str(error), len(entry))
        return None


def from_afar(parse: Callable[[Header, bytes], Parsed], header: Header, data: bytes) -> Parsed:
    """What ``parse`` makes of an entry of others. We keep it, so any field that others may not set is damage."""
    if header != Header(header.key, header.files, header.lists):
        raise ValueError("it says more than an entry of others may")
    return parse(header, data)


def slots(
    remote: RemoteCache, key: str, files: Wanted, digest: Callable[[str], str]
) -> Iterator[tuple[dict[str, str], tuple[bytes, dict[str, bytes]] | None]]:
    """What the entries of a stage in the remote cache depend on, with the digests.

    An entry that depends on nothing more is in the first slot itself, and is given with its files. Others wrote the
    lists, and see from our next request what digests we have: so a list with a name that is none of their business
    counts as absent. So does a list after ``MOST_NAMES`` names were looked at.
    """
    names_left = MOST_NAMES
    for slot in range(MOST_LISTS):
        first = fetched(remote, slot_key(key, slot), functools.partial(files_or_list, files))
        if first is None:
            return
        entry, content = first
        if isinstance(content, list):
            names_left -= len(content)
            if names_left >= 0 and all(map(remote.may_ask, content)):
                yield {name: digest(name) for name in content}, None
        else:
            yield {}, (entry, content)
            return


def find_compressed(remote: RemoteCache, key: str, digest: Callable[[str], str]) -> Compressed | None:
    """An answer that depends on something, as the remote cache has it; None: there is none."""
    for later, whole in slots(remote, key, AN_ANSWER, digest):
        data = None if whole else remote.get_compressed(entry_key(key, later))
        if data is not None:
            return Compressed(key, later, data)
    return None


def send_list(remote: RemoteCache, key: str, names: list[str]) -> None:
    """Put a list of files into the first free slot of a stage, unless a slot has it already, or it is too long."""
    if len(names) > MOST_NAMES:
        return
    for slot in range(MOST_LISTS):
        name = slot_key(key, slot)
        there = fetched(remote, name, functools.partial(files_or_list, ANYTHING))
        if there is None and remote.put(name, entry_with_lists(name, [names])):
            return
        # Another process may have filled the slot meanwhile, perhaps with the same list.
        there = there or fetched(remote, name, functools.partial(files_or_list, ANYTHING))
        if there is not None and there[1] == names:
            return
