"""Writes build.ninja files and runs ninja with them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .harness import Finished, Skip, run

LOG = (".ninja_log", ".ninja_deps")


@dataclass(frozen=True)
class Edge:
    """One command that makes some files out of others; paths are absolute, or relative to the folder of the file."""

    outputs: Sequence[Path | str]
    inputs: Sequence[Path | str]
    command: str


@dataclass(frozen=True)
class Ninja:
    """A build.ninja file with its folder."""

    program: Path
    folder: Path
    name: str

    def write(self, edges: Iterable[Edge]) -> None:
        """Write the file. Each edge is a rule of its own command, as the manual of ninja suggests for generators."""
        lines = ["rule run", "  command = $cmd", "  description = $out"]
        for edge in edges:
            outputs, inputs = (" ".join(_path(path) for path in paths) for paths in (edge.outputs, edge.inputs))
            lines += [f"build {outputs}: run {inputs}", f"  cmd = {edge.command.replace('$', '$$')}"]
        (self.folder / self.name).write_text("\n".join(lines) + "\n")

    def build(self, jobs: int) -> Finished:
        """Run ninja."""
        return run([self.program, "-f", self.name, f"-j{jobs}"], self.folder)

    def clean(self) -> None:
        """Remove all outputs, and what ninja remembers of them."""
        run([self.program, "-f", self.name, "-t", "clean"], self.folder)
        for name in LOG:
            (self.folder / name).unlink(missing_ok=True)


def find_ninja() -> Path:
    """The ninja of this environment, else that on PATH.

    Raises:
        Skip: there is none.
    """
    beside = Path(sys.executable).with_name("ninja")
    found = str(beside) if beside.exists() else shutil.which("ninja")
    if found is None:
        raise Skip("ninja is not installed: pip install --group bench")
    return Path(found)


def shell_command(folder: Path, arguments: Iterable[str]) -> str:
    """A shell command that runs in a folder."""
    return f"cd {shlex.quote(str(folder))} && {shlex.join(arguments)}"


def _path(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
