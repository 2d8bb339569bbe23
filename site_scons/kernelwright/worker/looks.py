"""Tells what a program asks about files without opening them, about processors, and about the working folder.

Python has no audit events for ``os.stat`` and what is made of it, such as ``os.path.exists``. So functions of ``os``
are replaced. What another module has taken out of ``os`` before, and what C code does, is not seen.
"""

from __future__ import annotations

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
"""Where the functions of ``os.path`` and of paths are."""

_OF_KIND = frozenset(
    ("exists", "lexists", "isfile", "isdir", "islink", "is_file", "is_dir", "is_symlink", "access", "readlink")
)
"""What depends only on whether there is something, and what kind of thing it is."""

_OF_CONTENT = frozenset(("stat", "lstat", "getsize", "getmtime", "getatime", "getctime", "samefile"))
"""What may change with a file's content."""


PLACES = ("getcwd", "getcwdb")
"""Functions of ``os`` that tell the working folder. Those of ``os.path`` and of paths ask them of a relative path."""


def watch_looks(
    look: Callable[[Any, CodeType, bool], None], count: Callable[[CodeType], None], place: Callable[[CodeType], None]
) -> None:
    """Have functions called for each question from now on; there is no way back.

    Arguments:
        look: is told the path, the code that asks, and whether the answer may change with the content of the file.
        count: is told the code that asks how many processors there are.
        place: is told the code that asks where the working folder is.
    """

    def told_of_place(frame: FrameType | None, *arguments: Any) -> None:
        while frame is not None and _is_asking(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            place(frame.f_code)

    def told_of_path(name: str, frame: FrameType | None, path: Any) -> None:
        asked = name
        while frame is not None and _is_asking(frame.f_code):
            asked, frame = frame.f_code.co_name, frame.f_back
        if frame is not None and asked in _OF_KIND | _OF_CONTENT:
            look(path, frame.f_code, asked in _OF_CONTENT)

    for name in FUNCTIONS:
        _replace(name, functools.partial(told_of_path, name))
    for name in COUNTS:
        _replace(name, lambda frame, *arguments: count(frame.f_code) if frame is not None else None)
    for name in PLACES:
        _replace(name, told_of_place)


def _is_asking(code: CodeType) -> bool:
    file = code.co_filename
    return file in _FILES or file in _FROZEN or file.startswith(_PATHLIB)


_PATHLIB = f"{os.path.dirname(pathlib.__file__)}/pathlib/"  # noqa: PTH120 (a package from Python 3.13 on)


def _replace(name: str, tell: Callable[..., None]) -> None:
    """Put a function in the place of one of ``os``, which tells of each call."""
    original = getattr(os, name)

    @functools.wraps(original)
    def replaced(*arguments: Any, **named: Any) -> Any:
        tell(sys._getframe(1), *arguments[:1])
        return original(*arguments, **named)

    setattr(os, name, replaced)
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in supporting:
            supporting.add(replaced)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10, which has taken them out of os
    if hasattr(accessor, name):
        setattr(accessor, name, staticmethod(replaced))
