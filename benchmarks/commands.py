"""The commands that a build has run: from build/compile_commands.json, and from the compile.sh scripts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import BenchmarkError
from .projects import Project, tool_path

DATABASE = "compile_commands.json"
LINKED = {".c", ".o", ".cubin", ".ptx"}
"""Suffixes of the files that a kernel's library is made from."""


@dataclass(frozen=True)
class Command:
    """One command of a build.

    Arguments:
        folder: where it runs.
        arguments: the command.
        output: the file that it makes.
    """

    folder: Path
    arguments: tuple[str, ...]
    output: Path

    @property
    def inputs(self) -> list[Path]:
        """What it reads: the files that it names, and those that the sources of a library embed or include."""
        if self.output.suffix == ".so":
            return sorted(file for file in self.output.parent.rglob("*") if file.suffix in LINKED)
        named = (self.folder / word for word in self.arguments[1:] if not word.startswith("-"))
        read = [path for path in named if path.is_file() and path.suffix in LINKED | {".cu"} and path != self.output]
        return [*read, *(host for path in read if path.name == "wrapper.c" for host in path.parent.rglob("host.c"))]

    def moved(self, old: Path, new: Path) -> Command:
        """The same command in a copy of the build folder; what it takes from elsewhere in the tree stays there."""
        arguments = tuple(word.replace(f"{old}/build/", f"{new}/build/") for word in self.arguments)
        return Command(new / self.folder.relative_to(old), arguments, new / self.output.relative_to(old))


def commands_of(project: Project) -> dict[str, list[Command]]:
    """The commands of a built project, each once, by where they were found.

    The build may list fewer commands in its compilation database than it runs; the scripts have all of them.
    """
    found = {"database": _from_database(project), "scripts": _from_scripts(project)}
    listed = {command.output for command in found["database"]}
    found["scripts"] = [command for command in found["scripts"] if command.output not in listed]
    if not any(found.values()):
        raise BenchmarkError(f"no commands in {project.folder / 'build'}")
    return found


def _from_database(project: Project) -> list[Command]:
    """Those of a compilation database (Clang's JSON format) whose output the build has really made."""
    path = project.folder / "build" / DATABASE
    if not path.exists():
        try:
            project.scons("compile_commands")
        except BenchmarkError:
            return []
    entries = [_entry(entry) for entry in json.loads(path.read_text())]
    return [entry for entry in entries if entry is not None and entry.output.is_file()]


def _entry(entry: dict[str, Any]) -> Command | None:
    arguments = tuple(entry["arguments"] if "arguments" in entry else shlex.split(entry["command"]))
    folder = Path(entry["directory"])
    output = entry.get("output") or _output(arguments)
    return None if output is None else Command(folder, arguments, folder / output)


def _from_scripts(project: Project) -> list[Command]:
    known: dict[str, str] = {}

    def tool(name: str) -> str:
        if name not in known:
            known[name] = tool_path(project.site_scons, name)
        return known[name]

    return [parse_script(script, tool) for script in sorted(project.kernels.rglob("compile*.sh"))]


def parse_script(script: Path, tool: Callable[[str], str]) -> Command:
    """The command of a script that repeats a step by hand.

    Arguments:
        script: it changes its folder, sets variables such as ``NVCC``, and ends with ``exec`` and the command.
        tool: called with a name in small letters, such as ``nvcc``; the path that the variable gets.
    """
    text = script.read_text()
    folder = re.search(r'^cd "\$\(dirname "\$0"\)/(.*)"$', text, re.M)
    command = re.search(r"^exec (.*)$", text, re.M | re.S)
    if folder is None or command is None:
        raise BenchmarkError(f"{script} is not of the form that the build writes")
    words = shlex.split(command[1])
    for name in re.findall(r"^([A-Z_]+)=\$\{\1:-", text, re.M):
        words = [re.sub(rf"\${name}(?![A-Z_])", tool(name.lower()).replace("\\", r"\\"), word) for word in words]
    base = (script.parent / folder[1]).resolve()
    output = _output(tuple(words))
    if output is None:
        raise BenchmarkError(f"{script} names no output")
    return Command(base, tuple(words), base / output)


def _output(arguments: tuple[str, ...]) -> str | None:
    return arguments[arguments.index("-o") + 1] if "-o" in arguments[:-1] else None
