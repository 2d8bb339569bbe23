"""A process in another environment, in which a front end's compiler is installed and Kernelwright is not."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError, ToolchainError
from ..core.own_environment import OwnEnvironment
from ..processes.environment import tool_environment
from ..toolchain.elsewhere import PARTS, find_elsewhere
from .serving import Message, read_message, write_message
from .unit import Unit

START = Path(__file__).with_name("start_worker.py")


class OtherProcess:
    """A running process, which runs a module of ours (:mod:`.serving`).

    Arguments:
        environment: what it is for.
        python: the interpreter of the environment.
        module: the module of ours, in this folder.
        variables: those that it has besides the fixed ones.

    Raises:
        ToolchainError: it cannot be started, or cannot import the compiler, or that is of another release, or not
            the one whose files the build compares.
    """

    def __init__(self, environment: OwnEnvironment, python: str, module: str, variables: Mapping[str, str]) -> None:
        self._environment = environment
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the process)
        # The order of sets decides nothing then, and caches in the home folder are left alone.
        fixed = {"PYTHONHASHSEED": "0", "HOME": self._folder.name}
        named = f"{environment.setting} is {python!r}"
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading, "rb")
        try:
            # Answers have a pipe of their own: what an environment prints at its start would be taken for one.
            self._process = subprocess.Popen(
                [python, "-s", str(START), module, str(writing)],
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                env=tool_environment() | fixed | dict(variables),
                pass_fds=(writing,),
            )
        except OSError as error:
            raise self._unusable(f"{named}, which cannot be run: {error.strerror}") from error
        finally:
            os.close(writing)
        greeting = self._read().values
        if "error" in greeting:
            raise self._unusable(f"{named}, which cannot import {environment.title}: {greeting['error']}")
        if not environment.knows(greeting["version"]):
            known = f"Kernelwright knows the launches of {environment.version}"
            raise self._unusable(f"{named}, which has {environment.title} {greeting['version']}; {known}")
        self._require_compared(greeting["folder"], named)

    def _require_compared(self, folder: str, named: str) -> None:
        """Raise a ToolchainError if the compiler in a folder is not the one whose files the build compares."""
        parts = PARTS[self._environment.need.module]
        _, records = find_elsewhere(self._python, parts)
        if records and Path(folder).resolve() != parts.folder(records).resolve():
            compared = f"from {folder}, and a build compares the files in {parts.folder(records)}"
            raise self._unusable(f"{named}, which imports {self._environment.title} {compared}")

    def ask(self, values: Mapping[str, Any], parts: Sequence[bytes | bytearray] = ()) -> Message:
        """The answer to a request.

        Raises:
            ToolchainError: the process has ended.
        """
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # of a process that has ended, which is told below
                write_message(self._process.stdin, Message(values, parts))
        return self._read()

    def _read(self) -> Message:
        message = read_message(self._answers)
        if message is not None:
            return message
        process_of.cache_clear()  # the next request starts another one
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        message_text = f"the process of {self._environment.title} ended with exit status {self._process.wait()}"
        remedy = f"look whether {self._python} -c 'import {self._environment.need.module}' works"
        raise ToolchainError(message_text, None, remedy, text[-6000:])

    def _unusable(self, message: str) -> ToolchainError:
        return ToolchainError(message, None, self._environment.remedy)


@functools.cache
def process_of(
    environment: OwnEnvironment, python: str, module: str, variables: tuple[tuple[str, str], ...] = ()
) -> OtherProcess:
    """The process of an interpreter. It serves all requests of a worker and ends with it: an import takes seconds."""
    return OtherProcess(environment, python, module, dict(variables))


def asked(
    environment: OwnEnvironment,
    module: str,
    values: Mapping[str, Any],
    unit: Unit,
    *,
    parts: Sequence[bytes | bytearray] = (),
    variables: Mapping[str, str] | None = None,
) -> Message:
    """What the process of an environment, that of the unit, answers; the other arguments are as above.

    Raises:
        ToolchainError: there is no environment, or its process cannot answer.
    """
    if not unit.python:
        raise ToolchainError(f"{environment.title} has no environment", unit.where, environment.remedy)
    try:
        return process_of(environment, unit.python, module, tuple((variables or {}).items())).ask(values, parts)
    except ToolchainError as error:
        error.where = unit.where
        raise


def source_of(source: str | PathLike[str], unit: Unit) -> dict[str, str]:
    """What a process is told of a source: its path, and the project's folder.

    Arguments:
        source: its path, relative to the folder of the definition.

    Raises:
        DefinitionError: there is no such file.
    """
    folder = Path(unit.location.rpartition(":")[0]).parent
    path = Path(os.path.normpath(Path.cwd() / folder / os.fspath(source)))
    if not path.is_file():
        remedy = f"give the path of a Python file, relative to {folder.as_posix()}"
        raise DefinitionError(f"there is no file {os.fspath(source)!r} beside the definition", unit.where, remedy)
    return {"root": os.getcwd(), "file": str(path)}  # noqa: PTH109
