"""Makes SCons nodes of the stages of a package, and leaves finished kernels out.

Kernels that are settled (see ``state.settled``) get no nodes. So what only the others need is imported when there are
some.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Errors
import SCons.Script
import SCons.Util

from .. import backends, frontends
from ..core.arch import image_file
from ..core.dependencies import is_portable, present_digest
from ..core.errors import DefinitionError, KernelwrightError, SettingsError, Where
from ..core.files import canonical_json
from ..core.pipeline import LISTINGS
from ..core.shard import shard_of
from ..core.surroundings import OUTSIDE
from ..core.version import VERSION
from ..define.settings import Settings, affecting
from ..define.tables import tables_in
from ..stages import commands
from ..stages.code import code_digest, own_code
from ..stages.context import Context, KernelContext, told
from ..stages.package import Assembly, Built, Part, backends_of, images_in, named_backends, remove_unknown
from ..stages.stage import IR, Stage
from ..stages.tools import Tools, find_tools
from ..state.settled import Settled, SettledKernel, is_current, read_settled, stamps_of, trusted_stamps, write_settled
from . import compat
from .action import StageAction
from .run import SHARD, BuildRun

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..define.record import DefinitionRecord, KernelRecord
    from ..stages.configured import Configured
    from ..stages.kernel import KernelBuild
    from ..stages.launcher import CompiledLauncher
    from ..stages.selection import KernelSelection
    from ..toolchain.tvm import Lowerer
    from .restored import RestoredKernels


@dataclass(frozen=True)
class Unsettled:
    """A definition file that is looked into in this run.

    Arguments:
        definition: its record.
        kernels: the stages of those kernels that are built.
        notes: what is said of them.
        tables: the tuning tables of its kernels, with their digests.
        elsewhere: the names of its kernels that are in other shards.
    """

    definition: DefinitionRecord
    kernels: dict[str, KernelBuild]
    notes: list[str]
    tables: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)


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
        self.made: list[Stage] = []
        self.unsettled: dict[str, KernelBuild] = {}
        self._shown: dict[str, list[Stage]] = {}
        self._looked_into: list[Unsettled] = []
        self._launcher: Future[CompiledLauncher] | None = None
        self._restored: RestoredKernels | None = None
        self._assembly: Assembly | None = None
        # They show what is wrong with definition files, whatever is asked for.
        self._failing: list[Any] = []
        self._required: set[str] = set()
        self._discovered: set[str] = set()
        self._outside: set[str] = set()
        self._top = str(run.top)
        self._files = [self._name(node.get_abspath()) for node in files]
        self._user_env = env
        # A clone, so that the user's decider and scanners stay as they are: early cutoff needs contents compared, and
        # the stages name all their sources themselves.
        self.env = env.Clone(SCANNERS=[])
        self.env.Decider("content")
        # None of our nodes is in SCons's cache. Unless told so, SCons makes the default environment to ask it. That
        # looks for compilers, which takes longer than all else in a small build with nothing to do.
        self.env.CacheDir(None)
        base = _base_folder(env)
        self.work = base.Dir("kernels").Dir(settings.package)
        self.folder = base.Dir(settings.package.replace(".", "/"))
        self.checks = base.Dir("check").Dir(settings.package)
        self.wheels = base.Dir("wheels")
        run.bases.add(base.get_abspath())
        if str(self.folder) in run.packages:
            where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
            raise SettingsError("a package of that name exists already", where, "give each package its own name")
        run.packages.add(str(self.folder))

    @property
    def definitions(self) -> tuple[str, ...]:
        """The definition files, relative to the project's folder."""
        return tuple(self._files)

    @cached_property
    def tools(self) -> Tools:
        """The tools, probed now if they were not before.

        Raises:
            KernelwrightError: a tool is missing or broken, or does not know an arch.
        """
        chain, start = self.run.toolchain, time.monotonic()
        with self.run.progress.ahead("looking at the tools"):
            tools = find_tools(self.settings, chain)
        if chain.probed:
            subject, cpu_seconds = ", ".join(chain.probed), sum(chain.probed.values())
            self.run.trace.span("PROBE", subject, start, time.monotonic(), cpu_seconds=cpu_seconds)
        return tools

    @cached_property
    def context(self) -> Context:
        """What the package's stages are made from."""
        work, package, checks, wheels = (
            Path(node.get_abspath()) for node in (self.work, self.folder, self.checks, self.wheels)
        )
        images = images_in(self.settings)
        return Context(self.run, self.settings, self.tools, work, package, checks, wheels, images, self.has_gpu)

    @cached_property
    def glibc_stage(self) -> Stage | None:
        """What makes the libraries that stand in for the machine's C library; None: it is linked with that."""
        from ..stages import glibc

        stage = glibc.make(self.context)
        return self.add_stage(stage) if stage else None

    @cached_property
    def launcher_stage(self) -> Stage:
        """What makes the launcher."""
        from ..stages import launcher

        return self.add_stage(launcher.make(self.context, self.glibc_stage, self._launcher))

    def _project_version(self, parts: Sequence[Part]) -> str:
        """The version of the project, if a backend of these kernels needs it; empty: unknown."""
        if not any(backend.versioned for backend in backends_of(self.context, parts)):
            return ""
        from ..define.settings import read_document
        from ..package.version import version_of

        return version_of(self.run.top, read_document(self.run.top / "pyproject.toml"))

    @cached_property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA driver runs on this machine, so that CUDA code can be checked."""
        return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()

    def add(self) -> Any:
        """Add all nodes; the generated files of the package are returned.

        Raises:
            KernelwrightError: a tool is missing, or a definition is not valid and ``-k`` was not given.
        """
        if SCons.Script.GetOption("help"):
            return self.env.File([str(self.folder.File("manifest.json"))])
        if SCons.Script.GetOption("clean"):
            return self._clean()
        if PULL in SCons.Script.COMMAND_LINE_TARGETS:
            return self._pull()
        if not self._state.exists() and not self.run.discovery.exists() and not self.run.passive:
            self._begin()
        self.run.note_shard(self.settings.package, self._key)
        settled = read_settled(self._state, self._settled_key)
        files, kept = self._split(settled)
        if files and self._may_restore:
            self._restored = restored = self._none_restored()
            files = restored.take_all(files, kept.keys(), self._tables)
            kept |= restored.kernels
            for stamps in restored.files.values():
                self._note_outside(stamps or {})
        errors = self._discover(files, kept) if files else []
        if errors and not SCons.Script.GetOption("keep_going"):
            self.run.stopped(len(errors))
            raise KernelwrightError("\n".join(str(error) for error in errors))
        # A shard does not know the kernels of others; what is told of them is told where the package is made.
        if self._configured and not errors and self.run.shard is None:
            self._tell(self._configured.notes([*kept, *self.unsettled]))
        self.run.note_tables(self._tables, None if errors else {*kept, *self._discovered})
        self._failing = [self._failure(number, error) for number, error in enumerate(errors)]
        if self.run.only_merged:
            self._require_merged()
        result = self._make_shard(kept) if self.run.shard else self._assemble(settled, kept)
        self._alias(kept, files)
        self._look_ahead()
        self.run.settle.append(lambda: self._settle(settled, kept))
        return result

    def _pull(self) -> Any:
        """Have the build cache get all finished kernels of the package that the remote cache has, and build nothing."""
        there = self._none_restored().pull(self._files)
        self.run.progress.note(
            f"kernelwright: {there} of {len(self._files)} definition files of {self.settings.package} are in the build "
            "cache with all that their kernels consist of"
        )
        return self._user_env.Alias(PULL, [], self.env.Action(lambda target, source, env: None, None))

    def _look_ahead(self) -> None:
        """Ask the remote cache, if there is one, for the outputs of all kernels that this tree lacks."""
        asked_for = any(name in self.unsettled for name in SCons.Script.COMMAND_LINE_TARGETS)
        if not self.run.has_remote or asked_for or self.run.cache is None:
            return
        from .ahead import Ahead

        Ahead(self.run.cache, self.run.top, self.run.digest, self.made)

    @property
    def _state(self) -> Path:
        return self.run.state / "settled" / f"{self._name(self.folder.get_abspath()).replace('/', '.')}.json"

    @cached_property
    def _key(self) -> str:
        """Digest of everything that all kernels of the package depend on."""
        chosen = affecting(self.settings)
        places = [self._name(folder.get_abspath()) for folder in (self.work, self.folder, self.checks)]
        needs = {backend.name: backend.build_versions() for backend in named_backends(self.settings)}
        tools = [self.tools.data, [tool.identity for tool in self.tools.of_front_ends.values()], needs]
        configs = hashlib.sha256(self._configured.content).hexdigest() if self._configured else ""
        identity = [VERSION, chosen, configs, tools, own_code(), places, self.has_gpu, self.run.strict]
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    @property
    def _settled_key(self) -> str:
        """The same for what is settled. A shard leaves kernels out, and its files are not settled for other runs."""
        return f"{self._key} shard {self.run.shard}" if self.run.shard else self._key

    @cached_property
    def _configured(self) -> Configured | None:
        """The configs in the file that the setting names, if it names one."""
        if not self.settings.configs:
            return None
        from ..stages.configured import Configured

        return Configured(self.run.top, self.settings.configs)

    @cached_property
    def _tables(self) -> dict[str, tuple[str, ...]]:
        """The files of the tuning tables, by the name of the kernel."""
        tables, shard = tables_in(self.run.top, self.settings.tuning), self.run.shard
        return {name: files for name, files in tables.items() if shard is None or shard.has(name)}

    def _split(self, settled: Settled) -> tuple[list[str], dict[str, SettledKernel]]:
        """The definition files that have to be looked into, and the kernels that are settled."""
        if not self._may_settle:
            return self._files, {}
        files: list[str] = []
        kept: dict[str, SettledKernel] = {}
        for file in self._files:
            stamps = settled.files.get(file)
            kernels = settled.of_file.get(file, {})
            intact = {name: kernel for name, kernel in kernels.items() if self._is_intact(kernel)}
            new = stamps and any(table not in stamps for name in kernels for table in self._tables.get(name, ()))
            if not stamps or new or len(intact) < len(kernels) or not is_current(self._top, stamps):
                files.append(file)
            else:
                kept |= intact
                self._note_outside(stamps)
                self._tell(settled.notes.get(file, ()))
        return files, kept

    @cached_property
    def _may_settle(self) -> bool:
        """Whether kernels can be left out: all targets are ours, no tree is shown, and no content is to be verified."""
        targets = SCons.Script.COMMAND_LINE_TARGETS
        plain = all(isinstance(target, str) and target.isidentifier() for target in targets)
        # In which shard a kernel is does not tell whether there is one of that name.
        named = self.run.shard is not None and not {*targets} <= {SHARD, "check"}
        return (
            plain
            and not named
            and commands.NAME not in targets
            and not self._listings
            and not self._showing
            and not self.run.strict
            and not SCons.Script.GetOption("tree_printers")
        )

    @cached_property
    def _listings(self) -> tuple[str, ...]:
        """The texts of device code that are asked for."""
        return tuple(name for name in LISTINGS if name in SCons.Script.COMMAND_LINE_TARGETS)

    @cached_property
    def _checking(self) -> bool:
        return "check" in SCons.Script.COMMAND_LINE_TARGETS

    @cached_property
    def _showing(self) -> bool:
        """Whether the IR after each pass is written, be it asked for or set."""
        # A partial package can do without variants that cannot be lowered, and nothing may wait for their IR.
        return IR in SCons.Script.COMMAND_LINE_TARGETS or self._shows_always

    @property
    def _shows_always(self) -> bool:
        return self.settings.dump_ir == "yes" and self.run.partial is None and not self.run.only_merged

    @property
    def _may_restore(self) -> bool:
        """Whether kernels can come out of the build cache as a whole: all are wanted, and nothing else of them."""
        targets = {*SCons.Script.COMMAND_LINE_TARGETS}
        plain = targets <= {"wheel", SHARD} and self.run.partial is None and not self.run.passive
        return plain and self._may_settle

    def _none_restored(self) -> RestoredKernels:
        """What takes kernels out of the build cache as a whole; it has none yet."""
        # Imported here, because a run with nothing to do does not need it.
        from ..backends.commands import LIBRARIES
        from .restored import RestoredKernels

        shared = (self.context.glibc, LIBRARIES)
        return RestoredKernels(self.run, self._key, self.work.get_abspath(), shared)

    def _is_intact(self, kernel: SettledKernel) -> bool:
        if self._checking and not (kernel.checks and is_current(self._top, kernel.check_outputs)):
            return False
        return is_current(self._top, kernel.outputs)

    def _begin(self) -> None:
        """Start workers in the first build of a tree, unless it is known what the files declare.

        TVM takes a second to import, which the probes of the tools take as well, and compiling the launcher.
        """
        from ..stages.discovery import is_known

        self.run.require_cache()
        # One answer has to do: where it is in the cache, so are most of the others, with what is finished.
        places = [self.run.top / file for file in self._files[:1]]
        identity = self._identity(self.run.toolchain.lowerer())
        if not is_known(places, self.run.top, self.run.discovery, identity, self.run.answers):
            self.run.pool.warm_up(len(self._files))
            wanted = not SCons.Script.COMMAND_LINE_TARGETS and not self.run.only_merged
            if wanted and any(b.library for b in named_backends(self.settings)):
                from ..stages import launcher

                self._launcher = launcher.begin(self.context)

    def _identity(self, lowerer: Lowerer) -> str:
        """What records of definition files depend on besides the files."""
        declared = "".join(f" {name}" for name in sorted(self.settings.environment))
        return f"{lowerer.identity} {code_digest('DISCOVER')}{' strict' if self.run.strict else ''}{declared}"

    def _discover(self, files: list[str], kept: dict[str, SettledKernel]) -> list[KernelwrightError]:
        """Make the nodes of the kernels in some files, and return what is wrong with the others.

        Kernels of these files that are settled themselves stay so.
        """
        from ..stages.discovery import discover
        from ..stages.selection import require_archs, select

        self.run.require_cache()
        identity = self._identity(self.tools.lowerer)
        with self.run.progress.ahead("reading the definition files"):
            records, errors = discover(
                [self.run.top / file for file in files],
                self.run.top,
                self.run.discovery,
                lambda: self.run.pool,
                identity,
                {name: kernel.file for name, kernel in kept.items()},
                self.run.strict,
                lambda name, start, end, failed: self.run.trace.span("DISCOVER", name, start, end, failed=failed),
                self.run.answers,
            )
        for record in records:
            notes = told(record.file, record.untracked, record.unnamed if self.run.has_remote else ())
            found, before = Unsettled(record, {}, notes), len(errors)
            # Kernels whose names other files have taken: they are among the errors already.
            twice = {kernel.name for kernel in record.kernels if kernel.name in kept or kernel.name in self._discovered}
            for kernel in record.kernels:
                if kernel.name in twice:
                    continue
                self._discovered.add(kernel.name)
                if self.run.shard and not self.run.shard.has(kernel.name):
                    found.elsewhere.append(kernel.name)
                    continue
                try:
                    built = self._configured.applied(kernel, record) if self._configured else kernel
                    selection = self._tuned(select(built, self.settings), kernel, found)
                    if self.tools.cuda is not None:
                        require_archs(kernel, self.tools.cuda)
                except KernelwrightError as error:
                    errors.append(error)
                    continue
                # What is missing for a backend is no error of one definition: it ends the run, and is said once.
                self._require(selection.backends)
                found.notes.extend(_notes(selection))
                if selection.archs:
                    with _noted(errors):
                        found.kernels[kernel.name] = self.add_kernel(record, selection)
            self._note_outside(self._digests(found))
            if len(errors) == before and not twice:
                self._looked_into.append(found)
            self._tell(found.notes)
        return errors

    def _tuned(self, selection: KernelSelection, declared: KernelRecord, found: Unsettled) -> KernelSelection:
        """The variants of a kernel that its tuning tables choose; what they name in vain is among the notes.

        Raises:
            TuningError: a table is malformed; or, with ``--strict``, it names what is not declared any more.
        """
        names = self._tables.get(declared.name, ())
        if not declared.choices and not names:
            return selection
        from ..stages import tuned

        read = tuned.read_tables(self.run.top, names)
        found.tables.update(read.digests)
        chosen = tuned.choose(selection, read.tables, declared)
        if self.run.strict and chosen.stale:
            raise chosen.stale[0]
        if not declared.choices:
            found.notes.extend(f"kernelwright: {name} has no effect: {declared.name} has no space" for name in names)
        found.notes.extend(map(tuned.note_of, chosen.stale))
        return chosen.selection

    def _require(self, names: Sequence[str]) -> None:
        """Raise a ToolchainError if what a backend needs to build is missing."""
        for name in names:
            if name not in self._required:
                backends.get(name).require_build()
                self._required.add(name)

    def _tell(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.run.progress.note(note)

    def add_kernel(self, definition: DefinitionRecord, selection: KernelSelection) -> KernelBuild:
        """Make the nodes of a kernel."""
        from ..stages import ir, kernel

        context = KernelContext(self.context, definition, selection, frontends.of(selection.record))
        build = kernel.make(context, self.glibc_stage, self.launcher_stage, self._listings)
        shown = ir.make_all(context) if self._showing else []
        for stage in (*build.stages, *build.checks, *build.listings, *shown):
            self.add_stage(stage)
        self.unsettled[selection.record.name], self._shown[selection.record.name] = build, shown
        return build

    def _failure(self, number: int, error: KernelwrightError) -> Any:
        """The node of a stage that reports an error of a definition file, so that ``-k`` can build the rest."""
        from ..stages import discover

        return self.run.node_of(self.add_stage(discover.make(self.context, number, error)))

    def _assemble(self, settled: Settled, kept: dict[str, SettledKernel]) -> Any:
        parts = [settled_part(name, kernel) for name, kernel in kept.items()]
        parts += [self._part(name, build) for name, build in self.unsettled.items()]
        parts.sort(key=lambda part: part.name)
        project = self._project_version(parts)
        self._assembly = Assembly(self.context, parts, settled.copies, self.made, project)
        if not self.run.passive:
            self._assembly.require_folders()
        stage = self.add_stage(self._assembly.stage())
        files = [built for part in parts for built in (part.entry, *part.products.values())]
        nodes = self.run.nodes_of(stage)
        self.env.Requires(nodes, [self.run.node(file.path) for file in files if file.path] + self._failing)
        # The package's stage removes what is not known, and must not do so while files of IR come.
        self.env.Requires(nodes, [self.run.node_of(stage) for shown in self._shown.values() for stage in shown])
        return SCons.Util.NodeList(nodes)

    def _make_shard(self, kept: Mapping[str, SettledKernel]) -> Any:
        """The target of a shard, which makes its kernels and no package."""
        made = [path for build in self.unsettled.values() for path in (build.entry, *build.products.values())]
        shown = [self.run.node_of(stage) for stages in self._shown.values() for stage in stages if self._shows_always]
        count = len(kept) + len(self.unsettled)
        noun = "1 kernel" if count == 1 else f"{count} kernels"
        self._tell([f"kernelwright: shard {self.run.shard} of {self.settings.package} has {noun}"])
        return self._user_env.Alias(SHARD, [*map(self.run.node, made), *shown, *self._failing])

    def _require_merged(self) -> None:
        """Raise a KernelwrightError that names the kernels that no shard has built, before anything is done."""
        from ..state.shards import lacking

        assert self.run.merged is not None
        made = {path for stage in self.made for path in stage.paths}
        missing = [n for n, b in self.unsettled.items() if not all(self._may_be_merged(s, made) for s in b.stages)]
        if missing:
            raise lacking(self.run.merged, self.settings.package, self._key, missing)

    def _may_be_merged(self, stage: Stage, made: Collection[str]) -> bool:
        """Whether a stage's outputs are in the tree or in the build cache, as far as can be told before the build."""
        cache = None if self.run.has_remote else self.run.cache
        if cache is None or any(path in made for path in stage.sources) or all(map(os.path.lexists, stage.paths)):
            return True
        key, top = stage.cache_key(self.run.digest), self.run.top
        return bool(cache.has(key, lambda name: present_digest(top, name)))

    def _part(self, name: str, build: KernelBuild) -> Part:
        def built(path: str) -> Built:
            return Built(os.path.relpath(path, self.work.get_abspath()), path)

        products = {inside: built(path) for inside, path in build.products.items()}
        return Part(name, build.backends, built(build.entry), products)

    def _alias(self, kept: dict[str, SettledKernel], files: list[str]) -> None:
        """Make the kernels' names, ``check`` and ``ir`` targets of the command line.

        Arguments:
            kept: the kernels that are settled.
            files: the definition files that were looked into.
        """
        for name, kernel in self.unsettled.items():
            products = list(kernel.products.values()) or [kernel.entry]
            shown = [self.run.node_of(stage) for stage in self._shown[name] if self._shows_always]
            self._user_env.Alias(name, [*map(self.run.node, products), *shown, *self._failing])
        requested = set(SCons.Script.COMMAND_LINE_TARGETS)
        if self._failing:
            self._alias_unknown(requested - kept.keys() - self.unsettled.keys(), files)
        restored = self._restored.kernels if self._restored else {}
        for name, settled in kept.items():
            self.run.settled_stages += (
                0 if name in restored else settled.stages + (settled.checks if self._checking else 0)
            )
            if name in requested:
                self._user_env.Alias(name, self._failing)
            else:
                compat.add_alias(name)
        for found in self._looked_into:
            self._alias_elsewhere(requested.intersection(found.elsewhere))
        nodes = [self.run.node_of(check) for kernel in self.unsettled.values() for check in kernel.checks]
        self._user_env.Alias("check", [*nodes, *self._failing])
        for node in nodes:
            # Without this, a build file without Default(), which builds everything, would run all checks.
            self._user_env.Ignore(node.dir, node)
        for listing in self._listings:
            self._add_listing(listing)
        if commands.NAME in requested:
            self._add_compile_commands()
        if self._showing:
            self._alias_ir()
        if TUNE in requested:
            self._add_tune()
        if self._checking:
            for name, kernel in self.unsettled.items():
                if not kernel.record.has_reference:
                    self._tell([f"kernelwright: {name} has no reference, so it is not checked"])
                elif not kernel.checks:
                    from ..stages.check import not_checked

                    written = kernel.record.options.frontend
                    why = not_checked(frontends.get(written), self.tools.of_front_ends.get(written))
                    self._tell([f"kernelwright: {name} {why}"])

    def _add_listing(self, ending: str) -> None:
        """Make ``sass`` or ``ptx``, the ending of the files that are wanted, a target of the command line."""
        self._user_env.Alias(ending, self._failing)
        for name, kernel in self.unsettled.items():
            paths = [path for stage in (*kernel.stages, *kernel.listings) for path in stage.paths]
            texts = [path for path in paths if path.endswith(f".{ending}")]
            self._user_env.Alias(ending, list(map(self.run.node, texts)))
            if not texts:
                self._tell([f"kernelwright: {name} has no device code of which there is a .{ending}"])

    def _alias_ir(self) -> None:
        """Make ``ir`` a target: the IR of all kernels that TVM's passes lower."""
        nodes = [self.run.node_of(stage) for shown in self._shown.values() for stage in shown]
        self._user_env.Alias(IR, [*nodes, *self._failing])
        for node in nodes if not self._shows_always else ():
            self._user_env.Ignore(node.dir, node)
        for name, build in self.unsettled.items():
            if not self._shown[name]:
                self._tell(
                    [f"kernelwright: {name} has no IR to show: it is written in {build.record.options.frontend}"]
                )

    def _add_tune(self) -> None:
        """Make ``tune`` a target: the command ``kernelwright tune`` for the definition files of the package.

        ``KERNELS=gemm,softmax`` names kernels, and ``TUNE="--budget 10m"`` has further options.
        """
        # Imported here, because hardly any run tunes.
        import shlex
        import subprocess

        from ..ondemand.tune_command import command_of, environment_of

        words = SCons.Script.ARGUMENTS
        kernels = words.get("KERNELS", "").replace(",", " ").split()
        files = [f"--file={self.run.top / file}" for file in self._files]
        command = command_of([*kernels, *shlex.split(words.get("TUNE", "")), *files])

        def tune(target: Any, source: Any, env: Any) -> Any:
            status = subprocess.call(command, cwd=self._top, env=environment_of())
            if status == 0:
                return None
            message = f"kernelwright tune ended with exit status {status}"
            return SCons.Errors.BuildError(node=target[0], errstr=message, status=2, exitstatus=2)

        action = self.env.Action(tune, lambda target, source, env: None)  # it shows lines of its own
        self.env.AlwaysBuild(self._user_env.Alias(TUNE, self._failing, action))

    def _alias_unknown(self, names: set[Any], files: list[str]) -> None:
        """Have a target that may be a kernel of a file with errors show these, instead of being unknown to SCons."""
        well = {found.definition.file for found in self._looked_into}
        texts = [Path(self._top, file).read_text("utf-8", "replace") for file in files if file not in well]
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        for name in names:
            if name in words and not Path(self._top, name).exists():
                self._user_env.Alias(name, self._failing)

    def _alias_elsewhere(self, names: Iterable[str]) -> None:
        """Make the names of kernels that other shards build targets that need nothing, and say so."""
        count = self.run.shard.count if self.run.shard else 1
        for name in sorted(names):
            self._tell([f"kernelwright: {name} is in shard {shard_of(name, count)}"])
            compat.add_alias(name)

    def _add_compile_commands(self) -> None:
        """Add the compiler runs to ``build/compile_commands.json``, which is made after the package's libraries."""
        run = self.run
        if run.commands is None:
            run.commands = []
            stage = self.add_stage(commands.make(run.top, run.commands))
            self.env.Alias(commands.NAME, run.nodes_of(stage))
        run.commands += [stage.command for stage in self.made if stage.command]
        paths = [path for kernel in self.unsettled.values() for path in (kernel.entry, *kernel.products.values())]
        self.env.Requires(self.env.Alias(commands.NAME), list(map(run.node, paths)))

    def add_wheel(self, package: Sequence[Any]) -> Any:
        """Add the package's wheels to the alias ``wheel``; the alias is returned.

        Arguments:
            package: the nodes of the package's generated files.
        """
        from ..stages import wheel

        manifest = next(node.get_abspath() for node in package if node.name == "manifest.json")
        tables = [name for names in self._tables.values() for name in names]
        stage = self.add_stage(wheel.make(self.context, [*self._files, *tables], manifest, sorted(self._outside)))

        def publish(target: Any, source: Any, env: Any) -> Any:
            error = wheel.publish(stage, self.context)
            if error is None:
                return None
            return SCons.Errors.BuildError(node=target[0], errstr=str(error), status=2, exitstatus=2)

        action = self.env.Action(publish, lambda target, source, env: None)  # it shows no line of its own
        return self.env.AlwaysBuild(self.env.Alias(wheel.NAME, self.run.nodes_of(stage), action))

    def _settle(self, settled: Settled, kept: dict[str, SettledKernel]) -> None:
        """Write down which kernels are finished now."""
        after = Settled(self._settled_key, copies=self._assembly.copies if self._assembly else {})
        kept_files = {file for file in self._files if file in settled.files} - {
            u.definition.file for u in self._looked_into
        }
        after.files = {file: settled.files[file] for file in settled.files if file in kept_files}
        after.notes = {file: notes for file, notes in settled.notes.items() if file in kept_files}
        after.kernels = dict(kept)
        if self._restored:
            after.files |= {file: stamps for file, stamps in self._restored.files.items() if stamps}
            after.notes |= {file: self._restored.notes[file] for file in self._restored.files}
        finished = set(kept)
        for found in self._looked_into:
            file = found.definition.file
            kernels = {name: self._finished(file, name, nodes) for name, nodes in found.kernels.items()}
            finished |= {name for name, kernel in kernels.items() if kernel}
            stamps = self._stamps(found) if all(kernels.values()) else None
            self._share(found, kernels)
            if stamps:
                after.files[file], after.notes[file] = stamps, found.notes
                after.kernels |= {name: kernel for name, kernel in kernels.items() if kernel}
        if self.run.passive:
            return
        if after != settled:
            write_settled(self._state, after)
        self._remove_logs(finished)

    def _share(self, found: Unsettled, kernels: Mapping[str, SettledKernel | None]) -> None:
        """Note the finished kernels of a definition file for other trees, if nothing else decides what they are."""
        whole = {name: kernel for name, kernel in kernels.items() if kernel is not None}
        all_here = len(whole) == len(kernels) and not found.elsewhere
        if not all(map(is_portable, self._digests(found))):
            return
        if whole and all_here and found.definition.shared and self._restored:
            common = [stage for stage in (self.glibc_stage, self.launcher_stage) if stage is not None]
            stages = [*common, *(stage for build in found.kernels.values() for stage in build.stages)]
            self._restored.keep(found.definition.file, whole, found.notes, stages, self._digests(found))

    def _remove_logs(self, finished: set[str]) -> None:
        """Remove the errors that partial builds kept of kernels that are finished now, or are no more."""
        unfinished = self.unsettled.keys() - finished
        work = self.work.get_abspath()
        for name in os.listdir(work) if os.path.isdir(work) else ():  # noqa: PTH112, PTH208
            logs = f"{work}/{name}/failed"
            gone = name in finished or (not self._failing and name not in unfinished)
            if gone and os.path.isdir(logs):  # noqa: PTH112
                remove_unknown(Path(logs), ())
                with contextlib.suppress(OSError):  # it has other things in it
                    os.rmdir(f"{work}/{name}")  # noqa: PTH106

    def _is_done(self, stage: Stage) -> bool:
        """Whether SCons has made all of a stage, or found it up to date."""
        done = all(map(compat.is_done, self.run.nodes_of(stage)))
        return done and not any(map(self.run.lacks, stage.paths))

    def _finished(self, file: str, name: str, nodes: KernelBuild) -> SettledKernel | None:
        """The kernel's state, if SCons has found or made all of it up to date."""
        if not all(map(self._is_done, nodes.stages)):
            return None
        checks = list(filter(self._is_done, nodes.checks))
        part = self._part(name, nodes)
        files = [part.entry, *part.products.values()]
        known = {built.source: self.run.journal.output(built.path) for built in files if built.path}
        if not all(known.values()):
            return None
        digests = {source: output[1] for source, output in known.items() if output}
        return SettledKernel(
            file,
            len(nodes.stages),
            stamps_of(self._top, [*(path for stage in nodes.stages for path in stage.paths), *nodes.products.values()]),
            len(checks) if len(checks) == len(nodes.checks) else 0,
            stamps_of(self._top, (path for stage in checks for path in stage.paths)),
            list(nodes.backends),
            {path: [built.source, digests[built.source]] for path, built in part.products.items()},
            digests[part.entry.source],
        )

    def _stamps(self, found: Unsettled) -> Any:
        """Stamps of all that decides what the kernels of a definition file are, as far as that can be told."""
        return trusted_stamps(self._top, {n: d for n, d in self._digests(found).items() if n != OUTSIDE})

    def _note_outside(self, present: Mapping[str, Any]) -> None:
        """Note the files outside of the project that kernels depend on, as far as that is known before the build.

        Arguments:
            present: name -> what tells that it is there; None or empty: it is not.
        """
        files = (name for name, there in present.items() if there and not name.endswith("/"))
        self._outside.update(n for n in files if n.startswith("../") or (n.startswith("/") and not is_portable(n)))

    def _digests(self, found: Unsettled) -> dict[str, str]:
        """All that decides what the kernels of a definition file are, with digests."""
        digests = {**dict(found.definition.known), **found.tables}
        for nodes in found.kernels.values():
            for stage in (*nodes.stages, *nodes.checks):
                digests |= {**stage.later, **stage.outside}
        return digests

    def add_stage(self, stage: Stage) -> Stage:
        """Make a stage an SCons target."""
        self.made.append(stage)
        if self.run.only_merged and stage.cacheable:
            stage.make = self._not_merged(stage)
        stage.logs = Path(self.work.get_abspath(), stage.where.kernel or "not-discovered", "failed")
        self.run.add(stage)
        sources = list(map(self.run.node, stage.sources))
        nodes = self.env.Command(self.run.nodes_of(stage), sources, StageAction(stage, self.run))
        # SCons's own cache has a file for each output, and takes no notice of what a stage finds out while it runs.
        self.env.NoCache(nodes)
        return stage

    def _not_merged(self, stage: Stage) -> Callable[..., None]:
        """What takes the place of a compiler's run when packages are assembled from shards."""

        from ..state.shards import REMEDY

        def refuse(*given: Any) -> None:
            kernel, merged = stage.where.kernel, self.run.merged
            place = f" in shard {shard_of(kernel, merged.count)}" if kernel and merged else ""
            message = f"the build cache has no intact entry with what {stage.label} makes{place}"
            raise KernelwrightError(message, stage.where, REMEDY)

        return refuse

    def _name(self, path: str) -> str:
        """A path relative to the top, with forward slashes, if it is below it."""
        return path[len(self._top) + 1 :] if path.startswith(self._top + os.sep) else path

    def _clean(self) -> Any:
        """Nodes for ``scons -c``, which needs no discovery: whole folders go."""
        wheel = self.wheels.Dir(self.settings.package)
        self.run.require_folders(folder.get_abspath() for folder in (self.work, self.folder, self.checks, wheel))
        work = Path(self.work.get_abspath())
        for folder in work.glob("*"):
            self._cleaned(folder.name, self.work.Dir(folder.name))
        self._cleaned("check", self.checks)
        images = {image_file(arch) for arch in self.settings.archs_of("cuda")}
        for ending in LISTINGS:
            found = (path for depth in ("cuda", "cuda/*") for path in work.glob(f"*/*/{depth}/*.{ending}"))
            listed = (path for path in found if path.name not in images)
            self._cleaned(ending, self.work, sorted(map(str, listed)))
        folders = [found for depth in ("*/*/cuda", "*/*/cuda/*", "*/*/llvm/*") for found in work.glob(f"{depth}/{IR}")]
        self._cleaned(IR, self.work, sorted(map(str, folders)))
        self._cleaned("wheel", wheel)
        manifest = self.env.Command(self.folder.File("manifest.json"), [], "")
        made = [self.run.top / "build" / name for name in (".kernelwright", *SINGLE_FILES)]
        self.env.Clean(manifest, [self.work, self.folder, self.checks, wheel, *map(str, made)])
        return manifest

    def _cleaned(self, alias: str, folder: Any, files: Sequence[str] | None = None) -> None:
        """Have ``scons -c`` with a target remove a folder, or some files in it."""
        node = self.env.Command(folder.File(f".clean {alias}"), [], "")
        self.env.Clean(node, folder if files is None else list(files))
        self._user_env.Alias(alias, node)


