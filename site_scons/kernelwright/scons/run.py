"""What all kernel packages of one ``scons`` run share, and the end of the run."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Script

from ..core.errors import SettingsError, Where
from ..core.once import if_made, shared_property
from ..core.request import digest
from ..define.settings import SETTINGS, Settings
from ..processes.of_build import BuildProcesses
from ..stages.stage import Stage
from ..state.journal import Journal
from ..toolchain.probe import Toolchain
from . import command_line, compat
from .caches import Caches
from .journal import use_journal
from .nodes import Nodes
from .outcome import Outcome
from .progress import Progress
from .shards import Shards
from .tree import Tree

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from ..processes.protocol import Request
    from ..processes.runner import OtherMachines, ToolRunner
    from ..stages.partial import Partial
    from ..state.cache import BuildCache
    from ..state.trace import Trace


class BuildRun:
    """One run of scons in one tree: the first implementation of ``stages.runs.Run``.

    Nothing is started, probed or imported before it is needed.

    Arguments:
        env: an environment, for looking targets up.
        top: the folder of the top SConstruct.
        settings: those of the first package; what all packages share is taken from them.
    """

    def __init__(self, env: Any, top: Path, settings: Settings) -> None:
        self.env = env
        self.top = top
        self.strict = bool(command_line.given("strict"))
        self.partial = _partial(top) if command_line.given("partial") else None
        self.progress = Progress(bool(SCons.Script.GetOption("silent")))
        self.note, self.note_once = self.progress.note, self.progress.note_once
        self.tree = Tree(top, self.note, verify=self.strict)
        self.state, self.discovery = self.tree.state, self.tree.discovery
        self.require_folders = self.tree.require_folders
        self.nodes = Nodes(env)
        self.outcome = Outcome(self.progress, self.nodes, self.partial)
        self.caches = Caches(self.tree, env, settings, self.progress)
        self.shards = Shards(self.tree, self.caches, self.note_once)
        self.processes = BuildProcesses(
            top,
            settings,
            lambda: self.local_jobs,
            lambda: self.state / "measurements.json",
            lambda request, text: self.note(_output(request, text)),
            lambda: _other_machines(top, settings, self.note_once),
        )
        self.folders: set[str] = set()
        self.packages: dict[str, Any] = {}
        self.wheels: dict[str, str] = {}
        self.known_archs: set[str] = set()
        """The CUDA archs that the toolkits know, if a package is built with several."""
        self._twins: dict[tuple[str, str], Stage] = {}
        self.commands: list[Mapping[str, Any]] | None = None
        self.settle: list[Callable[[], None]] = []
        self._settings = settings
        self._begun = False
        self._interrupted = False
        if self.partial:
            compat.keep_going()
        # SCons makes millions of objects and hardly any garbage, so nothing is collected before the first action.
        gc.disable()
        atexit.register(self._close)

    # ---- what stages ask of a run ----

    @property
    def journal(self) -> Journal:
        """SCons's signatures and the contents of the outputs."""
        return self.tree.journal

    @property
    def cache(self) -> BuildCache | None:
        """The build cache, if there is one."""
        return self.caches.build

    @property
    def pool(self) -> WorkerPool:
        """The workers."""
        return self.processes.pool

    @property
    def compilers(self) -> ToolRunner:
        """What runs the compilers."""
        return self.processes.compilers

    def started(self, line: str) -> None:
        """Show that an action begins; the first time, find out how many there are going to be at most."""
        if not self._begun:
            self._begun = True
            gc.freeze()
            gc.enable()
            self.tree.sweep()
            nodes = self.nodes.requested()
            self.progress.expect(lambda: (sum(map(compat.is_dealt_with, nodes)), len(nodes)))
        self.progress.started(line)

    # ---- what packages share besides ----

    @shared_property
    def toolchain(self) -> Toolchain:
        """The tools; probing looks at the user's PATH and CUDA_HOME, running does not."""
        return Toolchain(self.state / "toolchain.json", dict(os.environ), lambda: self.caches.answers)

    @shared_property
    def trace(self) -> Trace:
        """The timeline of this run."""
        from ..state.trace import Trace

        return Trace(self.progress.start)

    @property
    def local_jobs(self) -> int:
        """How many processes work on this machine at once. With a cluster, most stages wait for other machines."""
        jobs = command_line.jobs()
        return min(jobs, len(os.sched_getaffinity(0))) if self._settings.cluster else jobs

    def allow(self, settings: Settings, given: Collection[str]) -> None:
        """Give requests the time and the variables that a package asks for, as packages share the workers.

        Arguments:
            given: the names of the settings that the package gives itself.

        Raises:
            SettingsError: one of these settings is for all packages, and the first package has another value.
        """
        for name in given:
            first, own = getattr(self._settings, name), getattr(settings, name)
            if SETTINGS[name].of_run and first != own:
                where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
                message = f"{name} is {own!r}, and {first!r} for {self._settings.package}; packages of a run share it"
                raise SettingsError(message, where, "give it in pyproject.toml, or the same value to each package")
        self.processes.allow(settings)

    def take_wheel_name(self, wheels: Any, package: str) -> None:
        """Note how the wheel of a package begins.

        Arguments:
            wheels: the request of its stage.

        Raises:
            SettingsError: the wheel of another package of the run has that name and version.
        """
        name = f"{wheels.project.name}-{wheels.project.version}"
        if (other := self.wheels.setdefault(name, package)) != package:
            where = Where(stage="settings", location=f"KernelWheel({package!r})")
            message = f"its wheel would be called {name}, as that of {other}"
            raise SettingsError(message, where, f'give it a name: env.KernelWheel({package!r}, name="...")')

    def lock(self) -> None:
        """Take the tree for this run, if it changes anything; see :meth:`.tree.Tree.lock`."""
        if not command_line.is_passive():
            self.tree.lock(wait=not command_line.given("no-wait"))

    def twin_of(self, stage: Stage) -> Stage | None:
        """The stage that makes the same from the same, but for its sources, for another package; None: there is none.

        Of two packages of one kernel the second finds in the build cache what the first has made.
        """
        first = self._twins.setdefault((stage.label, digest(stage.request)), stage)
        return None if first is stage else first

    def add(self, stage: Stage) -> None:
        """Register a stage, and have its outputs made again if somebody changed them since they were built."""
        self.nodes.stages.append(stage)
        if not command_line.is_passive():
            self.tree.prepare(stage.paths, f"{stage.logs}/log")

    # ---- the end ----

    def interrupt(self) -> None:
        """End what runs: the user wants the run to end."""
        self._interrupted = True
        self.processes.close()

    def _close(self) -> None:
        """End the run: no process stays, and what was found out is kept for the next one."""
        try:
            self._end()
        except KeyboardInterrupt:
            # Either the build is over, or this is not the first Ctrl-C.
            self._interrupted = True
            self.caches.close(interrupted=True)
            with contextlib.suppress(KeyboardInterrupt):
                self.processes.close()
            self.progress.erase()
            text = "interrupted at its end; the next run may repeat some of what this one found out"
            sys.stderr.write(f"kernelwright: {text}\n")

    def _end(self) -> None:
        self.processes.close()
        if command_line.is_passive() or not (self.nodes.stages or self.outcome.settled):
            self.caches.close(self._interrupted)
            return
        try:
            self._keep()
        except OSError as error:
            problem: OSError | None = error
        else:
            problem = self.journal.problem
        if problem is not None:
            self.progress.erase()
            sys.stderr.write(
                f"kernelwright: what this run found out could not be kept: {problem.strerror or problem} "
                f"({problem.filename or self.state}); the next one repeats some of it\n"
            )
        self.outcome.tell(self.shards.only_merged)

    def _keep(self) -> None:
        """Write down what this run has found out."""
        try:
            for settle in self.settle:
                settle()
            self.journal.close()
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        finally:
            self.caches.close(self._interrupted)
        self.caches.trim()
        self.processes.save()
        if trace := if_made(self, "trace"):
            from ..state.trace import RunSummary

            counts = self.outcome.counts
            counts["built"] -= counts["cached"]
            cores = len(os.sched_getaffinity(0))
            summary = RunSummary(jobs=command_line.jobs(), cores=cores, caches=self.caches.counts, **counts)
            trace.write(self.top / "build" / "trace.json", summary)


def _other_machines(top: Path, settings: Settings, note: Callable[[str], None]) -> OtherMachines | None:
    """The machines of a cluster, if the settings name one."""
    if not settings.cluster:
        return None
    # Imported here, because few builds use a cluster.
    from ..cluster.start import cluster_at

    return cluster_at(settings.cluster, top / Path(settings.cluster_certificates).expanduser(), note)


def _output(request: Request[Any], text: str) -> str:
    """What a definition printed, as it is shown: one text, since it may have millions of lines."""
    return "\n".join(f"{request.where}: {line}" for line in text.splitlines())


def _partial(top: Path) -> Partial:
    # Imported here, because few runs are partial.
    from ..stages.partial import Partial

    return Partial(top)


def current_run(env: Any, settings: Settings, given: Collection[str]) -> BuildRun:
    """The run that this environment belongs to: one for each top folder, however many environments there are.

    Arguments:
        given: see :meth:`BuildRun.allow`.
    """
    run = begun_run(env)
    if run is None:
        top = Path(env.Dir("#").get_abspath())
        run = _RUNS[str(top)] = BuildRun(env, top, settings)
        use_journal(lambda: run.journal)
        compat.on_interrupt(run.interrupt)
    run.allow(settings, given)
    return run


def begun_run(env: Any) -> BuildRun | None:
    """The run that this environment belongs to; None: no package has begun one yet."""
    return _RUNS.get(env.Dir("#").get_abspath())


_RUNS: dict[str, BuildRun] = {}
"""SCons gives tools no place of their own that all environments of a run share."""
