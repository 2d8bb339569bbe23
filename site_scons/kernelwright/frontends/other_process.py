"""A process in another environment, in which a front end's compiler is installed and Kernelwright is not."""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError, KernelwrightError, ToolchainError, Where, WorkerError
from ..core.need import OwnEnvironment
from ..processes.children import START_ELSEWHERE, Spawned
from ..processes.environment import tool_environment
from ..processes.messages import Hello
from ..processes.protocol import Request
from ..processes.worker import Answered, Worker, WorkerKind
from ..toolchain.elsewhere import find_elsewhere
from .unit import Unit


class OtherProcess:
    """A running process, which runs ``worker/elsewhere.py`` with a module of a front end.

    It ends with this one. Nobody waits for it here: the build has a limit of time for what this process does.

    Arguments:
        environment: what it is for.
        python: the interpreter of the environment.
        module: the module, below this folder.
        variables: those that it has besides the fixed ones.

    Raises:
        ToolchainError: it cannot be started, or cannot import the compiler, or that is of another release, or not
            the one whose files the build compares.
    """

    def __init__(self, environment: OwnEnvironment, python: str, module: str, variables: Mapping[str, str]) -> None:
        self._environment = environment
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-")
        # The order of sets decides nothing then, and caches in the home folder are left alone.
        fixed = {"PYTHONHASHSEED": "0", "HOME": self._folder.name}
        seen = tool_environment() | fixed | dict(variables)
        command = [python, "-s", str(START_ELSEWHERE), "elsewhere", module]
        remedy = f"look whether {python} -c 'import {environment.need.module}' works"
        kind = WorkerKind(f"the process of {environment.title}", (), remedy, remedy, remedy)
        named = f"{environment.setting} is {python!r}"
        try:
            self._worker = Worker(kind, lambda log: Spawned(command, seen, log, inner=True), Where())
        except WorkerError as error:
            raise self._unusable(f"{named}, which cannot be run: {error.__cause__}") from error
        try:
            self._require_known(self._greeting(named), named)
        except BaseException:
            self._worker.dispose()
            raise

    def _greeting(self, named: str) -> Hello:
        try:
            return self._worker.greet(math.inf, Where())
        except WorkerError as error:
            raise ToolchainError(error.message, None, error.remedy, error.detail) from error
        except KernelwrightError as error:
            raise self._unusable(f"{named}, which cannot import {self._environment.title}: {error.message}") from error

    def _require_known(self, greeting: Hello, named: str) -> None:
        """Raise a ToolchainError if the compiler is another one than we know, or than the build compares."""
        title, version = self._environment.title, greeting.versions["compiler"]
        if not self._environment.knows(version):
            known = f"Kernelwright knows the launches of {self._environment.version}"
            raise self._unusable(f"{named}, which has {title} {version}; {known}")
        parts = self._environment.parts
        _, records = find_elsewhere(self._python, parts)
        if records and Path(greeting.folder).resolve() != parts.folder(records).resolve():
            compared = f"from {greeting.folder}, and a build compares the files in {parts.folder(records)}"
            raise self._unusable(f"{named}, which imports {title} {compared}")

    def _unusable(self, message: str) -> ToolchainError:
        return ToolchainError(message, None, self._environment.remedy)

    def ask(self, request: Request[Answered]) -> Answered:
        """The result of a request.

        Raises:
            KernelwrightError: the process says so.
            ToolchainError: it has ended.
        """
        try:
            result = self._worker.call(request, math.inf)
        except WorkerError as error:
            process_of.cache_clear()  # the next request starts another one
            self._worker.dispose()
            raise ToolchainError(error.message, request.where, error.remedy, error.detail) from error
        assert result is not None, "such a process is never spent"
        return result


@functools.cache
def process_of(
    environment: OwnEnvironment, python: str, module: str, variables: tuple[tuple[str, str], ...] = ()
) -> OtherProcess:
    """The process of an interpreter. It serves all requests of a worker and ends with it: an import takes seconds."""
    return OtherProcess(environment, python, module, dict(variables))


def asked(
    environment: OwnEnvironment,
    module: str,
    request: Request[Answered],
    unit: Unit,
    variables: Mapping[str, str] | None = None,
) -> Answered:
    """What the process of an environment, that of the unit, answers; the other arguments are as above.

    Raises:
        KernelwrightError: the process says so.
        ToolchainError: there is no environment, or its process cannot answer.
    """
    if not unit.python:
        raise ToolchainError(f"{environment.title} has no environment", unit.where, environment.remedy)
    try:
        process = process_of(environment, unit.python, module, tuple((variables or {}).items()))
    except ToolchainError as error:
        error.where = unit.where
        raise
    return process.ask(request)


def source_of(source: str | PathLike[str], unit: Unit) -> dict[str, Any]:
    """What a request has of a source: its path, the project's folder, and the unit.

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
    return {"unit": unit, "root": os.getcwd(), "file": str(path)}  # noqa: PTH109
