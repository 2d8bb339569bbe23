"""Sees what a definition opens, lists and starts.

Python calls an audit hook for all of that. It does not call it for ``os.stat``, nor for functions that use it, such as
``os.path.exists``: ``questions`` sees those. Nothing sees what C++ code does.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import glob
import os
import posixpath
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.dependencies import present_digest
from ..define import recorded
from .looks import path_in, place_of
from .patterns import pattern_files
from .reads import ReadRecorder, Reads
from .strict import FORBIDDEN_EVENTS, Strict


class Events:
    """The audit hook.

    Arguments:
        root: the project root.
        recorder: notes what is read.
        strict: judges what a strict definition does.
    """

    def __init__(self, root: Path, recorder: ReadRecorder, strict: Strict) -> None:
        self._root = root
        self._recorder = recorder
        self._strict = strict
        self._handlers: dict[str, Callable[[Reads, tuple[Any, ...]], None]] = {
            **{event: partial(self._forbidden, event) for event in FORBIDDEN_EVENTS},
            "open": self._opened,
            "ctypes.dlopen": self._loaded,
            "sqlite3.connect": self._loaded,
            "os.listdir": self._listed,
            "os.scandir": self._listed,
            "os.mkdir": self._made_folder,
            "os.rename": self._renamed,
            "glob.glob/2": self._globbed,
            "pathlib.Path.glob": lambda reads, arguments: self._matched(reads, str(arguments[0]), str(arguments[1])),
            "pathlib.Path.rglob": lambda reads, arguments: self._matched(
                reads, str(arguments[0]), f"**/{arguments[1]}"
            ),
        }

    def watch(self) -> None:
        """Have Python call the hook from now on. This cannot be undone."""
        sys.addaudithook(self._hook)
        _watch_starts()

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (handler := self._handlers.get(event)) is not None:
            with self._recorder.noting() as reads:
                if reads is not None:
                    handler(reads, arguments)

    def opened_in_folder(self, path: str, flags: int) -> None:
        """Note a file that is opened relative to an open folder: the audit event does not tell the folder."""
        self._hook("open", (path, None, flags))

    def _forbidden(self, event: str, reads: Reads, arguments: tuple[Any, ...]) -> None:
        self._strict.note_event(self._recorder.beyond(reads), event, arguments)

    def _opened(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path, mode, flags = path_in(arguments[0]), arguments[1], arguments[2]
        if path is None:
            return
        full = os.path.abspath(path)  # noqa: PTH100
        if _is_making(full, mode, flags):
            reads.made.add(full)
        elif _is_reading(mode, flags) and not _is_unclear(path, mode):
            self._refuse_bytecode(full)
            self._read(reads, full)

    def _loaded(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        """Note a shared library or a database. A name that is no file is a library of the system, or ``:memory:``."""
        path = path_in(arguments[0])
        if path is not None and os.path.isfile(path):  # noqa: PTH113
            self._read(reads, os.path.abspath(path))  # noqa: PTH100

    def _read(self, reads: Reads, full: str) -> None:
        name = None if os.path.isdir(full) else self._used(reads, full, "reads")  # noqa: PTH112
        if name is not None and _caller().f_code.co_filename == recorded.__file__:
            reads.recorded.setdefault(name, present_digest(self._root, name))
        elif name is not None:
            self._recorder.note_content(reads, name)
            if _is_by_import("get_code"):
                reads.modules.add(name)
            elif reads.strict and name not in reads.modules:
                self._strict.note_undeclared(reads.findings, name)

    def _used(self, reads: Reads, full: str, verb: str) -> str | None:
        """The name of a user's file or folder that is read or listed, or None. What the system makes up is noted."""
        if reads.has_made(full):
            return None
        name = self._recorder.used_name(reads, full)
        if name is None and self._recorder.name_of(full) is None:
            self._strict.note_outside(self._recorder.beyond(reads), verb, full)
        return name

    def _refuse_bytecode(self, full: str) -> None:
        """Have Python's own loader compile the source of a user's module: its bytecode may be of an older source.

        Python's own loader runs if a definition loads a file itself, with ``spec_from_file_location``.
        """
        folder, name = os.path.split(full)
        is_bytecode = name.endswith(".pyc") and os.path.basename(folder) == "__pycache__"  # noqa: PTH119
        source = os.path.join(os.path.dirname(folder), "_")  # noqa: PTH118, PTH120
        if is_bytecode and self._recorder.name_of(source) is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)

    def _listed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path = place_of(arguments[0]) if isinstance(arguments[0], int) else path_in(arguments[0] or ".")
        if path is None or _is_by_import("_fill_cache"):
            return  # our finder has noted what an import depends on
        if (name := self._used(reads, os.path.abspath(path), "lists")) is not None:  # noqa: PTH100
            self._recorder.note_listing(reads, name)

    def _made_folder(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path = path_in(arguments[0])
        if path is not None and not os.path.lexists(path):
            reads.made.add(os.path.abspath(path))  # noqa: PTH100

    def _renamed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        source, destination = path_in(arguments[0]), path_in(arguments[1])
        if source is not None and destination is not None and reads.has_made(os.path.abspath(source)):  # noqa: PTH100
            reads.made.add(os.path.abspath(destination))  # noqa: PTH100

    def _globbed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        pattern, _, folder, descriptor = arguments
        if descriptor is None:
            self._matched(reads, os.fsdecode(folder or "."), os.fsdecode(pattern))

    def _matched(self, reads: Reads, folder: str, pattern: str) -> None:
        """Note what a glob looks for besides listing folders: for ``*/b/x`` the file ``b/x`` in each folder."""
        parts = Path(os.path.abspath(folder), pattern).parts  # noqa: PTH100
        fixed = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        name = self._recorder.used_name(reads, str(Path(*parts[:fixed])))
        if name is None:
            return
        for path in pattern_files(self._root, name, parts[fixed:]):
            if path.endswith("/"):
                self._recorder.note_listing(reads, posixpath.normpath(path))
            elif not glob.has_magic(parts[-1]):
                self._recorder.note(reads, path)


def _watch_starts() -> None:
    """Raise the audit event also for processes that ``multiprocessing`` starts: Python 3.14 does not."""
    original = _posixsubprocess.fork_exec

    def fork_exec(command: Any, *arguments: Any) -> int:
        sys.audit("subprocess.Popen", None, command, None, None)
        return int(original(command, *arguments))

    _posixsubprocess.fork_exec = fork_exec


def _is_making(full: str, mode: Any, flags: int) -> bool:
    """Whether whoever opens the file will have written all of its content."""
    if isinstance(mode, str):
        empties, creates = "w" in mode, bool(set(mode) & set("ax"))
    else:
        empties, creates = bool(flags & os.O_TRUNC), bool(flags & os.O_CREAT)
    return empties or (creates and not os.path.lexists(full))


def _is_reading(mode: Any, flags: int) -> bool:
    """Whether a file is opened to be read. A file that is only created, written or appended to is an output."""
    if isinstance(mode, str):
        return "r" in mode or "+" in mode
    access = flags & os.O_ACCMODE
    return (access == os.O_RDONLY and not flags & os.O_DIRECTORY) or access == os.O_RDWR


def _is_unclear(path: str, mode: Any) -> bool:
    """Whether a path may be relative to an open folder (``os.open`` with ``dir_fd``), which the event does not tell."""
    return mode is None and not os.path.isabs(path) and not os.path.isfile(path)  # noqa: PTH113, PTH117


def _is_by_import(function: str) -> bool:
    """Whether the caller is a function of Python's import system, or our method that overrides it."""
    frame = _caller()
    names = [caller.f_code.co_name for caller in (frame, frame.f_back) if caller is not None]
    return frame.f_code.co_filename.startswith("<frozen importlib") and function in names


def _caller() -> FrameType:
    """The innermost frame outside of this file, which does what is noted."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame
