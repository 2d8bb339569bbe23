"""``scons compile_commands``: the compiler runs of a build as the JSON compilation database that other tools read.

The format is https://clang.llvm.org/docs/JSONCompilationDatabase.html. It has absolute paths, so it is made only when
asked for, and is no part of a package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import Where
from ..core.files import pretty_json
from .stage import Stage

if TYPE_CHECKING:
    from .graph import PackageGraph

NAME = "compile_commands"


def entry(folder: Path, file: str, arguments: Sequence[str], output: str) -> dict[str, Any]:
    """One run of a compiler; ``file`` and ``output`` are relative to the folder that it runs in."""
    return {"directory": str(folder), "file": file, "arguments": list(arguments), "output": output}


def add_compile_commands(graph: PackageGraph, commands: Iterable[dict[str, Any]], libraries: list[Any]) -> None:
    """Add a package's compiler runs to ``build/compile_commands.json``, which is made after the package's libraries."""
    run = graph.run
    if run.commands is None:
        run.commands = []
        graph.env.Alias(NAME, _stage(graph, run.commands).nodes)
    run.commands += commands
    graph.env.Requires(graph.env.Alias(NAME), libraries)


def _stage(graph: PackageGraph, commands: list[dict[str, Any]]) -> Stage:
    def make(scratch: Path) -> None:
        (scratch / f"{NAME}.json").write_text(pretty_json(commands), encoding="utf-8")

    targets = {f"{NAME}.json": graph.env.File(f"#build/{NAME}.json")}
    where = Where(stage="assemble")
    # The list is complete when all build files were read.
    stage = Stage("COMMANDS", NAME, where, {}, make, targets, [], late=lambda: commands, cacheable=False)
    return graph.node(stage)
