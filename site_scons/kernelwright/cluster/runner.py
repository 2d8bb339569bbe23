"""Runs tools on a cluster, if they say what they need elsewhere. All others stay here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..core.errors import LONGEST_SHOWN, KernelwrightError, ToolchainError, Where, WorkerError, printable
from ..processes.elsewhere import Elsewhere, SharedTool
from ..processes.environment import place_for_shell
from ..processes.protocol import ToolRun
from ..processes.runner import ToolResult, ToolRunner, judged
from .messages import FOLDER, SCRATCH, Answer, Request, StandIns


@dataclass(frozen=True)
class Offer:
    """What a worker of a cluster says of itself.

    Arguments:
        worker: its address.
        versions: ``kernelwright`` and ``python`` -> version; empty: it is none of Kernelwright's.
        tools: identity of a tool -> its name and version.
    """

    worker: str
    versions: Mapping[str, str]
    tools: Mapping[str, str]


class ClusterGone(Exception):
    """The cluster does not answer any more."""


class NotDone(Exception):
    """The cluster has given a run up; the text says why."""


class Engine(Protocol):
    """A cluster. Safe to use from several threads."""

    @property
    def address(self) -> str:
        """Where it is."""

    def offers(self) -> Sequence[Offer]:
        """Its workers as they are now, or were some seconds ago; raises ClusterGone."""

    def execute(self, request: bytes, tool: str) -> bytes:
        """Have a worker with a tool do a request; blocks until it is done.

        Raises:
            NotDone: those who tried were lost, or nobody has the tool any more.
            ClusterGone: it does not answer any more.
            WorkerError: it was closed.
        """

    def close(self) -> None:
        """Cancel all that it does for this process, and leave it."""


class ClusterRunner:
    """Runs tools, on a cluster where that is possible; see ``RunsTools``. Safe to use from several threads.

    Arguments:
        local: runs tools here.
        connect: connects to the cluster; called when the first run is to go there. It raises a KernelwrightError.
        versions: what workers have to have, as :class:`Offer` has it.
        note: shows a line, once.
    """

    def __init__(
        self,
        local: ToolRunner,
        connect: Callable[[], Engine],
        versions: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._local = local
        self._connect = connect
        self._versions = versions
        self._note = note
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._engine: Engine | None = None
        self._refusal: KernelwrightError | None = None
        self._known: set[str] = set()
        self._is_gone = False
        self._is_closed = False

    @property
    def project_root(self) -> Path:
        """The folder of the project."""
        return self._local.project_root

    @property
    def timeout_s(self) -> float:
        """Seconds that a run may take; a change applies to runs that begin after it."""
        return self._local.timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self._local.timeout_s = value

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        scratch: Path,
        where: Where,
        remedy: str,
        *,
        kind: str,
        subject: str,
        elsewhere: Elsewhere | None = None,
        called: str = "",
    ) -> ToolResult:
        """Run a tool; see :meth:`ToolRunner.run`.

        Raises:
            ToolchainError: no worker has the tool, or the answer of one makes no sense.
        """

        def here() -> ToolResult:
            return self._local.run(command, folder, scratch, where, remedy, kind=kind, subject=subject, called=called)

        if elsewhere is None or self._is_gone:
            return here()
        action = _action(elsewhere, command, folder, scratch, self.timeout_s, kind, subject)
        if action is None:
            return here()
        try:
            answer = action.answer(self._execute(action.request, elsewhere.tool), where)
        except NotDone as problem:
            self._note(f"kernelwright: {where}: {problem}: running it here")
            return _blaming(here, problem)
        except ClusterGone as problem:
            with self._lock:
                is_new, self._is_gone = not self._is_gone, True
            if is_new:
                self._note(f"kernelwright: the cluster does not answer any more ({problem}): going on without it")
            return here()
        return judged(command, answer, action.request.timeout_s, where, remedy, called)

    def save(self) -> None:
        """Write what this build measured, for the next one."""
        self._local.save()

    def close(self) -> None:
        """Cancel what the cluster does, and end all runs here; these, and any later one, raise a WorkerError."""
        with self._lock:
            self._is_closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._local.close()

    def _execute(self, request: Request, tool: SharedTool) -> bytes:
        engine = self._connected()
        if tool.identity not in self._known:
            self._require(engine, tool)
        return engine.execute(request.encode(), tool.identity)

    def _connected(self) -> Engine:
        """The cluster; what goes wrong at the first time goes wrong for all."""
        # A lock of its own, because close() must not wait until a cluster that says nothing is given up.
        with self._connecting:
            if self._engine is None and self._refusal is None and not self._is_closed:
                try:
                    self._keep(self._connect())
                except KernelwrightError as error:
                    self._refusal = error
        with self._lock:
            if self._is_closed:
                raise WorkerError("the build is ending, so nothing is sent to the cluster any more")
            if (known := self._refusal) is not None:
                # A new one, because each stage adds its own line. Not copy.copy, which Dask changes for errors.
                raise type(known)(known.message, known.where, known.remedy, known.detail)
            assert self._engine is not None
            return self._engine

    def _keep(self, engine: Engine) -> None:
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._engine = engine
        if is_late:
            engine.close()

    def _require(self, engine: Engine, tool: SharedTool) -> None:
        """Raise a ToolchainError if no worker has a tool: both sides are named."""
        offers = engine.offers()
        if any(tool.identity in offer.tools and offer.versions == self._versions for offer in offers):
            self._known.add(tool.identity)
            return
        raise ToolchainError(
            f"no worker of the cluster {engine.address} has this {tool.name}",
            Where(stage="settings"),
            "install the same packages there as here, and start workers with kernelwright worker; or build without "
            "the cluster",
            "\n".join(_differences(offers, tool, self._versions)),
        )


def _differences(offers: Sequence[Offer], tool: SharedTool, versions: Mapping[str, str]) -> list[str]:
    """What this build needs, and what each kind of worker has."""
    lines = [f"needed: {_versions_text(versions)}, {tool.name} {tool.version} ({tool.identity[:16]})"]
    kinds: dict[str, int] = {}
    for offer in offers:
        has = [f"{text} ({identity[:16]})" for identity, text in sorted(offer.tools.items(), key=lambda item: item[1])]
        same = [text for text in has if text.startswith(f"{tool.name} ")] or [f"no {tool.name}"]
        text = ", ".join([_versions_text(offer.versions), *same])
        kinds[text] = kinds.get(text, 0) + 1
    if not kinds:
        return [*lines, "the cluster has no workers"]
    return [*lines, *(f"{number} workers: {text}" for text, number in sorted(kinds.items()))]


def _versions_text(versions: Mapping[str, str]) -> str:
    if not versions:
        return "not started by kernelwright worker"
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _blaming(here: Callable[[], ToolResult], problem: NotDone) -> ToolResult:
    """Run a tool here that the cluster has given up; an error says so, too."""
    try:
        return here()
    except KernelwrightError as error:
        error.message = f"{error.message} (before that, {problem})"
        raise


@dataclass(frozen=True)
class _Action:
    """A run for the cluster.

    Arguments:
        request: what is sent.
        places: name of an output -> its path here.
        stand_ins: puts paths of this machine into what the tool printed.
        tool: what is run.
    """

    request: Request
    places: Mapping[str, Path]
    stand_ins: StandIns
    tool: SharedTool

    def answer(self, data: bytes, where: Where) -> ToolRun:
        """Write the files of an answer, and say how the run ended.

        Raises:
            ToolchainError: it makes no sense.
            NotDone: the worker could not run the tool.
        """
        try:
            answer = Answer.decode(data, self.request.outputs)
            run = None if answer.run is None else replace(answer.run, output=self.stand_ins.undo(answer.run.output))
            if run is not None and run.status == 0 and run.in_time and len(answer.files) < len(self.places):
                raise ValueError("a file is missing that the action makes")
        except ValueError as error:
            raise ToolchainError(
                f"the answer of a worker makes no sense: {error}",
                where,
                "see that all workers have this version of Kernelwright, and who runs them",
            ) from error
        if run is None:
            problem = printable(answer.problem[:LONGEST_SHOWN])
            raise NotDone(f"a worker of the cluster could not run {self.tool.name}: {problem}")
        for name, content in answer.files.items():
            self.places[name].write_bytes(content)
        return run


def _action(
    elsewhere: Elsewhere,
    command: Sequence[str],
    folder: Path,
    scratch: Path,
    timeout_s: float,
    kind: str,
    subject: str,
) -> _Action | None:
    """A run as the cluster gets it; None: it has to be here, because commands have relative paths of its files."""
    if place_for_shell(scratch, folder) != str(scratch):
        return None
    stand_ins = StandIns({**elsewhere.tool.places, "SCRATCH": str(scratch)})
    inputs = {_name(path, folder, scratch): path for path in elsewhere.inputs}
    outputs = {_name(path, folder, scratch): path for path in elsewhere.outputs}
    if "" in inputs or not all(name.startswith(f"{SCRATCH}/") for name in outputs):
        return None
    request = Request(
        tuple(map(stand_ins.put, elsewhere.command or command)),
        {name: path.read_bytes() for name, path in inputs.items()},
        tuple(outputs),
        timeout_s,
        elsewhere.tool.identity,
        kind,
        subject,
    )
    return _Action(request, outputs, stand_ins, elsewhere.tool)


def _name(path: Path, folder: Path, scratch: Path) -> str:
    """What the cluster calls a file; empty: it is in no folder of the run, or not by an absolute path."""
    for name, top in ((SCRATCH, scratch), (FOLDER, folder)):
        if path.is_relative_to(top) and ".." not in path.parts:
            return f"{name}/{path.relative_to(top).as_posix()}"
    return ""
