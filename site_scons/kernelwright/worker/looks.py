"""Reports what a program asks about files without opening them, about processors, and about the working folder.

Python has no audit events for ``os.stat``, nor for functions that use it, such as ``os.path.exists``. So functions of
``os`` are replaced. Modules that imported these functions before, and C code, are not seen.
"""

from __future__ import annotations

import contextlib
import functools
import genericpath
import os
import pathlib
import posixpath
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

FUNCTIONS = ("stat", "lstat", "access", "readlink")
"""Functions of ``os`` that are asked about a path."""

COUNTS = ("cpu_count", "sched_getaffinity")
"""Functions of ``os`` that are asked about the machine."""

_FILES = frozenset((genericpath.__file__, posixpath.__file__, pathlib.__file__))
_FROZEN = frozenset(("<frozen genericpath>", "<frozen posixpath>"))
"""The files of ``os.path`` and ``pathlib``, as their code names them."""

_OF_KIND = frozenset(
    ("exists", "lexists", "isfile", "isdir", "islink", "is_file", "is_dir", "is_symlink", "access", "readlink")
)
"""Functions whose answer depends only on whether there is something, and on what kind of thing it is."""

_OF_CONTENT = frozenset(("stat", "lstat", "getsize", "getmtime", "getatime", "getctime", "samefile"))
"""Functions whose answer may change with a file's content."""


PLACES = ("getcwd", "getcwdb")
"""Functions of ``os`` that return the working folder. ``os.path`` and ``pathlib`` call them for a relative path."""


def watch_looks(
    look: Callable[[Any, CodeType, bool], None],
    count: Callable[[CodeType], None],
    place: Callable[[CodeType], None],
    opened: Callable[[str, int], None],
) -> None:
    """Call these functions for each question from now on. This cannot be undone.

    Arguments:
        look: gets the path, the code that asks, and whether the answer may change with the content of the file.
        count: gets the code that asks how many processors there are.
        place: gets the code that asks where the working folder is.
        opened: gets the full path of a file that is opened relative to an open folder, and the flags.
    """

    def told_of_place(frame: FrameType | None, *arguments: Any) -> None:
        while frame is not None and _is_asking(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            place(frame.f_code)

    def told_of_path(
        name: str, frame: FrameType | None, path: Any, *mode: int, dir_fd: int | None = None, **others: bool
    ) -> None:
        asked, path = name, path if dir_fd is None else _below(dir_fd, path)
        while frame is not None and _is_asking(frame.f_code):
            asked, frame = frame.f_code.co_name, frame.f_back
        if path is not None and frame is not None and asked in _OF_KIND | _OF_CONTENT:
            look(path, frame.f_code, asked in _OF_CONTENT)

    def told_of_count(frame: FrameType | None, *arguments: Any) -> None:
        if frame is not None:
            count(frame.f_code)

    for name in FUNCTIONS:
        _replace(name, functools.partial(told_of_path, name))
    for name in COUNTS:
        _replace(name, told_of_count)
    for name in PLACES:
        _replace(name, told_of_place)

    def told_of_open(
        frame: FrameType | None, path: Any, flags: int, *mode: int, dir_fd: int | None = None, **others: int
    ) -> None:
        if dir_fd is not None and (full := _below(dir_fd, path)) is not None:
            opened(full, flags)

    _replace("open", told_of_open)


def place_of(descriptor: int) -> str | None:
    """The path of an open file or folder; None if it has none, as a pipe."""
    try:
        path = _READLINK(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if path.startswith(os.sep) else None


_READLINK = os.readlink


def path_in(value: Any) -> str | None:
    """A function's argument as a path; None if it is a file descriptor, or nothing that can be a path."""
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else None


def _below(folder: int, path: Any) -> str | None:
    """The full path of a path that is relative to an open folder; None if it cannot be told."""
    place = place_of(folder)
    return None if place is None or isinstance(path, int) else os.path.join(place, os.fsdecode(path))  # noqa: PTH118


def _is_asking(code: CodeType) -> bool:
    file = code.co_filename
    return file in _FILES or file in _FROZEN or file.startswith(_PATHLIB)


_PATHLIB = f"{os.path.dirname(pathlib.__file__)}/pathlib/"  # noqa: PTH120 (a package from Python 3.13 on)


def _replace(name: str, tell: Callable[..., None]) -> None:
    """Replace a function of ``os`` by one that reports each call."""
    original = getattr(os, name)

    @functools.wraps(original)
    def replaced(*arguments: Any, **named: Any) -> Any:
        # A call with wrong arguments raises an error of its own below.
        with contextlib.suppress(TypeError):
            tell(sys._getframe(1), *arguments, **named)
        return original(*arguments, **named)

    setattr(os, name, replaced)
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in supporting:
            supporting.add(replaced)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10, which holds the functions of os
    if hasattr(accessor, name):
        setattr(accessor, name, staticmethod(replaced))
