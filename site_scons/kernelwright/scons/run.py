"""What all kernel packages of one ``scons`` run share: tools, workers, cache, progress, and the end of the run."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import fcntl
import gc
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import SCons.Script

from ..core.errors import KernelwrightError, SettingsError, Where, shown
from ..core.files import linked_folder, make_way, open_lock, remove_stale_scratch
from ..core.pipeline import KINDS, LISTINGS
from ..core.shard import Shard, parse_shard
from ..define.settings import SETTINGS, Settings
from ..stages.stage import Stage
from ..state.journal import Journal
from ..toolchain.probe import Toolchain
from . import compat
from .journal import use_journal
from .progress import Progress

if TYPE_CHECKING:
    from ..cluster.runner import ClusterRunner
    from ..core.answers import Answers
    from ..define.record import DefinitionRecord
    from ..processes.pool import WorkerPool
    from ..processes.protocol import Request
    from ..processes.runner import ToolRunner
    from ..stages.partial import Partial
    from ..state.cache import BuildCache
    from ..state.counts import Counts
    from ..state.remote_client import RemoteCache
    from ..state.shards import Merged
    from ..state.trace import Trace


ON_REQUEST = ("CHECK", "IR")
"""Stages that run only if their target is asked for, whatever folder they write into. With ``dump_ir`` the package also
waits for IR."""

FLUSH_S = 20.0
"""Seconds that the end of a run waits for what is still to be written to the remote cache."""

INTERRUPTED_S = 1.0
"""The same after Ctrl-C."""


class shared_property(cached_property[Any]):
    """A cached property that several threads may ask for; from Python 3.12 on, functools' own is then made twice."""

    _making = threading.RLock()

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        with self._making:
            return super().__get__(instance, owner)