@contextlib.contextmanager
def _noted(errors: list[KernelwrightError]) -> Iterator[None]:
    """Put what is wrong with one kernel into a list, so that ``-k`` can build the others."""
    try:
        yield
    except (DefinitionError, SettingsError) as error:
        if not error.where.kernel:
            raise
        errors.append(error)


def settled_part(name: str, kernel: SettledKernel) -> Part:
    """A kernel of the assembly that nothing has to be done for."""
    products = {path: Built(source, None, digest) for path, (source, digest) in kernel.products.items()}
    return Part(name, tuple(kernel.backends), Built(f"{name}/entry.json", None, kernel.entry), products)


def _base_folder(env: Any) -> Any:
    """Where outputs go: the SConscript's variant_dir if it has one, otherwise ``build`` beside the SConstruct."""
    here = env.Dir(".")
    return here if here.srcnode() != here else env.Dir("#build")


def _notes(selection: KernelSelection) -> list[str]:
    """What a run says about targets that a kernel is not built for."""
    name = selection.record.name
    if not selection.archs and not selection.left_out:
        return [f"kernelwright: {name} is left out: it is for other targets"]
    notes = [f"kernelwright: {name} is not built for {t}: none of its archs is" for t in selection.left_out]
    return notes + [f"kernelwright: {name} has no target that backend {b} can call" for b in selection.unused]


PULL = "cache-pull"
"""Name of the target that builds nothing and takes everything out of the remote cache."""

TUNE = "tune"
"""The target that tunes."""

SINGLE_FILES = ("trace.json", "report.html", "compile_commands.json")
"""Files in the build folder that no package has for itself."""
