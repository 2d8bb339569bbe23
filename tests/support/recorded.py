"""Runs ``kernelwright record`` in forks of a process that has imported PyTorch and Triton: nearly all that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from kernelwright import cli
from kernelwright.commands import record

from support.forked import Starter, end, starter


def ready() -> Starter:
    """The process that is forked."""
    return starter("torch", "triton.language", __name__)


def recorded(
    folder: Path, run: str, *options: str, arguments: Sequence[str] = (), status: int = 0
) -> subprocess.CompletedProcess[str]:
    """What the command gives in a folder; ``run`` is the program, or what names a module."""
    environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    words = [*options, *run.split(), *arguments]
    done = ready().run(f"from {__name__} import main; main()", *words, env=environment, cwd=folder)
    assert done.returncode == status, done.stdout + done.stderr
    return done


class _Fork:
    """The process of the user's program: what the command has of ``subprocess.Popen``, but no new Python."""

    def __init__(self, command: Sequence[str]) -> None:
        self._pid = os.fork()
        if not self._pid:
            weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders of the command
            sys.argv = list(command[3:])  # behind python -c START
            try:
                record.in_child()
            except SystemExit as left:
                end(left.code)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def main() -> None:
    """Be the command; ``sys.argv`` has its words."""
    record.subprocess = SimpleNamespace(Popen=_Fork)  # type: ignore[attr-defined]
    sys.exit(cli.main(["record", *sys.argv[1:]]))
