"""Watches the user's code in a process that runs it: notes what it uses, imports its modules, explains its errors."""

from __future__ import annotations

import collections.abc
import contextlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from .. import frontends
from ..core.dependencies import KIND
from ..core.errors import DefinitionError, UnimplementedError, Where, text_of
from ..core.project import Installation, Project
from ..core.surroundings import FOLDER
from . import environment
from .environment import Variables, watch_environment
from .events import Events
from .imports import ProjectFinder, ProjectLoader
from .looks import path_in, watch_looks
from .reads import ReadRecorder, Reads
from .strict import Finding, Strict


class Questions:
    """Notes what a definition asks.

    Arguments:
        recorder: notes what is read.
        strict: judges what a strict definition does.
        variables: which environment variables definitions see.
    """

    def __init__(self, recorder: ReadRecorder, strict: Strict, variables: Variables) -> None:
        self._recorder = recorder
        self._strict = strict
        self._variables = variables

    def watch(self, events: Events) -> None:
        """Note each question from now on. This cannot be undone.

        Arguments:
            events: notes the files that are opened relative to an open folder.
        """
        watch_environment(self._asked_for, self._variables.remedy)
        watch_looks(self._looked_at, self._counted, self._placed, events.opened_in_folder)

    def _looked_at(self, path: Any, code: CodeType, at_content: bool) -> None:
        """Note what the user's code asks about a file: whether it is there, or what may change with its content."""
        asked = path_in(path)
        with self._recorder.noting() as reads:
            if reads is not None and asked is not None and self._is_users(code):
                full = os.path.abspath(asked)  # noqa: PTH100
                name = None if reads.has_made(full) else self._recorder.name_of(full)
                if name is not None:
                    self._recorder.note(reads, KIND + name)
                    if at_content and os.path.isfile(full):  # noqa: PTH113
                        self._recorder.note_content(reads, name)

    def _counted(self, code: CodeType) -> None:
        """Note that the user's code asks how many processors there are."""
        with self._recorder.noting() as reads:
            if reads is not None and self._is_users(code):
                self._strict.note_machine(self._recorder.beyond(reads), "asks how many processors the machine has")

    def _placed(self, code: CodeType) -> None:
        """Note that the user's code asks where the working folder is: it is the project's folder."""
        with self._recorder.noting() as reads:
            if reads is not None and self._is_users(code):
                self._recorder.note(reads, FOLDER)

    def _is_users(self, code: CodeType) -> bool:
        return self._recorder.name_of(code.co_filename) is not None

    def _asked_for(self, variable: str, is_set: bool) -> None:
        """Note that code asks for an environment variable; raises DefinitionError if it is set but hidden."""
        with self._recorder.noting() as reads:
            if reads is None or not self._recorder.counts(reads):
                return
            reads.variables.add(variable)
            if not is_set and (place := self._place_of_caller()):
                if variable in self._variables.others:
                    text = f"asks for the variable {variable}, which is set, and which definitions do not see"
                    reads.refused = reads.refused or Finding(text, self._variables.remedy(variable), place)
                    raise DefinitionError(f"a definition {text}")
                reads.absent.add(variable)

    def _place_of_caller(self) -> str | None:
        """The place of the user's line that asks for a variable; None: an installed module asks for it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename in _ASKING or _is_frozen(frame)):
            frame = frame.f_back
        if frame is None or not self._is_users(frame.f_code):
            return None
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_ASKING = (__file__, environment.__file__, os.__file__, collections.abc.Mapping.get.__code__.co_filename)
"""Files with the code of ``os.environ`` and ``os.getenv``, which may be frozen."""


def _is_frozen(frame: FrameType) -> bool:
    return frame.f_code.co_filename in ("<frozen os>", "<frozen _collections_abc>")


class Watch:
    """Watches the user's code. A process must have only one object of this class.

    Arguments:
        root: the project root.
        variables: which environment variables the code sees.
        own: folders that belong to the process, and not to the user.
    """

    def __init__(self, root: Path, variables: Variables, *own: str) -> None:
        self.project = Project(root)
        self.installation = Installation(*own)
        self.strict = Strict(self.project, self.installation)
        self.recorder = ReadRecorder(self.project, self.installation, self.strict)
        self._finder = ProjectFinder(self.project, self.installation, self.recorder)
        events = Events(Path(self.project.root), self.recorder, self.strict)
        events.watch()
        Questions(self.recorder, self.strict, variables).watch(events)
        sys.meta_path.insert(0, self._finder)

    @contextlib.contextmanager
    def recording(self, reads: Reads) -> Iterator[None]:
        """Note what the user's code uses in this block. The block begins in the project's top folder."""
        os.chdir(self.project.root)
        with self.recorder.recording(reads):
            yield

    def execute(self, path: str, folder: str, name: str) -> ModuleType:
        """Execute a file.

        Arguments:
            folder: where its imports are looked for first; then in the project's top folder.
            name: the name of its module.
        """
        self._finder.folders = list(dict.fromkeys([folder, self.project.root]))
        top = name.partition(".")[0]
        taken = top in sys.modules or top in sys.stdlib_module_names
        if "." in name:
            if taken:
                raise DefinitionError(f"the package {top!r} has the name of another module", remedy="rename its folder")
            return importlib.import_module(name)
        # Nothing imports such a file by its name, so it may be called copy.py.
        name = f"kernelwright_definition_{name}" if taken else name
        spec = ModuleSpec(name, ProjectLoader(name, path, self.recorder), origin=path)
        spec.has_location = True
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # compilers look for the source of functions through their module
        if spec.loader is not None:
            spec.loader.exec_module(module)
        return module

    def frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        """The user's lines in an error's traceback."""
        return [frame for frame in traceback.extract_tb(error.__traceback__) if self._is_file(frame.filename)]

    def error(self, error: BaseException, subject: str, where: Where) -> DefinitionError:
        """The error for an exception of user code: its own line, and its traceback without our frames and TVM's."""
        if isinstance(error, SyntaxError) and error.filename:
            return self._syntax_error(error, where)
        frames = self.frames(error)
        location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else where.location
        text = text_of(error).strip().removeprefix("error: ")
        place = re.search(r"^ *--> (.+):(\d+):\d+$", text, re.MULTILINE)
        if place and self._is_file(place[1]):
            # TVMScript names the line inside the function, the traceback only the decorator's.
            location = f"{place[1]}:{place[2]}"
        first = next(iter(text.splitlines()), "")
        lines = [*traceback.format_list(frames), f"{type(error).__name__}: {text}"]
        verb = "called sys.exit" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
        kind = UnimplementedError if _is_caused_by(error, NotImplementedError) else DefinitionError
        return kind(
            f"{subject} {verb}" + (f": {self.project.shorten(first)}" if first else ""),
            replace(where, location=self.project.location(location)),
            _remedy(error),
            self.project.shorten("".join(lines)),
        )

    def _is_file(self, path: str) -> bool:
        """Whether a path is that of a file of the user's; TVM and Cython name sources that do not exist here."""
        return self.recorder.name_of(path) is not None and Path(path).is_file()

    def _syntax_error(self, error: SyntaxError, where: Where) -> DefinitionError:
        location = f"{error.filename}:{error.lineno}" if error.lineno else str(error.filename)
        text = (error.text or "").rstrip("\n")
        caret = " " * max(0, (error.offset or 1) - 1) + "^"
        return DefinitionError(
            f"{type(error).__name__}: {error.msg}",
            replace(where, location=self.project.location(location)),
            detail=f"{text}\n{caret}" if text else None,
        )


def _remedy(error: BaseException) -> str | None:
    """What to do about an exception of user code, where that is known."""
    if isinstance(error, SystemExit):
        return "a definition must not end the process"
    if isinstance(error, KeyError) and hasattr(error, "remedy"):  # it asked for a variable of the environment
        return str(error.remedy)
    if isinstance(error, ModuleNotFoundError):
        absent = str(error.name).partition(".")[0]
        for name in frontends.names():
            for need in frontends.get(name).needs:
                if need.module == absent:
                    otherwise = f"; {need.otherwise}" if need.otherwise else ""
                    return f"definitions in {name} need it: {need.install}{otherwise}"
        return "install it, or have the definition put its folder into sys.path: PYTHONPATH does not count here"
    return None


def _is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an exception, or one of its causes, is of a kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None
