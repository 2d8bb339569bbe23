"""What all caches do with their folders: mark them as ours, note what is used, and remove what was used least recently.

A folder without the mark may be somebody's, and nothing is ever removed in it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from ..core.errors import SettingsError, Where
from ..core.files import SCRATCH, held_folder, read_record, write_atomically

TAG = "CACHEDIR.TAG"
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"
"""How every CACHEDIR.TAG begins, by which backup programs know a cache (https://bford.info/cachedir/)."""

OWN = "# A build cache of Kernelwright"
"""What follows in the tags of our caches: other programs write CACHEDIR.TAG, too."""


def require_own(folder: Path, what: str, setting: str, has_ours: Callable[[Collection[str]], bool]) -> None:
    """Raise a SettingsError if a folder has files of others: a cache removes what is in its folder by name alone.

    Arguments:
        what: what is to be in the folder.
        setting: the setting that names the folder.
        has_ours: whether a folder with these names in it can only be such a cache. Then its tag is damaged or was
            removed, and the next write makes a new one.
    """
    where = Where(stage="settings")
    try:
        found = [path.name for path in folder.iterdir() if not path.name.startswith(SCRATCH)]
    except OSError as error:
        if isinstance(error, NotADirectoryError) or folder.is_symlink():
            message = f"the {what} cannot be in {folder}: that is no folder"
            raise SettingsError(message, where, f"set {setting} to a folder") from error
        return  # there is no folder yet; any other error shows at the first write
    # The tag is looked for last: a process that makes the cache at this moment writes it first.
    if found and not is_own(folder) and not has_ours({*found} - {TAG}):
        message = f"the {what} cannot be in {folder}: that has other things in it, such as {found[0]!r}"
        raise SettingsError(message, where, f"set {setting} to a folder that is new or empty")


def is_own(folder: Path) -> bool:
    """Whether a folder is marked as a cache of ours."""
    try:
        text = read_record(folder / TAG).decode()
    except (OSError, UnicodeDecodeError):
        return False
    return text.startswith(SIGNATURE) and OWN in text


def mark_own(folder: Path) -> None:
    """Mark a folder as ours, and make it if need be. Raises OSError if that is not possible."""
    if not is_own(folder):
        write_atomically(folder / TAG, f"{SIGNATURE}{OWN}; it is safe to delete.\n")


class Removable(NamedTuple):
    """Something in a cache that can be made again.

    Arguments:
        size: in bytes.
        used: time of the last use, in seconds since 1970.
        remove: removes it.
    """

    size: int
    used: float
    remove: Callable[[], None]


def remove_oldest(items: Iterable[Removable], limit: int, before: float = math.inf) -> int:
    """Remove what was used least recently until no more than ``limit`` bytes are left.

    Arguments:
        before: what was used at this time or later stays; in seconds since 1970.

    Returns:
        How many bytes were removed.
    """
    oldest_first = sorted(items, key=lambda item: item.used)
    excess, removed = sum(item.size for item in oldest_first) - limit, 0
    for item in oldest_first:
        if removed >= excess or item.used >= before:
            break
        item.remove()
        removed += item.size
    return removed


def mark_used(place: Path) -> None:
    """Note that a file or a folder of a cache is used now, if it may be written. No link is followed."""
    with contextlib.suppress(OSError), held_folder(place.parent) as held:
        if os.access(held / place.name, os.W_OK):  # the owner could also change the time of a read-only file
            os.utime(held / place.name, follow_symlinks=False)
