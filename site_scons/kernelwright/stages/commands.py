"""COMMANDS: the compiler runs of a build as the JSON compilation database that other tools read.

The format is https://clang.llvm.org/docs/JSONCompilationDatabase.html. It has absolute paths, so it is made only when
asked for, and is no part of a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import Where
from ..core.files import pretty_json
from .stage import Stage

NAME = "compile_commands"


def command_of(folder: Path, file: str, arguments: Sequence[str], output: str) -> dict[str, Any]:
    """One run of a compiler; ``file`` and ``output`` are relative to the folder that it runs in."""
    return {"directory": str(folder), "file": file, "arguments": list(arguments), "output": output}


def make(top: Path, commands: Sequence[Mapping[str, Any]]) -> Stage:
    """The stage that writes ``build/compile_commands.json``.

    Arguments:
        top: the project's folder.
        commands: a list that is complete when all build files were read.
    """

    def write(scratch: Path) -> None:
        (scratch / f"{NAME}.json").write_text(pretty_json(commands), encoding="utf-8")

    outputs = {f"{NAME}.json": f"{top}/build/{NAME}.json"}
    where = Where(stage="assemble")
    return Stage("COMMANDS", NAME, where, {}, write, outputs, [], late=lambda: commands, cacheable=False)
