"""How busy the compilers are in a clean build of the library, and how ninja does with the same commands.

ninja gets exactly the commands that our build has run, with the lowered files already there: all that we do besides
(executing definitions, lowering, writing wrappers, assembling the package) is not in its time. So that nothing is
hidden, it is also measured with the lowering, as one process for each definition file.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .commands import Command, commands_of
from .harness import CHILDREN, Bench, Finished, Result, Row, Skip, Target, interleave, median, median_wall, walls
from .lowerings import Lowering, lowerings_of, write_requests
from .measured import Measured
from .ninja_build import Edge, Ninja, find_ninja, shell_command
from .projects import Project, built_library

PLAIN, WHOLE = "ninja", "ninja that lowers too"


@dataclass(frozen=True)
class Tree:
    """A copy of a project's build folder in which ninja works."""

    project: Project
    folder: Path
    commands: list[Command]

    def moved(self, path: Path) -> Path:
        """Where a file of the project is in the copy."""
        return self.folder / path.relative_to(self.project.folder)

    def compile_edges(self) -> list[Edge]:
        """An edge for each command."""
        edges = []
        for command in self.commands:
            moved = command.moved(self.project.folder, self.folder)
            inputs = [self.moved(path) for path in command.inputs]
            edges.append(Edge([moved.output], inputs, shell_command(moved.folder, moved.arguments)))
        return edges

    def lower_edges(self) -> list[Edge]:
        """An edge for each definition file."""
        files: dict[str, list[Lowering]] = {}
        for lowering in lowerings_of(self.project):
            files.setdefault(lowering.request["file"], []).append(lowering)
        return [self._lower_edge(file, lowerings) for file, lowerings in files.items()]

    def _lower_edge(self, file: str, lowerings: list[Lowering]) -> Edge:
        requests = self.folder / f"{Path(file).stem}.jsonl"
        write_requests(requests, [(lowering, self.moved(lowering.folder)) for lowering in lowerings])
        program = [sys.executable, str(CHILDREN / "lower_alone.py"), str(self.project.folder), str(requests)]
        command = shell_command(self.folder, ["env", f"PYTHONPATH={self.project.site_scons}", *program])
        outputs = [self.moved(path) for lowering in lowerings for path in lowering.files]
        return Edge(outputs, [self.project.folder / file], command)


def measure(bench: Bench) -> Result:
    """Build the library with scons and with ninja, in turn."""
    project = built_library(bench)
    details: dict[str, Any] = {"cores": bench.jobs, "cores_of_machine": os.cpu_count()}
    skipped = []
    ninjas: dict[str, Ninja] = {}
    try:
        tree = _tree(bench, project, details)
        ninjas = _ninjas(tree)
    except Skip as reason:
        skipped.append(str(reason))
    ours: list[Measured] = []

    def build() -> Finished:
        project.remove_outputs()
        ours.append(project.measured_scons(f"-j{bench.jobs}", "--cache-disable"))
        return ours[-1].done

    actions = {"ours": build} | {name: lambda ninja=ninja: _build(ninja, bench) for name, ninja in ninjas.items()}
    bench.say(f"clean builds: {', '.join(actions)}")
    runs = interleave(bench.rounds_or(3), actions)
    if ninjas:
        details["files_equal_to_ours"] = _compare(tree)
    rows = [*_busy_rows(bench, ours, runs, details), *_wall_rows(runs)]
    return Result(rows, details | {"walls": walls(runs)}, skipped)


def _tree(bench: Bench, project: Project, details: dict[str, Any]) -> Tree:
    find_ninja()
    found = commands_of(project)
    details["commands_from"] = {where: len(commands) for where, commands in found.items()}
    tree = Tree(project, bench.work / f"ninja-{project.folder.name}", [c for listed in found.values() for c in listed])
    shutil.rmtree(tree.folder, ignore_errors=True)
    shutil.copytree(project.kernels, tree.moved(project.kernels))
    return tree


def _ninjas(tree: Tree) -> dict[str, Ninja]:
    plain = Ninja(find_ninja(), tree.folder, "compile.ninja")
    plain.write(tree.compile_edges())
    whole = Ninja(find_ninja(), tree.folder, "lower.ninja")
    whole.write([*tree.lower_edges(), *tree.compile_edges()])
    return {PLAIN: plain, WHOLE: whole}


def _build(ninja: Ninja, bench: Bench) -> Finished:
    ninja.clean()
    return ninja.build(bench.jobs)


def _compare(tree: Tree) -> str:
    """How many of the files that ninja has made are the same as ours."""
    outputs = [command.output for command in tree.commands]
    equal = sum(filecmp.cmp(output, tree.moved(output), shallow=False) for output in outputs)
    return f"{equal} of {len(outputs)}"


def _busy_rows(
    bench: Bench, ours: list[Measured], runs: dict[str, list[Finished]], details: dict[str, Any]
) -> list[Row]:
    """Seconds of CPU over what the cores had to give, counted in three ways."""
    tools = [run.tools_cpu_s for run in ours if run.tools_cpu_s is not None]
    source = "trace.json" if tools else "all children of scons: trace.json does not have the CPU of all steps"
    details |= {
        "tools_cpu_from": source,
        "tools_cpu_s": tools,
        "children_cpu_s": [run.children_cpu_s for run in ours],
        "scons_cpu_s": [run.own_cpu_s for run in ours],
    }

    def busy(seconds: list[float]) -> float:
        pairs = zip(seconds, ours, strict=True)
        return median(cpu / (run.done.wall_s * bench.jobs) for cpu, run in pairs)

    children = [run.children_cpu_s for run in ours]
    everything = [run.children_cpu_s + run.own_cpu_s for run in ours]
    peers = {
        name: median(done.cpu_s / (done.wall_s * bench.jobs) for done in listed)
        for name, listed in runs.items()
        if name != "ours"
    }
    target = Target(0.95, at_least=True)
    return [
        Row("CPU of tools and lowering / (wall x cores)", "", busy(tools or children), {}, target, source),
        Row("CPU of all children / (wall x cores)", "", busy(children), peers),
        Row("CPU of children and scons / (wall x cores)", "", busy(everything)),
    ]


def _wall_rows(runs: dict[str, list[Finished]]) -> list[Row]:
    ours = median_wall(runs["ours"])
    notes = {
        PLAIN: "ninja compiles and links only, from lowered files; we also execute definitions, lower and assemble",
        WHOLE: "ninja also lowers, with a process for each definition file",
    }
    targets = {PLAIN: Target(1.10, "ratio"), WHOLE: None}
    rows = [
        Row("clean build", "s", ours, {name: median_wall(runs[name])}, targets[name], notes[name])
        for name in notes
        if name in runs
    ]
    return rows or [Row("clean build", "s", ours)]
