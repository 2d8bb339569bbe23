"""What all kernel packages of one ``scons`` run share: tools, workers, progress, the ledger, and the end of the run."""

from __future__ import annotations

import atexit
import fcntl
import os
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import SCons.Node
import SCons.Node.Alias
import SCons.Node.FS
import SCons.Script

from ..errors import KernelwrightError
from ..files import remove_stale_scratch
from ..toolchain import Toolchain
from ..workers.pool import WorkerPool
from ..workers.protocol import Request
from .ledger import Ledger
from .progress import Progress
from .stage import Stage


class BuildRun:
    """One run of scons in one tree. Nothing is started or probed before it is needed.

    Arguments:
        env: an environment, for looking targets up.
        top: the folder of the top SConstruct.
        worker_timeout: seconds that one request to a worker may take.
    """

    def __init__(self, env: Any, top: Path, worker_timeout: float) -> None:
        self.env = env
        self.top = top
        self.state = top / "build" / ".kernelwright"
        self.scratch = self.state / "scratch"
        self.discovery = self.state / "discovery"
        self.progress = Progress(bool(SCons.Script.GetOption("silent")))
        self.stages: list[Stage] = []
        self.packages: set[str] = set()
        self._worker_timeout = worker_timeout
        self._failures: list[str] = []
        self._begun = False
        self._lock: TextIO | None = None
        atexit.register(self._close)

    @cached_property
    def ledger(self) -> Ledger:
        """The journal of outputs."""
        return Ledger(self.state / "outputs.jsonl", self.top)

    @cached_property
    def toolchain(self) -> Toolchain:
        """The tools; probing looks at the user's PATH and CUDA_HOME, running does not."""
        return Toolchain(self.state / "toolchain.json", dict(os.environ))

    @cached_property
    def pool(self) -> WorkerPool:
        """The workers; none is started before the first request."""
        jobs = int(SCons.Script.GetOption("num_jobs"))
        return WorkerPool(jobs, self.top, self._worker_timeout, on_output=self._show_output)

    def allow(self, worker_timeout: float) -> None:
        """Give requests that much time; packages share the workers, and none is cut shorter than it asked for."""
        self._worker_timeout = max(self._worker_timeout, worker_timeout)
        if "pool" in self.__dict__:
            self.pool.timeout_s = self._worker_timeout

    @property
    def passive(self) -> bool:
        """Whether this run only shows something (``-h``, ``-n``) or cleans, so that nothing may be made or removed."""
        return any(SCons.Script.GetOption(option) for option in ("help", "clean", "no_exec", "question"))

    def add(self, stage: Stage) -> None:
        """Register a stage, and have its outputs made again if somebody changed them since they were built."""
        self.stages.append(stage)
        if self.passive:
            return
        for node in stage.nodes:
            path = Path(node.get_abspath())
            if path.is_file() and not self.ledger.intact(path):
                shown = os.path.relpath(path, self.top)
                self.progress.note(f"kernelwright: {shown} is not as it was built: making it again")
                path.unlink()

    def started(self, line: str) -> None:
        """Show that an action begins; the first time, find out how many there are going to be at most."""
        if not self._begun:
            self._begun = True
            remove_stale_scratch(self.scratch)
            ids = self._wanted()
            wanted = [stage for stage in self.stages if id(stage) in ids]
            self.progress.expect(lambda: (sum(_is_done(stage) for stage in wanted), len(wanted)))
        self.progress.started(line)

    def lock(self) -> None:
        """Wait until no other scons works in this tree; the lock ends with the process, however it ends."""
        if self.passive or self._lock is not None:
            return
        self.state.mkdir(parents=True, exist_ok=True)
        self._lock = (self.state / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.progress.note("kernelwright: another scons works in this tree, waiting for it to end")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _wanted(self) -> set[int]:
        """The stages that the requested targets need, up to date or not."""
        makers = {node: stage for stage in self.stages for node in stage.nodes}
        todo = [node for target in SCons.Script.BUILD_TARGETS for node in self._resolve(target)]
        wanted: set[int] = set()
        seen = set(todo)
        while todo:
            node = todo.pop()
            stage = makers.get(node)
            if stage is not None:
                wanted.add(id(stage))
            found = [source for source in (stage.sources if stage else node.sources) if source not in seen]
            seen.update(found)
            todo += found
        return wanted or {id(stage) for stage in self.stages if stage.label != "CHECK"}

    def _resolve(self, target: Any) -> list[Any]:
        """The nodes of a target of the command line or of Default(); for a folder, all that is made below it."""
        node = target
        if isinstance(target, str):
            node = SCons.Node.Alias.default_ans.lookup(target) or self.env.fs.Entry(target)
        made = [node for stage in self.stages for node in stage.nodes if stage.label != "CHECK"]
        return [made_node for made_node in made if made_node.is_under(node)] if _is_folder(node) else [node]

    def _show_output(self, request: Request, text: str) -> None:
        """Show what a definition printed."""
        for line in text.splitlines():
            self.progress.note(f"{request.where}: {line}")

    def failed(self, stage: Stage, error: KernelwrightError) -> None:
        """Note a failure for the last lines of the run."""
        self._failures.append(f"{stage.line}: {error.message.splitlines()[0]}")
        self.progress.finished(stage.line)
        self.progress.erase()

    def _close(self) -> None:
        if "pool" in self.__dict__:
            self.pool.close()
        if not self.stages or self.passive:
            return
        states = [(stage, stage.nodes[0].get_state()) for stage in self.stages]
        built = [stage for stage, state in states if state == SCons.Node.executed]
        reused = sum(state == SCons.Node.up_to_date for _, state in states)
        self._record_retrieved(built)
        known = (SCons.Node.executed, SCons.Node.up_to_date)
        published = [stage for stage, state in states if stage.published and state not in known]
        self.ledger.seal(Path(node.get_abspath()) for stage in published for node in stage.nodes)
        # Without -k the one failure has just been shown.
        listed = self._failures if SCons.Script.GetOption("keep_going") else []
        self.progress.summary(len(built), reused, len(self._failures), listed)

    def _record_retrieved(self, built: list[Stage]) -> None:
        """Outputs that came out of a CacheDir did not pass through a stage, so the ledger does not know them yet."""
        for stage in built:
            paths = [Path(node.get_abspath()) for node in stage.nodes]
            for path in paths:
                if path.is_file() and not self.ledger.intact(path):
                    self.ledger.record([path])


def current_run(env: Any, worker_timeout: float) -> BuildRun:
    """The run that this environment belongs to: one for each top folder, however many environments there are."""
    top = Path(env.Dir("#").get_abspath())
    run = _RUNS.get(str(top))
    if run is None:
        run = _RUNS[str(top)] = BuildRun(env, top, worker_timeout)
    run.allow(worker_timeout)
    return run


def _is_done(stage: Stage) -> bool:
    """Whether SCons has dealt with a stage: built it, or found it up to date, or seen it fail."""
    return stage.nodes[0].get_state() in (SCons.Node.up_to_date, SCons.Node.executed, SCons.Node.failed)


def _is_folder(node: Any) -> bool:
    return isinstance(node, SCons.Node.FS.Dir) or (isinstance(node, SCons.Node.FS.Entry) and node.isdir())


_RUNS: dict[str, BuildRun] = {}
"""SCons gives tools no place of their own that all environments of a run share."""
