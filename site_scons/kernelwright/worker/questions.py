"""Sees what a definition asks without opening a file: about files, environment variables, and the machine."""

from __future__ import annotations

import collections.abc
import os
import sys
from types import CodeType, FrameType
from typing import Any

from ..core.dependencies import KIND
from ..core.errors import DefinitionError
from ..core.surroundings import FOLDER
from . import environment
from .environment import Variables, watch_environment
from .events import Events
from .looks import path_in, watch_looks
from .reads import ReadRecorder
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
                        self._recorder.note(reads, name)

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
