"""The process that lowers functions of TileLang, in an environment of its own (:mod:`.tilelang_worker`)."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import ToolchainError
from ..define.tilelang_program import REMEDY, SETTING
from ..processes.environment import tool_environment

PROGRAM = Path(__file__).with_name("tilelang_worker.py")


class TileLangProcess:
    """A running process.

    Arguments:
        python: the interpreter of the environment.

    Raises:
        ToolchainError: it cannot be started, or cannot import TileLang.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the process)
        # The order of sets decides nothing then, and TileLang leaves its cache in the home folder alone.
        variables = {"PYTHONHASHSEED": "0", "TILELANG_CACHE_DIR": self._folder.name, "HOME": self._folder.name}
        try:
            self._process = subprocess.Popen(
                [python, "-s", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                env=tool_environment() | variables,
            )
        except OSError as error:
            message = f"{SETTING} is {python!r}, which cannot be run: {error.strerror}"
            raise ToolchainError(message, None, REMEDY) from error
        greeting = self._read()
        if "error" in greeting:
            message = f"{SETTING} is {python!r}, which cannot import TileLang: {greeting['error']}"
            raise ToolchainError(message, None, REMEDY)
        self.version: str = greeting["version"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            ToolchainError: the process has ended.
        """
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # of a process that has ended, which is told below
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        process_of.cache_clear()  # the next lowering starts another one
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        message = f"the process of TileLang ended with exit status {self._process.wait()}"
        raise ToolchainError(message, None, f"look whether {self._python} -c 'import tilelang' works", text[-6000:])


@functools.cache
def process_of(python: str) -> TileLangProcess:
    """The process of an interpreter. It serves all lowerings of a worker and ends with it: an import takes seconds."""
    return TileLangProcess(python)
