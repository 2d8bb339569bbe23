"""COMMANDS: the compiler runs of a build as the JSON compilation database that other tools read.

The format is https://clang.llvm.org/docs/JSONCompilationDatabase.html. It has absolute paths, so it is made only when
asked for, and is no part of a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import Where
from ..core.files import pretty_json
from .stage import Stage
from .stage_run import StageRun

NAME = "compile_commands"


@dataclass(frozen=True)
class Database:
    """Nothing decides the database besides the commands, which are known late."""

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write what is known now that all build files were read."""
        (scratch / f"{NAME}.json").write_text(pretty_json(stage.late), encoding="utf-8")


def command_of(folder: Path, file: str, arguments: Sequence[str], output: str) -> dict[str, Any]:
    """One run of a compiler; ``file`` and ``output`` are relative to the folder that it runs in."""
    return {"directory": str(folder), "file": file, "arguments": list(arguments), "output": output}


def make(top: Path, commands: Sequence[Mapping[str, Any]]) -> Stage:
    """The stage that writes ``build/compile_commands.json``.

    Arguments:
        top: the project's folder.
        commands: a list that is complete when all build files were read.
    """
    outputs = {f"{NAME}.json": f"{top}/build/{NAME}.json"}
    where = Where(stage="assemble")
    return Stage("COMMANDS", NAME, where, Database(), outputs, [], late=lambda: commands, cacheable=False)
