"""Notes which files and folders a definition reads or looks for in vain, with the digest of what it used.

Python calls an audit hook for everything that a program opens, lists or starts. It says nothing of ``os.stat`` and what
is made of it (``os.path.exists``), for which there is ``looks``, and nothing of what C++ code does.
"""

from __future__ import annotations

import _posixsubprocess
import collections.abc
import contextlib
import errno
import glob
import hashlib
import os
import posixpath
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..core.dependencies import KIND, present_digest
from ..core.errors import DefinitionError
from ..core.files import OUTPUT_FOLDERS
from ..core.project import Installation, Project
from ..core.surroundings import FOLDER
from ..define import recorded
from . import environment
from .environment import Variables, watch_environment
from .looks import place_of, watch_looks
from .patterns import pattern_files
from .strict import FORBIDDEN_EVENTS, Finding, Findings, Strict


@dataclass
class Reads:
    """What a definition has read so far.

    Arguments:
        strict: whether to note also what strict mode does not allow.
        files: what it depends on: name as for ``dependency_digest`` -> digest of what was used.
        modules: names of the files that were imported.
        declared: names of the files that it says it reads.
        recorded: project files that ``recorded()`` looked for -> digest of what was used. Which configs there are
            depends on them, and what a variant is lowered to does not.
        made: paths of files and folders that it made itself: what is in them is no input.
        findings: what it did since its last call began that strict mode does not allow.
        outside: what it did without strict mode and what no digest can tell: for others it may be another thing.
        variables: the variables of the environment that it asked for.
        absent: those that it asked for itself, and that are not set where the build was started.
        refused: the first thing that it did and may not do in any mode; its code may have swallowed the exception.
        by_tool: whether the compiler of a front end calls it. What that does by itself is a part of its identity.
    """

    strict: bool = False
    files: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    recorded: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    findings: Findings = field(default_factory=dict)
    outside: Findings = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    refused: Finding | None = None
    by_tool: bool = False

    def has_made(self, path: str) -> bool:
        """Whether the definition made a file itself, or the folder that it is in."""
        parent = os.path.dirname(path)  # noqa: PTH120
        return bool(self.made) and (path in self.made or (parent != path and self.has_made(parent)))


class _Own(threading.local):
    """Whether this thread is in the recorder's own code, whose reads are not the definition's."""

    busy = False


