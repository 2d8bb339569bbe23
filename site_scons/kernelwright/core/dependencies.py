"""The names of dependencies: what each name stands for, and the present digest of that.

A file of the project has its path relative to the top, and so has one of the repository that the project is in:
``../common/tiles.py``. What differs in place from machine to machine, and from environment to environment, has a name
of its own: a variable or a distribution (see ``surroundings``), or a file that is found in the search path of Python,
such as one of an installed package. Any other file has its absolute path, which means nothing elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from .files import dependency_digest
from .surroundings import FOLDER, INSTALLED, OUTSIDE, PASSED_ON, VARIABLE, installed_record, surrounding_digest

IN_PACKAGE = "package:"
"""What the name of a folder or of a source begins with that is in an installed package: ``package:cutlass/include``.

The name of a file in such a folder is a slash, the folder's name, two slashes, and the path in it. The folder ``.``
stands for all folders of the search path: the file is the first one of that name."""

KIND = "/kind/"
"""What a name begins with that stands for what kind of thing there is, and not for its content; another one follows."""

SOFTWARE = ("/usr/", "/opt/")
"""Where software is installed: at the same place on machines that have the same, and it is nobody's secret."""

EDITED = "edited while it was read"
"""In place of the digest of a file; no file has it, so that what was made of it is made again."""


@cache
def repository_around(folder: Path) -> Path | None:
    """The nearest folder with a ``.git``, of a folder and those around it; None: there is none.

    One that has the user's home folder in it counts as none: people keep their configuration in such a repository, and
    what else is at home is not a part of the project.
    """
    found = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    return None if found is None or Path(os.path.expanduser("~")).is_relative_to(found) else found  # noqa: PTH111


def present_digest(top: Path, name: str) -> str:
    """The present digest of a dependency; empty if it is absent.

    Arguments:
        top: the project's folder.
        name: of a file, a folder, a variable, a distribution, or of the place of the project.
    """
    if name.startswith(KIND):
        return kind_digest(path_of(top, name))
    if name == FOLDER:
        return hashlib.sha256(os.fsencode(top)).hexdigest()
    digest = surrounding_digest(name)
    if digest is not None:
        return digest
    root, rest = _place_of(top, name)
    return "" if root is None else dependency_digest(root, rest)


def kind_digest(path: Path) -> str:
    """A digest of what kind of thing is there, and where it leads if it is a link; empty if there is nothing."""
    try:
        target = path.readlink() if path.is_symlink() else None
        kind = "folder" if path.is_dir() else "file" if path.is_file() else "other" if path.exists() else "nowhere"
        is_there = target is not None or kind != "nowhere"
    except (OSError, ValueError):  # ValueError: there is a NUL in the name
        return ""
    return hashlib.sha256(os.fsencode(f"{kind} {target}")).hexdigest() if is_there else ""


def whole_name(name: str) -> str:
    """Another name of a definition file, for a lowering that looks into it: it depends on what checks call, too."""
    return f"./{name}"


def is_file(name: str) -> bool:
    """Whether a name is that of a file or a folder."""
    return name not in (FOLDER, OUTSIDE) and not name.startswith((VARIABLE, INSTALLED))


def has_file(name: str) -> bool:
    """Whether the stamp of a file tells a change: of it, or of what pip has recorded of a distribution."""
    return is_file(name) or name.startswith(INSTALLED)


def path_of(top: Path, name: str) -> Path:
    """The path of the file or the folder whose stamp tells a change of something; it need not exist."""
    if name.startswith(INSTALLED):
        return installed_record(name.removeprefix(INSTALLED)) or Path("/nonexistent")
    name = name.removeprefix(KIND)
    root, rest = _place_of(top, name)
    return Path(root or "/nonexistent", rest)


def is_portable(name: str) -> bool:
    """Whether a name means the same on another machine, so that what depends on it may be given to others."""
    name = name.removeprefix(KIND)
    return name != OUTSIDE and (not name.startswith("/") or name.startswith(_PORTABLE))


_PORTABLE = (VARIABLE, INSTALLED, FOLDER, f"/{IN_PACKAGE}", *SOFTWARE)


def may_be_asked(top: Path, name: str, variables: Collection[str] = PASSED_ON) -> bool:
    """Whether others may ask for the digest of a dependency, which tells them something about its content.

    They may name what is in the repository, in packages and in folders of installed software, and the variables that
    definitions see. They may not name what hides: keys and tokens are in such files.

    Arguments:
        name: as of :func:`present_digest`, but who wrote it is not known.
        variables: the names of the variables that definitions see.
    """
    name = name.removeprefix(KIND)
    if "\0" in name or not is_portable(name):
        return False
    if name.startswith(VARIABLE):
        variable = name.removeprefix(VARIABLE)
        return variable in variables or variable not in os.environ  # that it is absent, a definition may ask
    if name == FOLDER or name.startswith(INSTALLED):
        return True
    if name.startswith(f"/{IN_PACKAGE}"):
        place = posixpath.normpath(name.removeprefix(f"/{IN_PACKAGE}"))
        return not place.startswith(("/", "../")) and not _is_hidden(place)
    place = posixpath.normpath(name)
    if not place.startswith(("/", "../")) and place != "..":
        return ".git" not in place.split("/")
    repository = repository_around(top)
    is_ours = repository is not None and Path(posixpath.normpath(top / place)).is_relative_to(repository)
    return (is_ours or place.startswith(SOFTWARE)) and not _is_hidden(place)


def _is_hidden(place: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in place.split("/"))


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
    if path.is_relative_to(top):
        return path.relative_to(top).as_posix()
    repository = repository_around(top)
    is_ours = repository is not None and path.is_relative_to(repository)
    return Path(os.path.relpath(path, top)).as_posix() if is_ours else path.as_posix()


def installed_name(path: Path) -> str:
    """The name of a file that is a part of a tool: in an installed package, if that is where it is."""
    return found_name(str(path), sys.path) or str(path)


def found_name(path: str, search_path: Iterable[str]) -> str | None:
    """The name of a file or a folder that is found in a search path; None: another one is found by that name, or none.

    The name of a file that does not exist stands for what is found in its place: it will be that file, if that comes
    into being where it comes first.

    Arguments:
        path: its absolute path.
    """
    for top in filter(None, search_path):
        if path.startswith(top.rstrip(os.sep) + os.sep):
            folder, name = os.path.split(os.path.relpath(path, top))
            name = f"/{IN_PACKAGE}{folder or '.'}//{name}"
            root, rest = _place_of(Path(top), name)
            is_found = root is None or os.path.join(root, rest) == path  # noqa: PTH118
            return name if is_found or not os.path.lexists(path) else None
    return None


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
    if folder == ".":
        places = (Path(place) for place in filter(None, sys.path) if os.path.lexists(os.path.join(place, path)))  # noqa: PTH118
        return next(places, None), path
    try:
        return packaged_folder(folder), path
    except (OSError, ValueError):  # ValueError: there is a NUL in the name
        return None, path
