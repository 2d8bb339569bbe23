"""Makes SCons nodes of the stages of a package, and leaves finished kernels out.

Kernels that are settled (see ``state.settled``) get no nodes. So modules that only other kernels need are imported when
there are such kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import SCons.Script
import SCons.Util

from ..core.errors import KernelwrightError
from ..define.settings import Settings
from ..stages.package import Assembly, Part, backends_of
from .command_line import SHARD, is_passive
from .definitions import Definitions
from .package import Package
from .run import BuildRun
from .settling import Settling, new_part, new_restored, record_of, settled_part
from .targets import add_targets, failure, nodes_of_kernel

PULL = "cache-pull"
"""Name of the target that builds nothing and takes everything out of the remote cache."""


class PackageGraph:
    """The nodes of one kernel package.

    Arguments:
        env, run, settings, files: those of :class:`.package.Package`.

    Raises:
        SettingsError: there is a package of that name already.
    """

    def __init__(self, env: Any, run: BuildRun, settings: Settings, files: Sequence[Any]) -> None:
        self.run = run
        self.package = Package(env, run, settings, files)
        self.definitions = Definitions(self.package)
        self.assembly: Assembly | None = None

    def add(self) -> Any:
        """Add all nodes; the generated files of the package are returned.

        Raises:
            KernelwrightError: a tool is missing, or a definition is not valid and ``-k`` was not given.
        """
        package, run = self.package, self.run
        if SCons.Script.GetOption("help"):
            return package.env.File([str(package.folder.File("manifest.json"))])
        if SCons.Script.GetOption("clean"):
            from .cleaning import add_cleaning

            return add_cleaning(package)
        if PULL in package.asked.targets:
            return self._pull()
        if not record_of(package).exists() and not run.discovery.exists() and not is_passive():
            self.definitions.begin()
        run.shards.note_package(package.settings.package, package.key)
        settling = Settling(package)
        files = settling.take()
        self._look_into(files, settling)
        if run.shards.only_merged:
            kernels = self.definitions.kernels
            run.shards.require_all(package.settings.package, package.key, kernels, package.stages)
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
            f"kernelwright: {count} of {len(package.files)} definition files of {package.settings.package} are in the "
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
        from ..define.settings import read_document
        from ..package.version import version_of

        return version_of(self.run.top, read_document(self.run.top / "pyproject.toml"))

    def _add_shard(self, settling: Settling) -> Any:
        """The target of a shard, which makes its kernels and no package."""
        package, kernels = self.package, self.definitions.kernels
        nodes = [node for name in kernels for node in nodes_of_kernel(package, self.definitions, name)]
        entries = [self.run.nodes.node(build.entry) for build in kernels.values()]
        count = len(settling.kernels) + len(kernels)
        noun = "1 kernel" if count == 1 else f"{count} kernels"
        package.tell([f"kernelwright: shard {self.run.shards.shard} of {package.settings.package} has {noun}"])
        return package.user_env.Alias(SHARD, [*entries, *nodes, *package.failing])

    def add_wheel(self, files: Sequence[Any]) -> Any:
        """Add the package's wheels to the alias ``wheel``; the alias is returned.

        Arguments:
            files: the nodes of the package's generated files.
        """
        from ..stages import wheel

        package, env = self.package, self.package.env
        manifest = next(node.get_abspath() for node in files if node.name == "manifest.json")
        tables = [name for names in package.tables.values() for name in names]
        sources = [*package.files, *tables]
        stage = package.add_stage(wheel.make(package.context, sources, manifest, sorted(package.outside)))

        def publish(target: Any, source: Any, env: Any) -> Any:
            error = wheel.publish(stage, package.context)
            return failure(target[0], str(error)) if error else None

        action = env.Action(publish, lambda target, source, env: None)  # it shows no line of its own
        return env.AlwaysBuild(env.Alias(wheel.NAME, self.run.nodes.nodes_of(stage), action))
