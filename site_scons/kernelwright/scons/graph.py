"""Makes SCons nodes of the stages of a package, and leaves finished kernels out.

Kernels that are settled (see ``state.settled``) get no nodes. So modules that only other kernels need are imported when
there are such kernels.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import SCons.Errors
import SCons.Script
import SCons.Util

from .. import frontends
from ..core.arch import FAMILIES, image_file
from ..core.errors import KernelwrightError
from ..core.pipeline import LISTINGS
from ..core.shard import shard_of
from ..define.package_name import LABEL
from ..define.settings import read_document
from ..stages import commands
from ..stages.package import Assembly, Part, backends_of
from ..stages.stage import IR, Stage
from . import compat
from .command_line import SHARD, given, is_passive
from .definitions import Definitions
from .package import Package
from .run import BuildRun
from .settling import Settling, new_part, new_restored, record_of, settled_part

PULL = "cache-pull"
"""Name of the target that builds nothing and takes everything out of the remote cache."""


SINGLE_FILES = ("trace.json", "report.html", "compile_commands.json")
"""Files in the build folder that all packages share."""


def add_cleaning(package: Package) -> Any:
    """Add nodes for ``scons -c``. They need no discovery, because whole folders are removed."""
    wheel, folders = package.wheels.Dir(package.settings.package), (package.work, package.folder, package.checks)
    others = [str(folder) for folder in _of_other_settings(package)]
    package.run.require_folders([*(folder.get_abspath() for folder in (*folders, wheel)), *others])
    work = Path(package.work.get_abspath())
    for folder in work.glob("*"):
        _clean(package, folder.name, package.work.Dir(folder.name))
    _clean(package, "check", package.checks)
    images = {image_file(arch) for arch in package.settings.archs_of("cuda")}
    for ending in LISTINGS:
        texts = (path for depth in ("cuda", "cuda/*") for path in work.glob(f"*/*/{depth}/*.{ending}"))
        _clean(package, ending, package.work, sorted(str(path) for path in texts if path.name not in images))
    shown = [path for depth in ("*/*/cuda", "*/*/cuda/*", "*/*/llvm/*") for path in work.glob(f"{depth}/{IR}")]
    _clean(package, IR, package.work, sorted(map(str, shown)))
    _clean(package, "wheel", wheel)
    manifest = package.env.Command(package.folder.File("manifest.json"), [], "")
    single = [str(package.run.top / "build" / name) for name in (".kernelwright", *SINGLE_FILES)]
    package.env.Clean(manifest, [*folders, wheel, *([] if package.first else [*single, *others])])
    return manifest


def _of_other_settings(package: Package) -> list[Path]:
    """The folders of the package for CUDA toolkits and families of CPUs, also those that settings no longer name."""
    base, name = Path(package.base.get_abspath()), package.settings.package
    places = [path for path in base.glob("*") if re.fullmatch(LABEL, path.name) or path.name in FAMILIES]
    places += [path / family for path in places for family in FAMILIES]
    below = (f"kernels/{name}", name.replace(".", "/"), f"check/{name}", f"wheels/{name}")
    return [folder for place in places for folder in map(place.joinpath, below) if folder.is_dir()]


def _clean(package: Package, alias: str, folder: Any, files: Sequence[str] | None = None) -> None:
    """Have ``scons -c`` with a target remove a folder, or some files in it."""
    node = package.env.Command(folder.File(f".clean {alias}"), [], "")
    package.env.Clean(node, folder if files is None else list(files))
    package.user_env.Alias(alias, node)


class PackageGraph:
    """The nodes of one kernel package."""

    def __init__(self, package: Package) -> None:
        self.run = package.run
        self.package = package
        self.definitions = Definitions(package)
        self.assembly: Assembly | None = None
        self.nodes: Any = []
        """The nodes of the generated files of the package."""

    def add(self) -> None:
        """Add all nodes.

        Raises:
            KernelwrightError: a tool is missing, or a definition is not valid and ``-k`` was not given.
        """
        self.nodes = self._added()

    def _added(self) -> Any:
        package, run = self.package, self.run
        if SCons.Script.GetOption("help"):
            return package.env.File([str(package.folder.File("manifest.json"))])
        if SCons.Script.GetOption("clean"):
            from .graph import add_cleaning

            return add_cleaning(package)
        if PULL in package.asked.targets:
            return self._pull()
        if not record_of(package).exists() and not run.discovery.exists() and not is_passive():
            self.definitions.begin()
        run.shards.note_package(package.label, package.key)
        settling = Settling(package)
        files = settling.take()
        self._look_into(files, settling)
        if run.shards.only_merged:
            kernels = self.definitions.kernels
            run.shards.require_all(package.label, package.key, kernels, package.stages)
        result = self._add_shard(settling) if run.shards.shard else self.assemble(settling)
        add_targets(package, self.definitions, settling, files)
        self._look_ahead()
        run.settle.append(lambda: settling.write(self.definitions, self.assembly.copies if self.assembly else {}))
        return result

    def _look_into(self, files: Sequence[str], settling: Settling) -> None:
        """Make the stages of the kernels in some definition files and, with ``-k``, a stage that fails for each error.

        Raises:
            KernelwrightError: a file is not valid, and ``-k`` was not given.
        """
        package, run, definitions = self.package, self.run, self.definitions
        errors = definitions.look_into(files, settling.kernels) if files else []
        if errors and not SCons.Script.GetOption("keep_going"):
            run.outcome.stopped(len(errors))
            raise KernelwrightError("\n".join(str(error) for error in errors))
        # A shard does not know the kernels of others: these notes are shown where the package is made.
        if package.configured and not errors and run.shards.shard is None:
            package.tell(package.configured.notes([*settling.kernels, *definitions.kernels]))
        run.outcome.note_tables(package.tables, None if errors else {*settling.kernels, *definitions.names})
        if errors:
            from ..stages import discover

            for number, error in enumerate(errors):
                stage = package.add_stage(discover.make(package.context, number, error))
                package.failing.append(run.nodes.node_of(stage))

    def _pull(self) -> Any:
        """Have the build cache get all finished kernels of the package that the remote cache has, and build nothing."""
        package = self.package
        count = new_restored(package).pull(package.files)
        self.run.note(
            f"kernelwright: {count} of {len(package.files)} definition files of {package.label} are in the "
            "build cache with all that their kernels consist of"
        )
        return package.user_env.Alias(PULL, [], package.env.Action(lambda target, source, env: None, None))

    def _look_ahead(self) -> None:
        """Ask the remote cache, if there is one, for the outputs of all kernels that this tree lacks."""
        asked_for = any(name in self.definitions.kernels for name in self.package.asked.targets)
        if self.run.caches.has_remote and not asked_for and self.run.cache is not None:
            from .ahead import Ahead

            Ahead(self.run.cache, self.run.top, self.run.journal.digest, self.package.stages)

    def assemble(self, settling: Settling) -> Any:
        """Add the stage that makes the package; the nodes of its files are returned."""
        package, nodes = self.package, self.run.nodes
        parts = [settled_part(name, kernel) for name, kernel in settling.kernels.items()]
        parts += [new_part(package, build) for build in self.definitions.kernels.values()]
        parts.sort(key=lambda part: part.name)
        project = self._project_version(parts)
        self.assembly = Assembly(package.context, parts, settling.before.copies, package.stages, project)
        if not is_passive():
            self.assembly.require_folders()
        stage = package.add_stage(self.assembly.stage())
        files = [built for part in parts for built in (part.entry, *part.products.values())]
        outputs = nodes.nodes_of(stage)
        package.env.Requires(outputs, [nodes.node(file.path) for file in files if file.path] + package.failing)
        # The package's stage removes files that it does not know, so it must not run while stages write IR.
        package.env.Requires(outputs, [nodes.node_of(s) for stages in self.definitions.ir.values() for s in stages])
        return SCons.Util.NodeList(outputs)

    def _project_version(self, parts: Sequence[Part]) -> str:
        """The version of the project, if a backend of these kernels needs it; empty: unknown."""
        if not any(backend.versioned for backend in backends_of(self.package.context, parts)):
            return ""
        from ..package.version import version_of

        return version_of(self.run.top, read_document(self.run.top / "pyproject.toml"))

    def _add_shard(self, settling: Settling) -> Any:
        """The target of a shard, which makes its kernels and no package."""
        package, kernels = self.package, self.definitions.kernels
        nodes = [node for name in kernels for node in nodes_of_kernel(package, self.definitions, name)]
        entries = [self.run.nodes.node(build.entry) for build in kernels.values()]
        count = len(settling.kernels) + len(kernels)
        noun = "1 kernel" if count == 1 else f"{count} kernels"
        package.tell([f"kernelwright: shard {self.run.shards.shard} of {package.label} has {noun}"])
        return package.user_env.Alias(SHARD, [*entries, *nodes, *package.failing])

    def add_wheel(self, name: str) -> Stage:
        """Add the package's wheels to the alias ``wheel``; the stage that makes them is returned.

        Arguments:
            name: of a distribution of its own; empty: it is that of the project.

        Raises:
            KernelwrightError: pyproject.toml does not describe a wheel, or another package of the run has its name.
        """
        from ..stages import wheel

        package, env = self.package, self.package.env
        manifest = next(node.get_abspath() for node in self.nodes if node.name == "manifest.json")
        tables = [name for names in package.tables.values() for name in names]
        sources = [*package.files, *tables]
        outside = sorted(package.outside)
        stage = wheel.make(package.context, sources, manifest, outside, name, first=package.is_of_first_toolkit)
        self.run.take_wheel_name(stage.request, package.settings.package)
        package.add_stage(stage)

        def publish() -> str:
            error = wheel.publish(stage, package.context, replacing=bool(given("replace")))
            return _told(package.run, error)

        action = compat.late_action(env, publish)
        env.AlwaysBuild(env.Alias(wheel.NAME, self.run.nodes.nodes_of(stage), action))
        return stage


def _told(run: BuildRun, error: KernelwrightError | None) -> str:
    """The text of an error of no stage, which counts as one that failed; empty: there is none."""
    if error is not None:
        run.outcome.stopped()
    return str(error or "")


def add_wheels(graphs: Sequence[PackageGraph], name: str) -> Any:
    """Add the wheels of a package to the alias ``wheel``, those of all toolkits and families; the alias is returned.

    Arguments:
        graphs: those of the package.
        name: as for :meth:`PackageGraph.add_wheel`.

    Raises:
        KernelwrightError: as :meth:`PackageGraph.add_wheel`.
    """
    from ..stages import wheel

    stages = [graph.add_wheel(name) for graph in graphs]
    package = graphs[0].package

    def finish() -> str:
        return _told(package.run, wheel.finish(stages, package.context))

    action = compat.late_action(package.env, finish)
    return package.env.AlwaysBuild(package.env.Alias(wheel.NAME, [], action))


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
    if TUNE in requested and package.is_of_first_toolkit:
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
    if package.family:
        if not package.machine:
            there = "run scons check there, or name a Python in cross_pythons"
            package.tell([f"kernelwright: what is built for {package.family} is not checked: {there}"])
        return
    from ..stages.check import not_checked

    for name, build in definitions.kernels.items():
        if not build.record.has_reference:
            package.tell([f"kernelwright: {name} has no reference, so it is not checked"])
        elif not build.checks:
            language = build.record.options.frontend
            why = not_checked(frontends.get(language), package.tools.of_front_end(language))
            package.tell([f"kernelwright: {name} {why}"])


def _add_tune(package: Package) -> None:
    """Make ``tune`` a target: the command ``kernelwright tune`` for the definition files of the package.

    ``KERNELS=gemm,softmax`` names kernels, and ``TUNE="--budget 10m"`` has further options.
    """
    # Imported here, because hardly any run tunes.

    from ..ondemand.tune_command import command_of, environment_of

    words = SCons.Script.ARGUMENTS
    kernels = words.get("KERNELS", "").replace(",", " ").split()
    files = [f"--file={package.run.top / file}" for file in package.files]
    command = command_of("tune", [*kernels, *shlex.split(words.get("TUNE", "")), *files])

    def tune() -> str:
        status = subprocess.call(command, cwd=package.top, env=environment_of())
        return f"kernelwright tune ended with exit status {status}" if status else ""

    action = compat.late_action(package.env, tune)
    package.env.AlwaysBuild(package.user_env.Alias(TUNE, package.failing, action))


def _add_compile_commands(package: Package, definitions: Definitions) -> None:
    """Add the compiler runs to ``build/compile_commands.json``, which is made after the package's libraries."""
    run, env = package.run, package.env
    if run.commands is None:
        run.commands = []
        stage = package.add_stage(commands.make(run.top, run.commands))
        env.Alias(commands.NAME, run.nodes.nodes_of(stage))
    run.commands += [s.command for s in package.stages if s.command and s.command not in run.commands]
    paths = [path for build in definitions.kernels.values() for path in (build.entry, *build.products.values())]
    env.Requires(env.Alias(commands.NAME), list(map(run.nodes.node, paths)))
