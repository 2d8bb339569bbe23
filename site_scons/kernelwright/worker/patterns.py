"""Finds the project files that a pattern matches, and the folders that have to be listed for that."""

from __future__ import annotations

import fnmatch
import glob
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.files import folder_names


def pattern_files(root: Path, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The files that match a pattern, and, with a slash at the end, the folders whose listings decide that.

    What a part without a wildcard names need not be there. ``**`` stands for any number of folders; at the
    end it stands for all files below. A wildcard matches only names that count in a folder's listing, none of which
    begins with a dot.

    Arguments:
        root: the project root.
        folder: path relative to it, with forward slashes; ``.`` is the root.
        parts: the parts of the pattern, such as ``["tables", "*.json"]``.
    """
    first, rest = parts[0], parts[1:]
    if first == "**":
        for below in _folders_below(root, folder):
            yield _below(below, "")
            yield from pattern_files(root, below, rest or ["*"])
    elif glob.has_magic(first):
        yield _below(folder, "")
        for name in fnmatch.filter(folder_names(root, _below(folder, "")) or [], first):
            path = _below(folder, name)
            if rest and (root / path).is_dir():
                yield from pattern_files(root, path, rest)
            elif not rest and (root / path).is_file():
                yield path
    elif rest:
        yield from pattern_files(root, _below(folder, first), rest)
    else:
        yield _below(folder, first)


def _folders_below(root: Path, folder: str) -> Iterator[str]:
    """A folder and all folders below it; a symbolic link to a folder is not followed, since it may lead upwards."""
    yield folder
    for name in folder_names(root, _below(folder, "")) or []:
        path = _below(folder, name)
        if (root / path).is_dir() and not (root / path).is_symlink():
            yield from _folders_below(root, path)


def _below(folder: str, name: str) -> str:
    """``folder/name``, and ``folder/`` for no name."""
    return posixpath.join(folder, name) if folder != "." or not name else name


__all__ = ["pattern_files"]
