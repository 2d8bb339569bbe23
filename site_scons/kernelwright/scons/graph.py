"""Turns the kernels of a package into SCons nodes: lower, nvcc, wrap, link, assemble and check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import SCons.Script

from .. import backends
from ..discovery import DefinitionRecord, discover
from ..errors import KernelwrightError, SettingsError, Where
from ..plan import KernelSelection, require_archs, select
from ..settings import Settings
from ..toolchain import HostCompiler, Lowerer, Nvcc
from . import stages
from .cache import VerifiedCacheDir
from .run import BuildRun
from .stage import Stage, StageAction, code_digest


@dataclass(frozen=True)
class Tools:
    """The probed tools of a package; nvcc only where CUDA code is built."""

    lowerer: Lowerer
    host_compiler: HostCompiler
    nvcc: Nvcc | None


class PackageGraph:
    """The nodes of one kernel package.

    Arguments:
        env: the user's environment; what is added to it are targets and aliases.
        run: the run of scons that it belongs to.
        settings: the package's settings.
        files: SCons file nodes of the definition files.
    """

    def __init__(self, env: Any, run: BuildRun, settings: Settings, files: list[Any]) -> None:
        self.run = run
        self.settings = settings
        self.files = files
        self._user_env = env
        # A clone, so that the user's decider and scanners stay as they are: early cutoff needs contents compared, and
        # the stages name all their sources themselves.
        self.env = env.Clone(SCANNERS=[], CACHEDIR_CLASS=VerifiedCacheDir)
        self.env.Decider("content")
        base = _base_folder(env)
        self.work = base.Dir("kernels").Dir(settings.package)
        self.folder = base.Dir(settings.package.replace(".", "/"))
        self.checks = base.Dir("check").Dir(settings.package)
        self._made: list[Any] = []
        if str(self.folder) in run.packages:
            where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
            raise SettingsError("a package of that name exists already", where, "give each package its own name")
        run.packages.add(str(self.folder))

    @cached_property
    def tools(self) -> Tools:
        """Probe what the settings need.

        Raises:
            ToolchainError: a tool is missing or broken.
        """
        chain = self.run.toolchain
        compiler = chain.host_compiler(self.settings.host_compiler)
        nvcc = chain.nvcc(self.settings.nvcc, compiler) if "cuda" in self.settings.targets else None
        if nvcc is not None:
            stages.require_archs(nvcc, self.settings.archs_of("cuda"))
        return Tools(chain.lowerer(), compiler, nvcc)

    def add(self) -> Any:
        """Add all nodes; the generated files of the package are returned.

        Raises:
            KernelwrightError: a tool is missing, or a definition is not valid and ``-k`` was not given.
        """
        if SCons.Script.GetOption("help"):
            return self.env.File([str(self.folder.File("manifest.json"))])
        if SCons.Script.GetOption("clean"):
            return self._clean()
        selected, errors = self._select()
        if errors and not SCons.Script.GetOption("keep_going"):
            raise KernelwrightError("\n".join(str(error) for error in errors))
        failing = [self._failing(number, error) for number, error in enumerate(errors)]
        kernels = [self._kernel(definition, selection) for definition, selection in selected]
        result = self._assemble(kernels, failing)
        self._alias_checks(kernels)
        return result

    def _select(self) -> tuple[list[tuple[DefinitionRecord, KernelSelection]], list[KernelwrightError]]:
        """The kernels to build, and what is wrong with the others."""
        identity = f"{self.tools.lowerer.identity} {code_digest('DISCOVER')}"
        files = [Path(node.get_abspath()) for node in self.files]
        records, errors = discover(files, self.run.top, self.run.discovery, lambda: self.run.pool, identity)
        selected: dict[str, tuple[DefinitionRecord, KernelSelection]] = {}
        for record in records:
            for kernel in record.kernels:
                try:
                    selection = select(kernel, self.settings, backends.names())
                    if self.tools.nvcc is not None:
                        require_archs(kernel, self.tools.nvcc)
                except KernelwrightError as error:
                    errors.append(error)
                    continue
                for target in selection.left_out:
                    self.run.progress.note(
                        f"kernelwright: {kernel.name} is not built for {target}: none of its archs is"
                    )
                if not selection.archs and not selection.left_out:
                    self.run.progress.note(f"kernelwright: {kernel.name} is left out: it is for other targets")
                if selection.archs:
                    # A name that is defined twice is among the errors already.
                    selected.setdefault(kernel.name, (record, selection))
        return list(selected.values()), errors

    def _failing(self, number: int, error: KernelwrightError) -> Stage:
        """A stage that reports an error of a definition file, so that ``-k`` can build the rest."""

        def make(scratch: Path) -> None:
            raise error

        place = error.where.location or "definition"
        name = f"{number}.failed"
        return self.stage("DISCOVER", place, error.where, {"error": str(error)}, make, {name: self.work.File(name)}, [])

    def _kernel(self, definition: DefinitionRecord, selection: KernelSelection) -> stages.KernelNodes:
        """All nodes of one kernel up to its library and its checks."""
        builder = stages.KernelStages(self, definition, selection)
        nodes = builder.add()
        self._user_env.Alias(selection.record.name, nodes.library.nodes[:1])
        return nodes

    def _assemble(self, kernels: list[stages.KernelNodes], failing: list[Stage]) -> Any:
        stage = stages.assemble_stage(self, kernels, failing, self._sweep)
        return self.node(stage)

    def _alias_checks(self, kernels: list[stages.KernelNodes]) -> None:
        nodes = [check.nodes[0] for kernel in kernels for check in kernel.checks]
        self._user_env.Alias("check", nodes)
        for node in nodes:
            # Without this, a build file without Default(), which builds everything, would run all checks.
            self._user_env.Ignore(node.dir, node)
        if "check" in SCons.Script.COMMAND_LINE_TARGETS:
            for kernel in kernels:
                if not kernel.record.has_reference:
                    self.run.progress.note(f"kernelwright: {kernel.record.name} has no reference, so it is not checked")

    def stage(
        self,
        label: str,
        subject: str,
        where: Where,
        options: dict[str, Any],
        make: Callable[[Path], None],
        targets: dict[str, Any],
        sources: list[Any],
    ) -> Stage:
        """Make a :class:`Stage`, and its node."""
        stage = Stage(label, subject, where, options, make, targets, sources)
        self.node(stage)
        return stage

    def node(self, stage: Stage) -> Any:
        """Make a stage an SCons target."""
        self._made += stage.nodes
        self.run.add(stage)
        nodes = self.env.Command(stage.nodes, stage.sources, StageAction(stage, self.run))
        if stage.label in ("LOWER", "CHECK"):
            # What a definition reads while it is called is only known afterwards, so a CacheDir's key could miss it.
            self.env.NoCache(nodes)
        return nodes

    def definition_nodes(self, definition: DefinitionRecord) -> list[Any]:
        """The files that a definition consists of: itself and the project files that it imports."""
        # Not env.File, which would expand a dollar sign in a name.
        return [self.env.fs.File("#" + name) for name in sorted(definition.dependencies)]

    def _sweep(self) -> None:
        """Remove what earlier definitions, configs and archs left behind."""
        known = {node.get_abspath() for node in self._made}
        for folder in (self.work, self.folder.Dir("_lib"), self.checks):
            remove_unknown(Path(folder.get_abspath()), known)

    def _clean(self) -> Any:
        """Nodes for ``scons -c``, which needs no discovery: whole folders go."""
        for folder in Path(self.work.get_abspath()).glob("*"):
            self._cleaned(folder.name, self.work.Dir(folder.name))
        self._cleaned("check", self.checks)
        manifest = self.env.Command(self.folder.File("manifest.json"), [], "")
        self.env.Clean(manifest, [self.work, self.folder, self.checks, self.env.Dir(str(self.run.state))])
        return manifest

    def _cleaned(self, alias: str, folder: Any) -> None:
        node = self.env.Command(folder.File(".clean"), [], "")
        self.env.Clean(node, folder)
        self._user_env.Alias(alias, node)


def _base_folder(env: Any) -> Any:
    """Where outputs go: the SConscript's variant_dir if it has one, otherwise ``build`` beside the SConstruct."""
    here = env.Dir(".")
    return here if here.srcnode() != here else env.Dir("#build")


def remove_unknown(folder: Path, known: Iterable[str]) -> None:
    """Remove the files of a folder that are not known, and the folders that are empty then."""
    keep = set(known)
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            # Not empty, or just being filled by a stage that runs at the same time.
            with contextlib.suppress(OSError):
                path.rmdir()
        elif str(path) not in keep:
            path.unlink()
