"""The names of what builds depend on: what each stands for, and the digest of what is there now.

A file of the project has its path relative to the top, any other file its absolute one. What differs in place from
machine to machine, and from environment to environment, has a name of its own: a variable or a distribution (see
``surroundings``), or a file in an installed package, whose folder is looked for as the compiler's flags have it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from .files import dependency_digest
from .surroundings import FOLDER, surrounding_digest

IN_PACKAGE = "package:"
"""What the name of a folder or of a source begins with that is in an installed package: ``package:cutlass/include``.

The name of a file in such a folder is a slash, the folder's name, two slashes, and the path in it."""


def present_digest(top: Path, name: str) -> str:
    """The digest of what something depends on, as it is now; empty if that is absent.

    Arguments:
        top: the project's folder.
        name: of a file, a folder, a variable, a distribution, or of the place of the project.
    """
    if name == FOLDER:
        return hashlib.sha256(os.fsencode(top)).hexdigest()
    digest = surrounding_digest(name)
    if digest is not None:
        return digest
    root, rest = _place_of(top, name)
    return "" if root is None else dependency_digest(root, rest)


def is_file(name: str) -> bool:
    """Whether a name is that of a file or a folder, whose stamp tells a change."""
    return name != FOLDER and surrounding_digest(name) is None


def path_of(top: Path, name: str) -> Path:
    """The path of a file or a folder; it need not exist."""
    root, rest = _place_of(top, name)
    return Path(root or "/nonexistent", rest)


def dependency_name(path: Path, top: Path, folders: Mapping[str, str]) -> str:
    """The name of a file.

    Arguments:
        path: its absolute path.
        top: the project's folder.
        folders: folders in installed packages: absolute path -> name, such as ``package:cutlass/include``.
    """
    text = str(path)
    inside = [folder for folder in folders if text.startswith(f"{folder}/")]
    # What a header includes by a path may be beside the folder.
    tops = {folder: folder.removesuffix(name.removeprefix(IN_PACKAGE)) for folder, name in folders.items()}
    beside = [folder for folder, installed_in in tops.items() if text.startswith(installed_in)]
    for folder in (*sorted(inside, key=len, reverse=True), *beside):
        return f"/{folders[folder]}//{os.path.relpath(text, folder)}"
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else path.as_posix()


def installed_name(path: Path) -> str:
    """The name of a file that is a part of a tool: in an installed package, if that is where it is."""
    for top in map(Path, filter(None, sys.path)):
        if path.is_relative_to(top):
            folder = path.parent.relative_to(top).as_posix()
            return f"/{IN_PACKAGE}{folder}//{path.name}" if packaged_folder(folder) == path.parent else str(path)
    return str(path)


@cache
def packaged_folder(name: str) -> Path:
    """The folder of that name, which begins with that of an installed package; nothing is imported.

    Raises:
        FileNotFoundError: there is none.
    """
    for top in sys.path:
        path = Path(top or ".", name)
        if path.is_dir():
            return path.absolute()
    raise FileNotFoundError(name)


def _place_of(top: Path, name: str) -> tuple[Path | None, str]:
    """The folder that a name is relative to, and its path in that; None: there is no such folder."""
    if not name.startswith(f"/{IN_PACKAGE}"):
        return top, name
    folder, _, path = name.removeprefix(f"/{IN_PACKAGE}").partition("//")
    try:
        return packaged_folder(folder), path
    except (OSError, ValueError):  # ValueError: there is a NUL in the name
        return None, path