class BuildRun:
    """One run of scons in one tree. Nothing is started, probed or imported before it is needed.

    Arguments:
        env: an environment, for looking targets up.
        top: the folder of the top SConstruct.
        settings: those of the first package; what all packages share is taken from them.
    """

    def __init__(self, env: Any, top: Path, settings: Settings) -> None:
        self.env = env
        self.top = top
        self.state = top / "build" / ".kernelwright"
        self.scratch = self.state / "scratch"
        self.discovery = self.state / "discovery"
        self.bases = {str(top / "build")}
        self.progress = Progress(bool(SCons.Script.GetOption("silent")))
        self.stages: list[Stage] = []
        self._nodes: dict[str, Any] = {}
        self.packages: set[str] = set()
        self.made: dict[str, Any] = {}
        self.wheel_of: str | None = None
        self.strict = bool(compat.option("kernelwright_strict"))
        self.partial = _partial(top) if compat.option("kernelwright_partial") else None
        self.shard = _shard()
        self.merged: Merged | None = None
        self.shard_keys: dict[str, str] = {}
        self.settled_stages = 0
        self.restored_stages = 0
        self.commands: list[Mapping[str, Any]] | None = None
        self.settle: list[Callable[[], None]] = []
        self._tables: dict[str, str] = {}
        self._used_tables: set[str] = set()
        self._settings = settings
        self._variables = dict.fromkeys(settings.environment)
        self._timeouts = {"worker": settings.worker_timeout, "tool": settings.tool_timeout}
        self._failures: list[str] = []
        self._refused = 0
        self._avoidable = False
        self._begun = False
        self._interrupted = False
        self._lock: TextIO | None = None
        self._folders: set[str] = set()
        self._warned: set[str] = set()
        self._said: set[tuple[str, str | None, str | None]] = set()
        self._warning = threading.Lock()
        if self.partial:
            compat.keep_going()
        # SCons makes millions of objects and hardly any garbage; what there is of it goes when the build starts.
        gc.disable()
        atexit.register(self._close)

    @shared_property
    def journal(self) -> Journal:
        """SCons's signatures and the contents of the outputs."""
        return Journal(self.state / "journal", self.top, verify=self.strict)

    @shared_property
    def cache(self) -> BuildCache | None:
        """The build cache; that of ``env.CacheDir`` if the build file names one, otherwise that of the settings."""
        from ..core.quantity import parse_size
        from ..state.cache import BuildCache

        given = compat.cache_folder(self.env)
        folder = Path(str(self.env.Dir(given).get_abspath()), "kernelwright") if given else self._settings.cache_dir
        if not folder or SCons.Script.GetOption("cache_disable"):
            return None
        limit = parse_size(self._settings.cache_size or "1T") * 1024
        place = self.top / folder
        self.require_folders([str(place)])
        self._require_outside(place)
        writable = not SCons.Script.GetOption("cache_readonly")
        owned = place == self.state / "cache"
        return BuildCache(place, limit, writable, owned, self._stages_on_demand, lambda: self.remote)

    @property
    def has_remote(self) -> bool:
        """Whether this run may use a remote cache."""
        return bool(self._settings.remote_cache) and not self.passive

    @shared_property
    def remote(self) -> RemoteCache | None:
        """The remote cache, if the settings name one."""
        if not self.has_remote:
            return None
        from ..state.remote_opening import open_remote

        return open_remote(self._settings, self.top, os.environ, self._warn)

    def _warn(self, text: str) -> None:
        """Show a line once, also with ``-s``: nothing fails, but somebody should know."""
        with self._warning:
            is_new = text not in self._warned
            self._warned.add(text)
        if is_new:
            self.progress.erase()
            sys.stderr.write(f"{text}\n")

    def _stages_on_demand(self) -> BuildCache | None:
        """The stages that compile on demand has finished, if there are any."""
        # Imported here, because a run with nothing to do does not need it.
        from ..ondemand.store import stages_behind

        return stages_behind(self.top, os.environ)

    def merge(self) -> None:
        """Take what the command line says out of the build caches of shards, once.

        Raises:
            KernelwrightError: a folder is no build cache of a shard, or there is no build cache here to take it into.
        """
        folders = compat.option("kernelwright_merge")
        if not folders or self.passive or self.merged is not None:
            return
        from ..state.shards import merge

        cache = _require_writable(self.cache, "a merge takes what shards have built by way of the build cache")
        self.merged = merge(cache, [Path(os.path.normpath(self.top / folder)) for folder in folders])
        if self.only_merged:
            self._require_whole()
            compat.keep_going()
        shards = ", ".join(sorted({str(built.shard) for built in self.merged.shards}))
        self.note(f"kernelwright: the build cache has the {self.merged.entries} entries of the shards {shards}")
        for line in self.merged.damaged[:MOST_DAMAGED]:
            self.note(f"kernelwright: left out, because it is damaged: {line}")
        if len(self.merged.damaged) > MOST_DAMAGED:
            self.note(f"kernelwright: and {len(self.merged.damaged) - MOST_DAMAGED} more that are damaged")

    def _require_whole(self) -> None:
        if self.partial:
            message = "--partial has to find out here what fails, and a merge compiles nothing"
            raise SettingsError(message, Where(stage="settings"), "add --build-missing, or leave --partial out")

    @property
    def only_merged(self) -> bool:
        """Whether all that a compiler makes has to be in the build cache, because it was merged from shards."""
        return self.merged is not None and not compat.option("kernelwright_build_missing")

    def note_shard(self, package: str, key: str) -> None:
        """Have the build cache say which shard fills it.

        Arguments:
            key: digest of all that each kernel of the package depends on.

        Raises:
            KernelwrightError: there is no build cache, or it cannot be written, so that nobody could merge the shard.
        """
        if self.shard is None or self.passive:
            return
        from ..state.shards import BuiltShard, note_shard

        cache = _require_writable(self.cache, "a shard gives what it builds to the merge by way of the build cache")
        self.shard_keys[package] = key
        note_shard(cache.folder, BuiltShard(self.shard, self.shard_keys))

    def not_shared(self, stage: Stage) -> KernelwrightError | None:
        """What is wrong if a shard could not put the outputs of a stage into the build cache."""
        if self.shard is None or self.cache is None or not self.cache.problem:
            return None
        message = f"the merge would lack what this shard builds: {self.cache.problem}"
        return KernelwrightError(message, replace(stage.where, stage="cache"), "mend that and run scons again")

    def _require_outside(self, place: Path) -> None:
        """Raise a SettingsError if the build cache is to be among the outputs of builds; its default place is not."""
        real = os.path.realpath(place) + os.sep
        inside = next((base for base in self.bases if real.startswith(os.path.realpath(base) + os.sep)), None)
        if inside is not None and real != os.path.realpath(self.state / "cache") + os.sep:
            message = f"the build cache cannot be in {place}: builds write into {os.path.relpath(inside, self.top)}"
            remedy = "leave cache_dir out, or set it to a folder outside of that"
            raise SettingsError(message, Where(stage="settings"), remedy)

    @property
    def answers(self) -> Answers | None:
        """What other trees and machines have found out: it is in the build cache, if this run may use that."""
        return None if self.passive else self.cache

    def require_cache(self) -> None:
        """Raise a SettingsError if there is something else where the build cache is to be, before any work is done."""
        if not self.passive:
            _ = self.cache

    @shared_property
    def toolchain(self) -> Toolchain:
        """The tools; probing looks at the user's PATH and CUDA_HOME, running does not."""
        return Toolchain(self.state / "toolchain.json", dict(os.environ), lambda: self.answers)

    @shared_property
    def pool(self) -> WorkerPool:
        """The workers; none is started before the first request."""
        from ..processes.pool import WorkerPool

        pool = WorkerPool(self.local_jobs, self.top, self._timeouts["worker"], on_output=self._show_output)
        pool.variables = tuple(self._variables)
        return pool

    @shared_property
    def compilers(self) -> ToolRunner | ClusterRunner:
        """What runs the compilers, with a limit for their time and their memory."""
        from ..processes.memory import governor_of
        from ..processes.runner import ToolRunner

        settings = self._settings
        governor = governor_of(settings.memory_limit, settings.nvcc_memory, self.state / "measurements.json")
        local = ToolRunner(self.local_jobs, self.top, self._timeouts["tool"], governor)
        if not settings.cluster:
            return local
        # Imported here, because few builds use a cluster.
        from ..cluster.messages import versions
        from ..cluster.runner import ClusterRunner
        from ..cluster.start import connect

        certificates = self.top / Path(settings.cluster_certificates).expanduser()
        return ClusterRunner(local, lambda: connect(settings.cluster, certificates), versions(), self.note_once)

    @shared_property
    def trace(self) -> Trace:
        """The timeline of this run."""
        from ..state.trace import Trace

        return Trace(self.progress.start)

    @property
    def jobs(self) -> int:
        """How many stages run at once."""
        return int(SCons.Script.GetOption("num_jobs"))

    @property
    def local_jobs(self) -> int:
        """How many processes work on this machine at once. With a cluster, most stages only wait for others."""
        return min(self.jobs, len(os.sched_getaffinity(0))) if self._settings.cluster else self.jobs

    def allow(self, settings: Settings, given: Collection[str]) -> None:
        """Give requests the time and the variables that a package asks for; packages share the workers.

        Arguments:
            given: the names of the settings that the package gives itself.

        Raises:
            SettingsError: one of them is for all packages, and the first package has another.
        """
        for name in given:
            first, own = getattr(self._settings, name), getattr(settings, name)
            if SETTINGS[name].of_run and first != own:
                where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
                message = f"{name} is {own!r}, and {first!r} for {self._settings.package}; packages of a run share it"
                raise SettingsError(message, where, "give it in pyproject.toml, or the same value to each package")
        self._variables |= dict.fromkeys(settings.environment)
        if "pool" in self.__dict__:
            self.pool.variables = tuple(self._variables)
        for name, seconds in (("worker", settings.worker_timeout), ("tool", settings.tool_timeout)):
            self._timeouts[name] = max(self._timeouts[name], seconds)
        for name, pool in (("worker", "pool"), ("tool", "compilers")):
            if pool in self.__dict__:
                getattr(self, pool).timeout_s = self._timeouts[name]

    @property
    def passive(self) -> bool:
        """Whether this run only shows something (``-h``, ``-n``) or cleans, so that nothing may be made or removed."""
        return any(SCons.Script.GetOption(option) for option in ("help", "clean", "no_exec", "question"))

    def require_folders(self, folders: Iterable[str]) -> None:
        """Raise a KernelwrightError if a folder of outputs is a link: what it leads to is somebody's, and stays so.

        Arguments:
            folders: absolute paths. They may not exist yet, and those outside of all build folders are left out.
        """
        for folder in dict.fromkeys(folders):
            base = min((base for base in self.bases if folder.startswith(base + os.sep)), key=len, default="")
            if base and (link := linked_folder(base, folder)):
                message = f"{os.path.relpath(link, self.top)} is a symbolic link, where builds have a folder"
                remedy = f"remove the link; only {os.path.relpath(base, self.top)} itself may be one"
                raise KernelwrightError(message, Where(stage="settings"), remedy)

    def node(self, path: str) -> Any:
        """The node of a file; the name may have a dollar sign, which ``env.File`` would expand."""
        if path not in self._nodes:
            self._nodes[path] = self.env.fs.File(path)
        return self._nodes[path]

    def nodes_of(self, stage: Stage) -> list[Any]:
        """The nodes of a stage's outputs."""
        return [self.node(path) for path in stage.paths]

    def node_of(self, stage: Stage) -> Any:
        """The node of a stage's first output, whose state is that of the stage."""
        return self.node(stage.paths[0])

    def add(self, stage: Stage) -> None:
        """Register a stage, and have its outputs made again if somebody changed them since they were built."""
        self.stages.append(stage)
        if self.passive:
            return
        folders = {os.path.dirname(path) for path in (*stage.paths, f"{stage.logs}/log")} - self._folders  # noqa: PTH120
        self.require_folders(folders)
        self._folders |= folders
        for path in stage.paths:
            if os.path.exists(path) and not self.journal.intact(path):  # noqa: PTH110
                # Of outputs that no finished stage has made there is nothing to tell: an earlier run was killed.
                self.remove(path, tell=self.journal.output(path) is not None)

    def remove(self, path: str, tell: bool = True) -> None:
        """Remove an output that is not what was built, so that it is made again."""
        if tell:
            shown = os.path.relpath(path, self.top)
            self.progress.note(f"kernelwright: {shown} is not as it was built: making it again")
        make_way(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108

    def remember(self, definition: DefinitionRecord, request: str, dependencies: Mapping[str, str]) -> dict[str, str]:
        """Note the files that a request turned out to depend on; those that the definition's own record lacks."""
        # Imported here, because most runs discover nothing.
        from ..stages.discovery import remember_dependencies

        return remember_dependencies(definition, self.top, self.discovery, request, dependencies)

    def digest(self, path: str) -> str:
        """SHA-256 of a source of a stage; that of an output is known already."""
        digest: str = self.journal.digest(path)
        return digest

    def started(self, line: str) -> None:
        """Show that an action begins; the first time, find out how many there are going to be at most."""
        if not self._begun:
            self._begun = True
            gc.freeze()
            gc.enable()
            for folder in (self.state.parent, self.state, *self._records):
                remove_stale_scratch(folder)
            ids = self._wanted()
            nodes = [self.node_of(stage) for stage in self.stages if id(stage) in ids]
            self.progress.expect(lambda: (sum(map(compat.is_dealt_with, nodes)), len(nodes)))
        self.progress.started(line)

    def lock(self) -> None:
        """Wait until no other scons works in this tree; the lock ends with the process, however it ends.

        Raises:
            KernelwrightError: another one does, and ``--no-wait`` was given.
        """
        if self.passive or self._lock is not None:
            return
        self.require_folders(str(folder) for folder in self._records)
        lock = os.fdopen(open_lock(self.state / "lock"), "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if compat.option("kernelwright_no_wait"):
                remedy = "wait for it to end, or leave --no-wait out"
                raise KernelwrightError("another scons works in this tree", Where(stage="settings"), remedy) from None
            self.progress.note("kernelwright: another scons works in this tree, waiting for it to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock
        self.journal.writable = True

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock. A process that has it as well keeps the tree locked until it ends."""
        assert self._lock is not None
        return self._lock.fileno()

    @property
    def _records(self) -> list[Path]:
        """The folders of what this run notes for the next one, and of what it is working on."""
        return [self.scratch, self.discovery, *(self.state / name for name in ("journal", "settled", "pch", "headers"))]

    def _wanted(self) -> set[int]:
        """The stages that the requested targets need, up to date or not."""
        makers = {node: stage for stage in self.stages for node in self.nodes_of(stage)}
        todo = [node for target in SCons.Script.BUILD_TARGETS for node in self._resolve(target)]
        wanted: set[int] = set()
        seen = set(todo)
        while todo:
            node = todo.pop()
            stage = makers.get(node)
            if stage is not None:
                wanted.add(id(stage))
            sources = map(self.node, stage.sources) if stage else node.sources
            needed = [*sources, *(node.prerequisites or ())]
            found = [source for source in needed if source not in seen]
            seen.update(found)
            todo += found
        return wanted or {id(stage) for stage in self.stages if stage.label not in ON_REQUEST}

    def _resolve(self, target: Any) -> list[Any]:
        """The nodes of a target of the command line or of Default(); for a folder, all that is made below it."""
        node = target
        if isinstance(target, str):
            node = compat.find_alias(target) or self.env.fs.Entry(target)
        made = [node for stage in self.stages for node in self.nodes_of(stage) if stage.label not in ON_REQUEST]
        return [made_node for made_node in made if made_node.is_under(node)] if compat.is_folder(node) else [node]

    def _show_output(self, request: Request[Any], text: str) -> None:
        """Show what a definition printed."""
        # One note, since it may have millions of lines.
        self.progress.note("\n".join(f"{request.where}: {line}" for line in text.splitlines()))

    def note(self, text: str) -> None:
        """Show a line."""
        self.progress.note(text)

    def note_once(self, text: str) -> None:
        """Show a line unless this run has shown it."""
        self.progress.note_once(text)

    def lacks(self, path: str | None) -> bool:
        """Whether a file was not made, and the run went on without it."""
        return self.partial is not None and path is not None and self.partial.lacks(path)

    def failed(self, stage: Stage, error: KernelwrightError) -> None:
        """Note a failure for the last lines of the run."""
        self._avoidable |= KINDS[stage.label].tolerated
        first = next(iter(error.message.splitlines()), "")
        self._failures.append(f"{stage.line}: {first}")
        self.progress.finished(stage.line)
        self.progress.erase()

    def stopped(self, errors: int = 1) -> None:
        """Note that the run ends before it begins, because of that many errors that are about to be shown."""
        self._refused = max(self._refused, errors)
        self.progress.erase()

    def text_of(self, error: KernelwrightError) -> str:
        """What is shown of a stage's error: the details of one that another stage has had, too, are not repeated."""
        said = error.message, error.detail, error.remedy
        if error.detail is None or said not in self._said:
            self._said.add(said)
            return str(error)
        return f"{str(error).splitlines()[0]} (its details are shown once)"

    def trace_stage(self, stage: Stage, start: float, failed: bool) -> None:
        """Put a stage that ran just now into the timeline."""
        import time

        where, measured = stage.where, stage.measured
        self.trace.span(
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

    def note_tables(self, tables: Mapping[str, Iterable[str]], kernels: set[str] | None) -> None:
        """Note the tuning tables that a package looked for.

        Arguments:
            tables: name of a kernel -> files.
            kernels: the kernels that the package has; None: they are not known, because there are errors.
        """
        for name, files in tables.items():
            self._tables |= dict.fromkeys(files, name)
            if kernels is None or name in kernels:
                self._used_tables.update(files)

    def _tell_of_tables(self) -> None:
        """Say which tuning tables are of no kernel of any package, such as one that was renamed."""
        for file in sorted(self._tables.keys() - self._used_tables):
            self.progress.note(f"kernelwright: {file} has no effect: no kernel {self._tables[file]!r} is built")

    def end_children(self) -> None:
        """End all workers and all compilers, with everything that they started."""
        for name in ("pool", "compilers"):
            if name in self.__dict__:
                getattr(self, name).close()

    def _close(self) -> None:
        """End the run: no process stays, and what was found out is kept for the next one."""
        try:
            self._end()
        except KeyboardInterrupt:
            # All that was to be built has been, or the user was impatient before.
            self._interrupted = True
            self._end_remote()
            with contextlib.suppress(KeyboardInterrupt):
                self.end_children()
            self.progress.erase()
            text = "interrupted at its end; the next run may repeat some of what this one found out"
            sys.stderr.write(f"kernelwright: {text}\n")

    def _end(self) -> None:
        self.end_children()
        if self.passive or not (self.stages or self.settled_stages):
            self._end_remote()
            return
        try:
            self._keep()
        except OSError as error:
            problem: OSError | None = error
        else:
            problem = self.journal.problem
        if problem is not None:
            self._not_kept(problem)
        self._tell_of_tables()
        self._tell_of_targets()
        self._summary()

    def _tell_of_targets(self) -> None:
        """Point at a target that is misspelt, of which SCons says only that it cannot make it."""
        for name in compat.unknown_targets():
            if name == "wheel":
                remedy = "write env.KernelWheel(PACKAGE) into the build file"
                sys.stderr.write(f"kernelwright: there is no target 'wheel'; {remedy}\n")
                continue
            near = difflib.get_close_matches(name, {*compat.aliases(), *TARGETS} - {name}, 3, 0.7)
            if near:
                sys.stderr.write(f"kernelwright: there is no target {shown(name)}; did you mean {' or '.join(near)}?\n")

    def _not_kept(self, error: OSError) -> None:
        self.progress.erase()
        sys.stderr.write(
            f"kernelwright: what this run found out could not be kept: {error.strerror or error} "
            f"({error.filename or self.state}); the next one repeats some of it\n"
        )

    def _keep(self) -> None:
        try:
            for settle in self.settle:
                settle()
            self.journal.close()
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        finally:
            self._end_remote()
        if "cache" in self.__dict__ and self.cache is not None:
            self.cache.trim()
            if self.cache.problem:
                sys.stderr.write(f"kernelwright: the build cache could not be written: {self.cache.problem}\n")
        if "compilers" in self.__dict__:
            self.compilers.save()
        if "trace" in self.__dict__:
            from ..state.trace import RunSummary

            counts = self._counts()
            counts["built"] -= counts["cached"]
            cores = len(os.sched_getaffinity(0))
            summary = RunSummary(jobs=self.jobs, cores=cores, caches=self._cache_counts(), **counts)
            self.trace.write(self.top / "build" / "trace.json", summary)

    def _cache_counts(self) -> dict[str, Counts]:
        """What the caches have done that this run has used."""
        used = {"local": self.__dict__.get("cache"), "remote": self.__dict__.get("remote")}
        return {name: cache.counts for name, cache in used.items() if cache is not None}

    def _end_remote(self) -> None:
        """Have the remote cache write what is still to be written, and say what it did."""
        if "remote" not in self.__dict__ or self.remote is None or self.remote.is_closed:
            return
        patience_s = INTERRUPTED_S if self._interrupted else FLUSH_S
        # However often the user is impatient: Python must not end in the middle of a request.
        while not self.remote.is_closed:
            with contextlib.suppress(KeyboardInterrupt):
                self.remote.close(patience_s)
            patience_s = 0
        counts = self.remote.counts
        if counts.hits or counts.misses or counts.written:
            self.progress.note(f"kernelwright: remote cache: {counts}")

    def interrupt(self) -> None:
        """End what runs: the user wants the run to end."""
        self._interrupted = True
        self.end_children()

    def _counts(self) -> dict[str, Any]:
        nodes = [self.node_of(stage) for stage in self.stages]
        lacking = sum(self.lacks(stage.paths[0]) for stage in self.stages)
        return {
            "built": sum(map(compat.was_built, nodes)) - lacking + self.restored_stages,
            "cached": sum(stage.cached for stage in self.stages) + self.restored_stages,
            "reused": self.settled_stages + sum(map(compat.was_up_to_date, nodes)),
            "failed": len(self._failures) + self._refused,
            "seconds": round(self.progress.seconds, 3),
        }

    def _summary(self) -> None:
        # Without -k the one failure has just been shown.
        listed = self._failures if SCons.Script.GetOption("keep_going") else []
        self.progress.summary(self._counts(), listed)
        wheel = "wheel" in SCons.Script.COMMAND_LINE_TARGETS
        if self._avoidable and not self.partial and not self.only_merged and (listed or wheel):
            made = "scons --partial wheel makes a wheel" if wheel else "scons --partial makes a package"
            sys.stderr.write(f"kernelwright: {made} of what is well\n")


TARGETS = (*LISTINGS, "check", "compile_commands", "ir", "tune", "wheel")
"""Targets beside kernels and files; some exist only where they are asked for."""

MOST_DAMAGED = 20
"""Damaged entries of shards that are listed."""

SHARD = "shard"
"""The target that makes the kernels of a shard, and what is asked for with ``--shard`` if nothing else is."""


def _shard() -> Shard | None:
    """The shard that the command line asks for; None: it asks for all.

    Raises:
        SettingsError: there is no such shard, or something is asked for that needs all kernels.
    """
    if not compat.is_given("kernelwright_shard"):
        return None
    shard, targets = parse_shard(compat.option("kernelwright_shard")), SCons.Script.COMMAND_LINE_TARGETS
    merge = "build the shards without it, then run kernelwright merge FOLDER..."
    if SCons.Script.GetOption("clean"):
        raise _refused_shard("-c removes the outputs of all kernels", "leave --shard out")
    if compat.option("kernelwright_merge"):
        raise _refused_shard("--merge assembles packages, of all shards", "leave --shard out")
    if compat.option("kernelwright_partial"):
        remedy = "build the shards with -k, then run kernelwright merge --build-missing FOLDER... -- --partial"
        raise _refused_shard("--partial assembles packages, and a shard makes none", remedy)
    if "wheel" in targets:
        raise _refused_shard("a wheel has all kernels", f"{merge} -- wheel")
    if "tune" in targets:
        raise _refused_shard("tuning goes by kernels", "leave --shard out, and name kernels: KERNELS=gemm")
    if not targets:
        compat.ask_for(SHARD)
    return shard


def _refused_shard(message: str, remedy: str) -> SettingsError:
    return SettingsError(f"--shard does not fit here: {message}", Where(stage="settings"), remedy)


def _require_writable(cache: BuildCache | None, message: str) -> BuildCache:
    """The build cache. Raises a SettingsError if there is none in this run, or one that is not to be changed."""
    if cache is None or SCons.Script.GetOption("cache_readonly"):
        remedy = "leave --cache-disable and --cache-readonly out, and give cache_dir a folder"
        raise SettingsError(f"{message}, which this run has not", Where(stage="settings"), remedy)
    return cache


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
    """The run that this environment belongs to, as the packages have it so far; None: there is no package yet."""
    return _RUNS.get(env.Dir("#").get_abspath())


_RUNS: dict[str, BuildRun] = {}
"""SCons gives tools no place of their own that all environments of a run share."""