class ReadRecorder:
    """The audit hook. There must be one object of this class in a process.

    Arguments:
        project, installation: tell which files are the user's, and which are installed.
        strict: judges what a strict definition does.
        variables: which variables of the environment definitions see.
    """

    def __init__(self, project: Project, installation: Installation, strict: Strict, variables: Variables) -> None:
        self._project = project
        self._variables = variables
        self._installation = installation
        self._root = Path(project.root)
        self._strict = strict
        self._reads: Reads | None = None
        self._own = _Own()
        self._handlers: dict[str, Callable[[Reads, tuple[Any, ...]], None]] = {
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

    def install(self) -> None:
        """Have Python call the hook from now on; there is no way back."""
        sys.addaudithook(self._hook)
        watch_environment(self._asked_for, self._variables.remedy)
        watch_looks(self._looked_at, self._counted, self._placed, self._opened_in_folder)
        _watch_starts()

    def _looked_at(self, path: Any, code: CodeType, at_content: bool) -> None:
        """Note what the user's code asks about a file: whether it is there, or what may change with its content."""
        reads, asked = self._reads_of(code), None if isinstance(path, int) else _path(path)
        if reads is None or asked is None:
            return
        with self._quietly():
            full = os.path.abspath(asked)  # noqa: PTH100
            name = None if reads.has_made(full) else self.name_of(full)
            if name is not None:
                self._note(reads, KIND + name)
                if at_content and os.path.isfile(full):  # noqa: PTH113
                    self._note(reads, name)

    def _counted(self, code: CodeType) -> None:
        if (reads := self._reads_of(code)) is not None:
            with self._quietly():
                self._strict.note_machine(self._beyond(reads), "asks how many processors the machine has")

    def _placed(self, code: CodeType) -> None:
        """Note that the user's code asks where the working folder is: that is the project's."""
        if (reads := self._reads_of(code)) is not None:
            self._note(reads, FOLDER)

    def _reads_of(self, code: CodeType) -> Reads | None:
        """Where to note what some code asks; None: it is not the user's, or nothing is noted now."""
        is_users = self._reads is not None and not self._own.busy and self.name_of(code.co_filename) is not None
        return self._reads if is_users else None

    def _asked_for(self, variable: str, is_set: bool) -> None:
        reads = self._reads
        if reads is None or self._own.busy or not self._counts(reads):
            return
        reads.variables.add(variable)
        if not is_set and (place := self._place_of_caller()):
            if variable in self._variables.others:
                text = f"asks for the variable {variable}, which is set, and which definitions do not see"
                reads.refused = reads.refused or Finding(text, self._variables.remedy(variable), place)
                raise DefinitionError(f"a definition {text}")
            reads.absent.add(variable)

    def _place_of_caller(self) -> str | None:
        """Where a line of the user's asks for a variable; None: an installed module asks for it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename in _ASKING or _is_frozen(frame)):
            frame = frame.f_back
        is_users = frame is not None and self.name_of(frame.f_code.co_filename) is not None
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None and is_users else None

    def name_of(self, path: str) -> str | None:
        """The name of a file of the user's, wherever it lies; see :meth:`core.project.Project.name`."""
        return self._project.name(path, self._installation)

    def _counts(self, reads: Reads) -> bool:
        """Whether what is done outside of the project is the definition's own doing."""
        return not reads.by_tool or self._strict.is_by_project()

    def _used_name(self, reads: Reads, full: str) -> str | None:
        """The name of a file or folder of the user's that is being used.

        None also for what is outside of the project and is the affair of others: an installed module reads it while it
        is imported, or the compiler of a front end does.
        """
        name = self.name_of(full)
        is_own = name is None or not _is_outside(name) or (self._counts(reads) and self._strict.is_own_doing())
        return name if is_own else None

    def _beyond(self, reads: Reads) -> Findings:
        """Where what is done outside of the project is noted."""
        if reads.strict:
            return reads.findings
        return reads.outside if self._counts(reads) else {}

    @contextlib.contextmanager
    def recording(self, reads: Reads) -> Iterator[None]:
        """Note what happens in this block."""
        self._reads = reads
        try:
            yield
        finally:
            self._reads = None

    def note_module(self, path: str, content: bytes) -> None:
        """Note a module with the content that is being used."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self._reads.files[name] = hashlib.sha256(content).hexdigest()
            self._reads.modules.add(name)

    def note_candidate(self, path: str) -> None:
        """Note a file, or with a slash at the end a folder, that an import asks for, whether or not it is there."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self._note(self._reads, name + "/" if path.endswith(os.sep) else name)
            if self._reads.files.get(name):
                self._reads.modules.add(name)

    def note_declared(self, pattern: str) -> None:
        """Note the files that a definition says it reads: a pattern relative to the project root."""
        if self._reads is not None:
            with self._quietly():
                first, *rest = pattern.split("/")
                found = (
                    pattern_files(self._root, ".", [first, *rest]) if first else pattern_files(self._root, "/", rest)
                )
                names = [self._canonical(name) for name in found]
            for name in names:
                self._note(self._reads, name)
            self._reads.declared.update(names)

    def _canonical(self, name: str) -> str:
        """The name that a file has when it is read, given another one that leads to it."""
        path = os.path.normpath(os.path.join(self._root, name))  # noqa: PTH118
        return (self.name_of(path) or name.rstrip("/")) + ("/" if name.endswith("/") else "")

    def _note(self, reads: Reads, name: str) -> None:
        """Note what is there now, unless it is noted already."""
        if name not in reads.files:
            with self._quietly():
                reads.files[name] = present_digest(self._root, name)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        busy, self._own.busy = self._own.busy, True
        try:
            yield
        finally:
            self._own.busy = busy

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        reads = self._reads
        if reads is None or self._own.busy:
            return
        handler = self._handlers.get(event)
        if handler is not None:
            with self._quietly():
                handler(reads, arguments)
        elif event in FORBIDDEN_EVENTS:
            with self._quietly():
                self._strict.note_event(self._beyond(reads), event, arguments)

    def _opened(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path, mode, flags = _path(arguments[0]), arguments[1], arguments[2]
        if path is None:
            return
        full = os.path.abspath(path)  # noqa: PTH100
        if _is_making(full, mode, flags):
            reads.made.add(full)
        elif _is_reading(mode, flags) and not _is_unclear(path, mode):
            self._refuse_bytecode(full)
            self._read(reads, full)

    def _opened_in_folder(self, path: str, flags: int) -> None:
        """Note what is opened relative to an open folder, which the audit event does not tell."""
        if self._reads is not None and not self._own.busy:
            with self._quietly():
                self._opened(self._reads, (path, None, flags))

    def _loaded(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        """A shared library or a database. A name without a folder is a library of the system, or ``:memory:``."""
        path = _path(arguments[0])
        if path is not None and os.path.isfile(path):  # noqa: PTH113
            self._read(reads, os.path.abspath(path))  # noqa: PTH100

    def _read(self, reads: Reads, full: str) -> None:
        if os.path.isdir(full) or reads.has_made(full):  # noqa: PTH112
            return
        name = self._used_name(reads, full)
        if name is not None and _is_by_recorded():
            reads.recorded.setdefault(name, present_digest(self._root, name))
        elif name is not None:
            self._note(reads, name)
            if _is_by_import("get_code"):
                reads.modules.add(name)
            elif reads.strict and name not in reads.modules:
                self._strict.note_undeclared(reads.findings, name)
        elif self.name_of(full) is None:
            self._strict.note_outside(self._beyond(reads), "reads", full)

    def _refuse_bytecode(self, full: str) -> None:
        """Have Python's own loader take the source of a module of the user's: bytecode may be of another one.

        That loader comes in where a definition loads a file itself, with ``spec_from_file_location``.
        """
        folder, name = os.path.split(full)
        is_bytecode = name.endswith(".pyc") and os.path.basename(folder) == "__pycache__"  # noqa: PTH119
        if is_bytecode and self.name_of(os.path.join(os.path.dirname(folder), "_")) is not None:  # noqa: PTH118, PTH120
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)

    def _listed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path = place_of(arguments[0]) if isinstance(arguments[0], int) else _path(arguments[0] or ".")
        if path is None or _is_by_import("_fill_cache"):
            return  # our finder has asked for what an import depends on
        full = os.path.abspath(path)  # noqa: PTH100
        if reads.has_made(full):
            return
        name = self._used_name(reads, full)
        if name is not None:
            self._note_listing(reads, name)
        elif self.name_of(full) is None:
            self._strict.note_outside(self._beyond(reads), "lists", full)

    def _note_listing(self, reads: Reads, name: str) -> None:
        parts = name.split("/")
        hidden = any(part.startswith(".") for part in parts if part not in (".", ".."))
        if _is_outside(name) or (parts[0] not in OUTPUT_FOLDERS and not hidden):
            self._note(reads, name + "/")

    def _made_folder(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        path = _path(arguments[0])
        if path is not None and not os.path.lexists(path):
            reads.made.add(os.path.abspath(path))  # noqa: PTH100

    def _renamed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        source, destination = _path(arguments[0]), _path(arguments[1])
        if source is not None and destination is not None and reads.has_made(os.path.abspath(source)):  # noqa: PTH100
            reads.made.add(os.path.abspath(destination))  # noqa: PTH100

    def _globbed(self, reads: Reads, arguments: tuple[Any, ...]) -> None:
        pattern, _, folder, descriptor = arguments
        if descriptor is None:
            self._matched(reads, os.fsdecode(folder or "."), os.fsdecode(pattern))

    def _matched(self, reads: Reads, folder: str, pattern: str) -> None:
        """What a glob looks for besides the folders that it lists: for ``*/b/x`` the file ``b/x`` in each folder."""
        parts = Path(os.path.abspath(folder), pattern).parts  # noqa: PTH100
        fixed = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        name = self._used_name(reads, str(Path(*parts[:fixed])))
        if name is None:
            return
        for found in pattern_files(self._root, name, parts[fixed:]):
            if found.endswith("/"):
                self._note_listing(reads, posixpath.normpath(found))
            elif not glob.has_magic(parts[-1]):
                self._note(reads, found)


def _watch_starts() -> None:
    """Have Python tell also of the processes that ``multiprocessing`` starts, which it does not (Python 3.14)."""
    original = _posixsubprocess.fork_exec

    def fork_exec(command: Any, *arguments: Any) -> int:
        sys.audit("subprocess.Popen", None, command, None, None)
        return int(original(command, *arguments))

    _posixsubprocess.fork_exec = fork_exec


_ASKING = (__file__, environment.__file__, os.__file__, collections.abc.Mapping.get.__code__.co_filename)
"""Files with the code of ``os.environ`` and ``os.getenv``, which may be frozen."""


def _is_frozen(frame: FrameType) -> bool:
    return frame.f_code.co_filename in ("<frozen os>", "<frozen _collections_abc>")


def _is_outside(name: str) -> bool:
    """Whether a name is that of a file outside of the project."""
    return name.startswith(("/", "../")) or name == ".."


def _path(value: Any) -> str | None:
    """The path in an audit event's argument; None for a file descriptor."""
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else None


def _is_making(full: str, mode: Any, flags: int) -> bool:
    """Whether a file's content will be the opener's own."""
    if isinstance(mode, str):
        empties, creates = "w" in mode, bool(set(mode) & set("ax"))
    else:
        empties, creates = bool(flags & os.O_TRUNC), bool(flags & os.O_CREAT)
    return empties or (creates and not os.path.lexists(full))


def _is_reading(mode: Any, flags: int) -> bool:
    """Whether a file is opened for what is in it; one that is only written or appended to, or created, is an output."""
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


def _is_by_recorded() -> bool:
    """Whether the caller is ``recorded()``, which reads configs for the decorator."""
    return _caller().f_code.co_filename == recorded.__file__


def _caller() -> FrameType:
    """The frame that does what is being noted."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


__all__ = ["ReadRecorder", "Reads"]
