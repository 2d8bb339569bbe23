"""One kernel package as SCons sees it: what is asked for, where its files are, what it is made with, and its stages."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Errors
import SCons.Script

from ..backends import versions
from ..core.arch import native_family
from ..core.dependencies import is_portable
from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.files import canonical_json
from ..core.pipeline import LISTINGS
from ..core.request import differences, first_of
from ..core.version import VERSION
from ..define.debug import folder_of
from ..define.settings import Settings, affecting
from ..define.tables import tables_in
from ..stages import commands
from ..stages.code import own_code
from ..stages.context import Context
from ..stages.execution import attempt
from ..stages.package import images_in, named_backends
from ..stages.stage import IR, Stage
from ..stages.tools import Tools, find_tools
from ..toolchain.miscompiles import warnings
from . import command_line
from .command_line import is_passive
from .compat import ActionBase, fail_at_the_end
from .run import BuildRun

if TYPE_CHECKING:
    from ..stages.configured import Configured
    from ..stages.launcher import CompiledLauncher
    from ..toolchain.other_machine import OtherMachine


class StageAction(ActionBase):  # type: ignore[misc]
    """Runs a stage in one of SCons's threads.

    SCons's own FunctionAction would take the function's bytecode as its signature, which changes with the Python
    version and misses every helper that the function calls.
    """

    def __init__(self, stage: Stage, run: BuildRun) -> None:
        super().__init__()
        self.stage = stage
        self.run = run

    def __str__(self) -> str:
        return self.stage.line

    def __hash__(self) -> int:
        return id(self)

    def get_presig(self, target: Any, source: Any, env: Any, executor: Any = None) -> bytes:
        """The stage's fingerprint; in a partial build also the sources that the stage lacks."""
        lacking = self.run.partial.lacking(self.stage) if self.run.partial else []
        fingerprint = self.stage.fingerprint
        return (canonical_json([fingerprint, lacking]) if lacking else fingerprint).encode()

    def get_implicit_deps(self, target: Any, source: Any, env: Any, executor: Any = None) -> list[Any]:
        """None: every dependency of a stage is one of its sources, or in its fingerprint."""
        return []

    def strfunction(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:
        """The progress line."""
        return self.stage.line

    def print_cmd_line(self, text: str, target: Any, source: Any, env: Any) -> None:
        """Show the line with ``-n``; otherwise it is shown when it is known whether the cache has the outputs."""
        if is_passive():
            self.run.started(text)

    def execute(self, target: Any, source: Any, env: Any, executor: Any = None) -> Any:
        """Make the outputs; None, or a BuildError that shows the whole message."""
        run, stage = self.run, self.stage
        if run.partial and run.partial.skips(stage):
            run.journal.forget(stage.paths)
            return None
        if command_line.given("why"):
            run.note(f"kernelwright: {stage.label} {stage.subject} runs: {self._why(source)}")
        start = time.monotonic()
        problem = attempt(stage, run) or run.shards.not_kept(stage)
        self._note_time(start, problem is not None)
        if problem is not None:
            return self._failed(problem)
        run.progress.finished(stage.line)
        return None

    def _why(self, sources: Sequence[Any]) -> str:
        """What differs from the last time that the stage ran."""
        known = self.run.journal.known(self.stage.paths[0])
        if not known:
            return "nothing is known of an earlier time"
        signatures = zip(known["bsources"], known["bsourcesigs"], strict=True)
        before = {name: f"#{info[1].get('csig')}" for name, info in signatures}
        now = {str(node): f"#{node.get_csig()}" for node in sources}
        texts = differences({**known.get("decided", {}), **before}, {**self.stage.decided, **now})
        return first_of(texts) or "an output was missing, or not as it was built"

    def _note_time(self, start: float, failed: bool) -> None:
        """Put the stage, which ran just now, into the timeline."""
        stage, where, measured = self.stage, self.stage.where, self.stage.measured
        self.run.trace.span(
            stage.label,
            stage.subject,
            start,
            time.monotonic(),
            cached=stage.cached,
            failed=failed,
            cpu_seconds=measured.cpu_seconds,
            peak_kib=measured.peak_kib,
            kernel=where.kernel,
            variant=where.variant,
            arch=stage.arch or None,
        )

    def _failed(self, error: KernelwrightError) -> Any:
        run, stage = self.run, self.stage
        outcome, node = run.outcome, run.nodes.node_of(stage)
        outcome.failed(stage, error)
        if run.partial and run.partial.tolerates(stage, error):
            sys.stderr.write(f"scons: *** [{node}] {outcome.text_of(error)}\n")
            fail_at_the_end()
            run.journal.forget(stage.paths)
            return None
        return SCons.Errors.BuildError(node=node, errstr=outcome.text_of(error), status=2, exitstatus=2, action=self)


@dataclass(frozen=True)
class Asked:
    """What a run wants of one package.

    Arguments:
        targets: the targets that the command line names.
        listings: the texts of device code that are asked for: ``sass``, ``ptx``.
        check: whether kernels are checked.
        ir_always: whether the IR after each pass is written because a setting says so.
        settled: whether settled kernels can be left out: all targets are ours, no tree of nodes is shown, and no
            content is to be verified.
        restored: whether whole kernels can come out of the build cache: the run wants all kernels, and nothing more
            of them than their packages and wheels.
    """

    targets: tuple[Any, ...]
    listings: tuple[str, ...]
    check: bool
    ir_always: bool
    settled: bool
    restored: bool

    @property
    def ir(self) -> bool:
        """Whether the IR after each pass is written, be it asked for or set."""
        return IR in self.targets or self.ir_always


def asked_of(settings: Settings, run: BuildRun) -> Asked:
    """What the command line and the settings want of a package."""
    targets, shard = tuple(command_line.targets()), run.shards.shard
    listings = tuple(name for name in LISTINGS if name in targets)
    # A partial package can do without variants that cannot be lowered, and nothing may wait for their IR.
    ir_always = settings.dump_ir == "yes" and run.partial is None and not run.shards.only_merged
    settled = (
        all(isinstance(target, str) and target.isidentifier() for target in targets)
        # A shard belongs to every name, whether or not there is a kernel of that name.
        and (shard is None or {*targets} <= {command_line.SHARD, "check"})
        and not {commands.NAME, IR, *listings} & {*targets}
        and not (ir_always or run.strict or SCons.Script.GetOption("tree_printers"))
    )
    plain = (
        {*targets} <= {"wheel", command_line.SHARD, settings.package}
        and run.partial is None
        and not command_line.is_passive()
    )
    return Asked(targets, listings, "check" in targets, ir_always, settled, settled and plain)


class Package:
    """What all parts of one package's graph work with. It is for one family of CPUs.

    Arguments:
        env: the user's environment; what is added to it are targets and aliases.
        run: the run of scons that it belongs to.
        settings: the package's settings.
        files: SCons file nodes of the definition files.
        place: the folder, below that of all outputs, for those of a package besides the main one of its name; empty:
            it is the main one.
        first: the same package for another family, whose device code this one takes; None: it makes its own.

    Raises:
        SettingsError: there is a package of that name already.
    """

    def __init__(
        self,
        env: Any,
        run: BuildRun,
        settings: Settings,
        files: Sequence[Any],
        place: str = "",
        first: Package | None = None,
    ) -> None:
        self.run = run
        self.settings = settings
        self.place = place
        self.first = first
        self.family = "" if settings.family == native_family() else settings.family
        """The family of CPUs that it is for, if that is not this machine's."""
        self.asked = asked_of(settings, run)
        self.stages: list[Stage] = []
        self._added: set[Stage] = set()
        self.failing: list[Any] = []
        """Nodes that show the errors of definition files, whatever the targets are."""
        self.outside: set[str] = set()
        """The files outside of the project that kernels depend on, as far as that is known before the build."""
        self.begun_launcher: Future[CompiledLauncher] | None = None
        self.user_env = env
        # A clone, so that the user's decider and scanners stay as they are: early cutoff needs contents compared, and
        # the stages name all their sources themselves.
        self.env = env.Clone(SCANNERS=[])
        self.env.Decider("content")
        # None of our nodes is in SCons's cache. Without this line SCons would make the default environment to look for
        # a cache. That looks for compilers, which takes longer than all else in a small build with nothing to do.
        self.env.CacheDir(None)
        base = _base_folder(env)
        run.tree.bases.add(base.get_abspath())
        self.base = base
        for part in filter(None, (place, self.family)):
            base = base.Dir(part)
        self.work = base.Dir("kernels").Dir(settings.package)
        self.folder = base.Dir(settings.package.replace(".", "/"))
        self.checks = base.Dir("check").Dir(settings.package)
        self.wheels = base.Dir("wheels")
        self.top = str(run.top)
        self.files = [self.name(node.get_abspath()) for node in files]
        """The definition files, relative to the project's folder."""
        if str(self.folder) in run.folders:
            where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
            raise SettingsError("a package of that name exists already", where, "give each package its own name")
        run.folders.add(str(self.folder))

    def name(self, path: str) -> str:
        """A path relative to the top, with forward slashes, if it is below it."""
        return path[len(self.top) + 1 :] if path.startswith(self.top + os.sep) else path

    @property
    def is_of_first_toolkit(self) -> bool:
        """Whether it is the package of the first CUDA toolkit, or of the only one."""
        return self.place == folder_of(self.settings.debug)

    @property
    def label(self) -> str:
        """What notes, and records of shards, call it: two toolkits, or two families, have packages of one name."""
        title = f"{self.settings.package} {self.place}".rstrip()
        return f"{title} for {self.family}" if self.family else title

    @cached_property
    def tools(self) -> Tools:
        """The tools, probed now if they were not before.

        Raises:
            KernelwrightError: a tool is missing or broken, or does not know an arch.
        """
        chain, start = self.run.toolchain, time.monotonic()
        with self.run.progress.ahead("looking at the tools"):
            tools = find_tools(self.settings, chain)
        for one in [each.cuda for each in (tools, *tools.others) if each.cuda is not None]:
            archs = [arch for arch in self.settings.archs_of("cuda") if arch in one.archs]
            for line in warnings(one.name, one.version, archs):
                self.run.note_once(f"kernelwright: {line}")
        if chain.probed:
            subject, cpu_seconds = ", ".join(chain.probed), sum(chain.probed.values())
            self.run.trace.span("PROBE", subject, start, time.monotonic(), cpu_seconds=cpu_seconds)
        return tools

    @cached_property
    def context(self) -> Context:
        """What the package's stages are made from."""
        first = self.first.context if self.first else None
        work, package, checks, wheels = (
            Path(node.get_abspath()) for node in (self.work, self.folder, self.checks, self.wheels)
        )
        return Context(
            self.run,
            self.settings,
            self.tools,
            work=work,
            package=package,
            checks=checks,
            wheels=wheels,
            images_in=images_in(self.settings),
            has_gpu=self.has_gpu,
            device=first.work if first else None,
            device_stages=first.device_stages if first else {},
            machine=self.machine,
        )

    @cached_property
    def machine(self) -> OtherMachine | None:
        """What checks for another family run on; None: no setting names it, or nothing is checked.

        Raises:
            ToolchainError: it cannot be used.
        """
        if not (self.asked.check and self.settings.cross_python):
            return None
        # Imported here, because few builds have one.
        from ..toolchain.other_machine import ask_other_machine

        with self.run.progress.ahead(f"looking at the Python for {self.family}"):
            return ask_other_machine(self.family, self.settings.cross_python)

    @cached_property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA driver runs on this machine, so that CUDA code can be checked."""
        return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()

    @cached_property
    def configured(self) -> Configured | None:
        """The configs in the file that the setting ``configs`` names, if it names one."""
        if not self.settings.configs:
            return None
        from ..stages.configured import Configured

        return Configured(self.run.top, self.settings.configs)

    @cached_property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The files of the tuning tables, by the name of the kernel."""
        tables, shard = tables_in(self.run.top, self.settings.tuning), self.run.shards.shard
        return {name: files for name, files in tables.items() if shard is None or shard.has(name)}

    @cached_property
    def key(self) -> str:
        """Digest of everything that all kernels of the package depend on."""
        chosen = affecting(self.settings)
        places = [self.name(folder.get_abspath()) for folder in (self.work, self.folder, self.checks)]
        needs = {backend.name: versions(backend) for backend in named_backends(self.settings)}
        tools = [self.tools.data, [tool.identity for tool in self.tools.of_front_ends.values()], needs]
        configs = hashlib.sha256(self.configured.content).hexdigest() if self.configured else ""
        identity = [VERSION, chosen, configs, tools, own_code(), places, self.has_gpu, self.run.strict]
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    # ---- stages ----

    def add_stage(self, stage: Stage) -> Stage:
        """Make a stage an SCons target, unless the same package for another family has done that."""
        run = self.run
        self.stages.append(stage)
        if self.first and stage in self.first._added:
            return stage
        self._added.add(stage)
        stage.subject += f" ({self.family})" if self.family else ""
        if run.shards.only_merged and stage.cacheable:
            run.shards.refuse(stage)
        stage.logs = Path(self.work.get_abspath(), stage.where.kernel or "not-discovered", "failed")
        run.add(stage)
        sources = list(map(run.nodes.node, stage.sources))
        nodes = self.env.Command(run.nodes.nodes_of(stage), sources, StageAction(stage, run))
        if self.place and stage.cacheable and (twin := run.twin_of(stage)):
            self.env.Requires(nodes, run.nodes.nodes_of(twin))
        elif stage.cacheable and self.settings.label:
            run.twin_of(stage)
        # SCons's own cache has a file for each output, and its keys lack what a stage finds out while it runs.
        self.env.NoCache(nodes)
        return stage

    @cached_property
    def glibc_stage(self) -> Stage | None:
        """The stage that makes stand-ins for the machine's C library; None: kernels are linked with the machine's."""
        from ..stages import glibc

        stage = glibc.make(self.context)
        return self.add_stage(stage) if stage else None

    @cached_property
    def launcher_stage(self) -> Stage:
        """The stage that makes the launcher."""
        from ..stages import launcher

        return self.add_stage(launcher.make(self.context, self.glibc_stage, self.begun_launcher))

    # ---- notes ----

    def tell(self, notes: Sequence[str]) -> None:
        """Show lines."""
        for note in notes:
            self.run.note(note)

    def note_outside(self, present: Mapping[str, Any]) -> None:
        """Note the files outside of the project that kernels depend on.

        Arguments:
            present: name of a file -> its digest or stamp; None or empty: the file is not there.
        """
        files = (name for name, there in present.items() if there and not name.endswith("/"))
        self.outside.update(n for n in files if n.startswith("../") or (n.startswith("/") and not is_portable(n)))


def _base_folder(env: Any) -> Any:
    """Where outputs go: the SConscript's variant_dir if it has one, otherwise ``build`` beside the SConstruct."""
    here = env.Dir(".")
    return here if here.srcnode() != here else env.Dir("#build")
