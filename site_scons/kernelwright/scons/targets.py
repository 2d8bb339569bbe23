"""The targets of the command line that a package has: its kernels' names, ``check``, ``ir``, ``sass`` and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import SCons.Errors
import SCons.Script

from .. import frontends
from ..core.shard import shard_of
from ..stages import commands
from ..stages.stage import IR
from . import compat
from .definitions import Definitions
from .package import Package
from .settling import Settling

TUNE = "tune"
"""The target that tunes."""


def add_targets(package: Package, definitions: Definitions, settling: Settling, files: Sequence[str]) -> None:
    """Make targets of all that a package has.

    Arguments:
        files: the definition files that were looked into.
    """
    asked, requested = package.asked, set(package.asked.targets)
    for name in definitions.kernels:
        _alias(package, name, nodes_of_kernel(package, definitions, name))
    if package.failing:
        _add_unknown(package, definitions, requested - settling.kernels.keys() - definitions.kernels.keys(), files)
    settling.count()
    for name in settling.kernels:
        if name in requested:
            _alias(package, name, ())
        else:
            compat.add_alias(name)
    for file in definitions.files:
        _add_elsewhere(package, requested.intersection(file.elsewhere))
    checks = [package.run.nodes.node_of(stage) for build in definitions.kernels.values() for stage in build.checks]
    _alias(package, "check", checks)
    _leave_out_of_folders(package, checks)
    for listing in asked.listings:
        _add_listing(package, definitions, listing)
    if commands.NAME in requested:
        _add_compile_commands(package, definitions)
    if asked.ir:
        _add_ir(package, definitions)
    if TUNE in requested:
        _add_tune(package)
    if asked.check:
        _tell_of_checks(package, definitions)


def nodes_of_kernel(package: Package, definitions: Definitions, name: str) -> list[Any]:
    """The nodes of all that a kernel's target makes."""
    build, nodes = definitions.kernels[name], package.run.nodes
    shown = definitions.ir[name] if package.asked.ir_always else ()
    return [*map(nodes.node, list(build.products.values()) or [build.entry]), *map(nodes.node_of, shown)]


def _alias(package: Package, name: str, nodes: Iterable[Any]) -> Any:
    """Make a target, which also shows what is wrong with definition files."""
    return package.user_env.Alias(name, [*nodes, *package.failing])


def _leave_out_of_folders(package: Package, nodes: Iterable[Any]) -> None:
    """Leave some files out of a build of their folder: a build file without ``Default()`` builds its whole folder."""
    for node in nodes:
        package.user_env.Ignore(node.dir, node)


def _add_unknown(package: Package, definitions: Definitions, names: set[Any], files: Sequence[str]) -> None:
    """Make a target of each name that may be a kernel of a file with errors: SCons shows these, and knows the name."""
    valid = {file.definition.file for file in definitions.files}
    texts = [Path(package.top, file).read_text("utf-8", "replace") for file in files if file not in valid]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    for name in names:
        if name in words and not Path(package.top, name).exists():
            _alias(package, name, ())


def _add_elsewhere(package: Package, names: Iterable[str]) -> None:
    """Make a target that needs nothing of each kernel that another shard builds, and say which shard does."""
    shard = package.run.shards.shard
    for name in sorted(names):
        package.tell([f"kernelwright: {name} is in shard {shard_of(name, shard.count if shard else 1)}"])
        compat.add_alias(name)


def _add_listing(package: Package, definitions: Definitions, ending: str) -> None:
    """Make ``sass`` or ``ptx`` a target; that is also the ending of its files."""
    _alias(package, ending, ())
    for name, build in definitions.kernels.items():
        paths = [path for stage in (*build.stages, *build.listings) for path in stage.paths]
        texts = [path for path in paths if path.endswith(f".{ending}")]
        package.user_env.Alias(ending, list(map(package.run.nodes.node, texts)))
        if not texts:
            package.tell([f"kernelwright: {name} has no device code of which there is a .{ending}"])


def _add_ir(package: Package, definitions: Definitions) -> None:
    """Make ``ir`` a target: the IR of all kernels that TVM's passes lower."""
    nodes = [package.run.nodes.node_of(stage) for stages in definitions.ir.values() for stage in stages]
    _alias(package, IR, nodes)
    if not package.asked.ir_always:
        _leave_out_of_folders(package, nodes)
    for name, build in definitions.kernels.items():
        if not definitions.ir[name]:
            language = build.record.options.frontend
            package.tell([f"kernelwright: {name} has no IR to show: it is written in {language}"])


def _tell_of_checks(package: Package, definitions: Definitions) -> None:
    """Say which kernels are not checked, and why."""
    from ..stages.check import not_checked

    for name, build in definitions.kernels.items():
        if not build.record.has_reference:
            package.tell([f"kernelwright: {name} has no reference, so it is not checked"])
        elif not build.checks:
            language = build.record.options.frontend
            why = not_checked(frontends.get(language), package.tools.of_front_ends.get(language))
            package.tell([f"kernelwright: {name} {why}"])


def _add_tune(package: Package) -> None:
    """Make ``tune`` a target: the command ``kernelwright tune`` for the definition files of the package.

    ``KERNELS=gemm,softmax`` names kernels, and ``TUNE="--budget 10m"`` has further options.
    """
    # Imported here, because hardly any run tunes.
    import shlex
    import subprocess

    from ..ondemand.tune_command import command_of, environment_of

    words = SCons.Script.ARGUMENTS
    kernels = words.get("KERNELS", "").replace(",", " ").split()
    files = [f"--file={package.run.top / file}" for file in package.files]
    command = command_of([*kernels, *shlex.split(words.get("TUNE", "")), *files])

    def tune(target: Any, source: Any, env: Any) -> Any:
        status = subprocess.call(command, cwd=package.top, env=environment_of())
        return failure(target[0], f"kernelwright tune ended with exit status {status}") if status else None

    action = package.env.Action(tune, lambda target, source, env: None)  # it shows lines of its own
    package.env.AlwaysBuild(package.user_env.Alias(TUNE, package.failing, action))


def _add_compile_commands(package: Package, definitions: Definitions) -> None:
    """Add the compiler runs to ``build/compile_commands.json``, which is made after the package's libraries."""
    run, env = package.run, package.env
    if run.commands is None:
        run.commands = []
        stage = package.add_stage(commands.make(run.top, run.commands))
        env.Alias(commands.NAME, run.nodes.nodes_of(stage))
    run.commands += [stage.command for stage in package.stages if stage.command]
    paths = [path for build in definitions.kernels.values() for path in (build.entry, *build.products.values())]
    env.Requires(env.Alias(commands.NAME), list(map(run.nodes.node, paths)))


def failure(node: Any, message: str) -> Any:
    """The error of an action, as SCons shows it."""
    return SCons.Errors.BuildError(node=node, errstr=message, status=2, exitstatus=2)
