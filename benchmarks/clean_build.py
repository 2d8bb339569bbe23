"""A clean build of the library beside ninja, which makes the same products with one command for each of them.

ninja runs nvcc once for each image, and the C compiler once for each kernel with the launcher in its wrapper. These are
the commands of one commit (``frozen.py``), so that the peer does not get faster with us. Its lowered files are there
already: all that we do besides (executing definitions, lowering, writing wrappers, assembling the package) is not in
its time. So that nothing is hidden, it is also measured with the lowering, as one process for each definition file.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import frozen
from .commands import Command, commands_of
from .harness import CHILDREN, Bench, Finished, Result, Row, Skip, Target, interleave, median, median_wall, walls
from .lowerings import Lowering, lowerings_of, write_requests
from .measured import Measured
from .ninja_build import Edge, Ninja, find_ninja, shell_command
from .projects import Project, library

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
    details: dict[str, Any] = {"cores": bench.jobs, "cores_of_machine": os.cpu_count(), "commit_of_peer": frozen.COMMIT}
    skipped = []
    ninjas: dict[str, Ninja] = {}
    try:
        tree = _tree(bench, details)
        ninjas, project = _ninjas(tree), frozen.ours(bench)
    except Skip as reason:
        skipped.append(str(reason))
        project = library(bench)
    ours: list[Measured] = []

    def build() -> Finished:
        project.remove_outputs()
        ours.append(project.measured_scons(f"-j{bench.jobs}", "--cache-disable"))
        return ours[-1].done

    actions = {"ours": build} | {name: lambda ninja=ninja: _build(ninja, bench) for name, ninja in ninjas.items()}
    bench.say(f"clean builds: {', '.join(actions)}")
    runs = interleave(bench.rounds_or(3), actions)
    if ninjas:
        details["images_equal"] = _compare(tree, project)
    rows = [*_cost_rows(runs), *_busy_rows(bench, ours, runs, details)]
    details |= {"walls": walls(runs), "cpu": {name: [done.cpu_s for done in listed] for name, listed in runs.items()}}
    return Result(rows, details, skipped)


def _tree(bench: Bench, details: dict[str, Any]) -> Tree:
    find_ninja()
    project = frozen.plain(bench)
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


def _compare(tree: Tree, project: Project) -> str:
    """How many of the images that ninja has made have the same bytes as ours."""
    outputs = [command.output for command in tree.commands if command.output.suffix in (".cubin", ".ptx")]
    ours = {output: project.folder / output.relative_to(tree.project.folder) for output in outputs}
    equal = sum(filecmp.cmp(image, tree.moved(output), shallow=False) for output, image in ours.items())
    return f"{equal} of {len(outputs)}"


def _cost_rows(runs: dict[str, list[Finished]]) -> list[Row]:
    """Seconds of a core and of the clock, with the targets for them."""
    targets = {
        ("clean build, seconds of a core", PLAIN): Target(0.50, "ratio"),
        ("clean build", PLAIN): Target(0.55, "ratio"),
        ("clean build", WHOLE): Target(0.50, "ratio"),
    }
    values = {
        "clean build, seconds of a core": {
            name: median(done.cpu_s for done in listed) for name, listed in runs.items()
        },
        "clean build": {name: median_wall(listed) for name, listed in runs.items()},
    }
    notes = {
        PLAIN: "ninja compiles and links only, from lowered files; we also execute definitions, lower and assemble",
        WHOLE: "ninja also lowers, with a process for each definition file",
    }
    rows = [
        Row(what, "s", values[what]["ours"], {peer: values[what][peer]}, target, notes[peer])
        for (what, peer), target in targets.items()
        if peer in runs
    ]
    return rows or [Row(what, "s", found["ours"]) for what, found in values.items()]


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
    return [
        Row("CPU of tools and lowering / (wall x cores)", "", busy(tools or children), note=source),
        Row("CPU of all children / (wall x cores)", "", busy(children), peers),
        Row("CPU of children and scons / (wall x cores)", "", busy(everything)),
    ]
