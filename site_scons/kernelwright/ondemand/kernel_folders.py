"""Folders of compiled kernels in a cache: their names, how one is found, and what is wrong with a damaged one.

Some files that decide a kernel are known only when its stages have run, as with the headers of a CUDA compiler. So a
kernel is looked up in two steps, as an entry of the build cache is (``state/entry.py``). The name of a folder begins
with the name of the kernel and the key of what was asked for. ``later.json`` in it lists the files that the stages have
read. The key, those names and the present digests of the files give the key of the kernel itself, with which the name
ends.

The build cache keeps its lists in entries of their own, because an entry there is one file. Here each folder has its
own list, so that it goes with the kernel. An entry of the build cache is replaced by a rename. A folder that has files
cannot be: so the first one stays, and only a damaged one makes way.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import held_folder, read_record, sha256_of
from ..runtime.loader import DamageError, manifest_in
from ..state.entry import MOST_LISTS, possible_entries

LATER = "later.json"
"""The file of a kernel's folder that lists which files its stages turned out to read, with their digests."""

REQUEST = "request.json"
"""The file of a kernel's folder that says part by part what was asked for, for people."""

KEY_SHOWN = 16
"""Digits of a key that are in names of folders; the whole key is in the manifest, under ``key``."""

LONGEST_NAME = 200
"""Characters of a kernel's name, or of a kernel and a variant, that are in the name of a folder."""

AGAIN = "compile it again"
"""The remedy for a kernel whose files are damaged."""


class StoredAs(NamedTuple):
    """A compiled kernel in the cache: its folder, its whole key, and what its stages turned out to read."""

    folder: Path
    key: str
    later: Mapping[str, str]


def kernel_folder(root: Path, name: str, key: str, entry: str) -> Path:
    """The folder of a compiled kernel in a cache, by the key of what was asked for and by its own."""
    return root / "kernels" / f"{folder_name(name, key)}-{entry[:KEY_SHOWN]}"


def folder_name(name: str, key: str) -> str:
    """The name of a folder for a kernel, readable and different for each key."""
    return f"{name[:LONGEST_NAME]}-{key[:KEY_SHOWN]}"


def find_kernel(roots: Iterable[Path], name: str, key: str, current: Callable[[str], str]) -> StoredAs | None:
    """A compiled kernel in one of several caches; see :meth:`.store.KernelStore.find`."""
    for entry, later in possible_entries(key, _lists(roots, name, key), functools.cache(current)):
        for root in roots:
            found = kernel_folder(root, name, key, entry)
            if later_of(found) == later and has_key(found, entry):
                return StoredAs(found, entry, later)
    return None


def _lists(roots: Iterable[Path], name: str, key: str) -> Iterator[tuple[str, ...]]:
    """The sets of files that stages turned out to read for a key; those used last first."""
    begin, folders = f"{folder_name(name, key)}-", list[tuple[float, Path]]()
    for root in roots:
        with contextlib.suppress(OSError), os.scandir(root / "kernels") as items:
            folders += [(item.stat().st_mtime, Path(item.path)) for item in items if item.name.startswith(begin)]
    lists = (tuple(sorted(later_of(folder) or ())) for _, folder in sorted(folders, reverse=True))
    yield from list(dict.fromkeys(filter(None, lists)))[:MOST_LISTS]


def later_of(folder: Path) -> dict[str, str] | None:
    """The files that the stages of a compiled kernel turned out to read, and their digests; None: there is no list."""
    try:
        listed = json.loads(read_record(folder / LATER))
        return {str(name): str(digest) for name, digest in listed.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def request_of(folder: Path) -> dict[str, str] | None:
    """What was asked for, part by part, when a kernel was compiled; None: nobody knows."""
    try:
        return {str(name): str(text) for name, text in json.loads(read_record(folder / REQUEST)).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def has_key(folder: Path, key: str) -> bool:
    """Whether a folder has an intact manifest with that key."""
    try:
        return bool(manifest_of(folder).get("key") == key)
    except DamageError:
        return False


def damage(folder: Path) -> list[str]:
    """What is wrong with a kernel's folder: a line for each file that is missing or altered; empty: it is intact."""
    manifest = folder / "manifest.json"
    try:
        files = manifest_of(folder).get("files")
    except DamageError as error:
        return [error.problem]
    if not isinstance(files, dict):
        return [f"{manifest}: lists no files"]
    problems = []
    for relative, listed in files.items():
        if relative.startswith("/") or ".." in relative.split("/"):
            problems.append(f"{manifest}: lists {relative!r}, which is outside of the folder")
            continue
        try:
            intact = isinstance(listed, dict) and _is_as_listed(folder / relative, listed)
        except (OSError, ValueError) as error:
            problems.append(f"{folder / relative}: cannot be read ({getattr(error, 'strerror', None) or error})")
            continue
        if not intact:
            problems.append(f"{folder / relative}: was altered")
    return problems


def _is_as_listed(file: Path, listed: Mapping[str, Any]) -> bool:
    """Whether this is a file of the size and digest that a manifest lists; one of another size is not read."""
    status = file.lstat()
    is_same_size = stat.S_ISREG(status.st_mode) and status.st_size == listed.get("size")
    return is_same_size and sha256_of(file) == listed.get("sha256")


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a kernel. Raises DamageError if it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        return manifest_in(read_record(path), path)
    except OSError as error:
        raise DamageError(f"{path}: cannot be read ({error.strerror})") from error


def put(made: Path, place: Path) -> bool:
    """Give a folder its place by renaming it; False: something is there already.

    Raises:
        OSError: it cannot be put there, as when a link is in place of the parent folder.
    """
    try:
        with held_folder(place.parent) as held:
            made.rename(held / place.name)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        return False
    return True


def folders_in(parent: Path) -> Iterator[Path]:
    """The folders in a folder of a cache whose names end with a key. Links do not count."""
    if parent.is_symlink():
        return
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            tail = path.name.rpartition("-")[2]
            made_here = len(tail) == KEY_SHOWN and not set(tail) - set("0123456789abcdef")
            if made_here and path.is_dir() and not path.is_symlink():
                yield path


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder and in those below it. Raises OSError if one disappears meanwhile."""
    return sum(_file_sizes(folder).values())


def _file_sizes(folder: Path) -> dict[int, int]:
    """Inode -> bytes: the library of a kernel is in two places, and takes room once."""
    sizes: dict[int, int] = {}
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                sizes |= _file_sizes(Path(item.path))
            else:
                sizes[item.inode()] = item.stat(follow_symlinks=False).st_size
    return sizes
