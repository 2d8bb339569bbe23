"""Runs tools on a cluster, if their calls say what they need there. All other calls run here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..core.errors import LONGEST_SHOWN, KernelwrightError, ToolchainError, Where, WorkerError, printable
from ..processes.environment import place_for_shell
from ..processes.messages import Failed, Result, decode, encode
from ..processes.protocol import ToolRun, result_of
from ..processes.runner import judged
from ..processes.tools import Elsewhere, SharedTool, ToolCall, ToolResult
from .messages import FOLDER, SCRATCH, Action, ActionResult, Offer, Packed, StandIns


class ClusterGone(Exception):
    """The cluster does not answer any more."""


class NotDone(Exception):
    """The cluster has given a run up; the text says why."""


class Engine(Protocol):
    """A connection to a cluster. Safe to use from several threads."""

    @property
    def address(self) -> str:
        """Where the cluster is."""

    def offers(self) -> Sequence[Offer]:
        """What its machines have now, or had some seconds ago; raises ClusterGone."""

    def execute(self, request: bytes, tool: str) -> bytes:
        """Have a machine with a tool do a request; blocks until it is done.

        Raises:
            NotDone: the machines that tried were lost, or none has the tool any more.
            ClusterGone: the cluster does not answer any more.
            WorkerError: the connection was closed.
        """

    def close(self) -> None:
        """Cancel all that it does for this process, and leave it."""


class Cluster:
    """The machines of a cluster, see :class:`OtherMachines`. Runs that the cluster does not do are done here.

    Arguments:
        connect: connects to the cluster, or raises a KernelwrightError; called before the first run on it.
        versions: the versions that machines must have, as in :class:`Offer`.
        note: shows a line, once.
    """

    def __init__(self, connect: Callable[[], Engine], versions: Mapping[str, str], note: Callable[[str], None]) -> None:
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

    def run(self, call: ToolCall, here: Callable[[ToolCall], ToolResult]) -> ToolResult:
        """Run a tool on the cluster, or here if that cannot be.

        Raises:
            ToolchainError: no machine has the tool, or the answer of one makes no sense.
        """
        remote = None if call.elsewhere is None or self._is_gone else _remote(call, call.elsewhere)
        if remote is None:
            return here(call)
        try:
            answer = remote.read(self._execute(remote))
        except NotDone as problem:
            self._note(f"kernelwright: {call.where}: {problem}: running it here")
            try:
                return here(call)
            except KernelwrightError as error:
                error.message = f"{error.message} (before that, {problem})"
                raise
        except ClusterGone as problem:
            with self._lock:
                is_new, self._is_gone = not self._is_gone, True
            if is_new:
                self._note(f"kernelwright: the cluster does not answer any more ({problem}): going on without it")
            return here(call)
        return judged(call, answer)

    def close(self) -> None:
        """Cancel what the cluster does; a later run raises a WorkerError."""
        with self._lock:
            self._is_closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _execute(self, remote: _Remote) -> bytes:
        engine = self._connected()
        if remote.tool.identity not in self._known:
            self._require(engine, remote.tool)
        return engine.execute(encode(0, remote.action), remote.tool.identity)

    def _connected(self) -> Engine:
        """The connection to the cluster. If it cannot be made, all calls raise that error; there is one attempt."""
        # A lock of its own, so that close() does not wait until a silent cluster is given up.
        with self._connecting:
            if self._engine is None and self._refusal is None and not self._is_closed:
                try:
                    self._engine = self._connect()
                except KernelwrightError as error:
                    self._refusal = error
        if self._is_closed:
            self.close()  # the build may have ended while this connected
        elif (refusal := self._refusal) is not None:
            # A new error, because each stage adds its own line. Not copy.copy, which Dask changes for errors.
            raise type(refusal)(refusal.message, refusal.where, refusal.remedy, refusal.detail)
        elif (engine := self._engine) is not None:
            return engine
        raise WorkerError("the build is ending, so nothing is sent to the cluster any more")

    def _require(self, engine: Engine, tool: SharedTool) -> None:
        """Raise a ToolchainError, which says what both sides have, if no machine has a tool."""
        offers = engine.offers()
        if any(offer.has(tool.identity, self._versions) for offer in offers):
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
    """What this build needs, and what each kind of machine has."""
    needed = f"needed: {_versions_text(versions)}, {tool.name} {tool.version} ({tool.identity[:16]})"
    kinds: Counter[str] = Counter()
    for offer in offers:
        has = [f"{text} ({name[:16]})" for name, text in offer.tools.items() if text.startswith(f"{tool.name} ")]
        kinds[", ".join([_versions_text(offer.versions), *(sorted(has) or [f"no {tool.name}"])])] += 1
    lines = [f"{number} workers: {text}" for text, number in sorted(kinds.items())]
    return [needed, *(lines or ["the cluster has no workers"])]


def _versions_text(versions: Mapping[str, str]) -> str:
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return named or "not started by kernelwright worker"


@dataclass(frozen=True)
class _Remote:
    """A run on another machine.

    Arguments:
        action: what is sent.
        outputs: the paths of the action's outputs on this machine, in their order.
        stand_ins: puts paths of this machine into what the tool printed.
        tool: the tool that runs.
        where: the place for errors.
    """

    action: Action
    outputs: Sequence[Path]
    stand_ins: StandIns
    tool: SharedTool
    where: Where

    def read(self, line: bytes) -> ToolRun:
        """Write the files of an answer, and say how the run ended.

        Raises:
            ToolchainError: the answer makes no sense.
            NotDone: the machine could not run the tool.
        """
        try:
            _, answer = decode(line, {kind.op: kind for kind in (Result, Failed)})
            if isinstance(answer, Failed):
                problem = printable(answer.message[:LONGEST_SHOWN])
                raise NotDone(f"a worker of the cluster could not run {self.tool.name}: {problem}")
            result: ActionResult = result_of(self.action, answer.value)
            run = replace(result.run, output=self.stand_ins.undo(result.run.output))
            run.output.encode()  # raises a ValueError for half of a character, which no file can hold
            contents = [None if file is None else file.content for file in result.files]
            has_failed = run.status != 0 or not run.in_time
            if len(contents) != len(self.outputs) or (None in contents and not has_failed):
                raise ValueError("it has other files than the action makes")
        except (ValueError, WorkerError) as error:
            raise ToolchainError(
                f"the answer of a worker makes no sense: {getattr(error, 'message', error)}",
                self.where,
                "see that all workers have this version of Kernelwright, and find out who runs them",
            ) from error
        for path, content in zip(self.outputs, contents, strict=True):
            if content is not None:
                path.write_bytes(content)
        return run


def _remote(call: ToolCall, needs: Elsewhere) -> _Remote | None:
    """A run as the cluster gets it; None: it has to be here, because its paths mean nothing on other machines."""
    if place_for_shell(call.scratch, call.folder) != str(call.scratch):
        return None
    stand_ins = StandIns({**needs.tool.places, "SCRATCH": str(call.scratch)})
    inputs = {_name(path, call): path for path in needs.inputs}
    outputs = [_name(path, call) for path in needs.outputs]
    if "" in inputs or not all(name.startswith(f"{SCRATCH}/") for name in outputs):
        return None
    action = Action(
        command=tuple(map(stand_ins.put, needs.command or call.command)),
        inputs=tuple((name, Packed.of(path.read_bytes())) for name, path in inputs.items()),
        outputs=tuple(outputs),
        timeout_s=call.timeout_s,
        tool=needs.tool.identity,
        kind=call.kind,
        subject=call.subject,
    )
    return _Remote(action, needs.outputs, stand_ins, needs.tool, call.where)


def _name(path: Path, call: ToolCall) -> str:
    """The name of a file on the cluster; empty: its path is relative, has ``..``, or is in no folder of the run."""
    for name, top in ((SCRATCH, call.scratch), (FOLDER, call.folder)):
        if path.is_relative_to(top) and ".." not in path.parts:
            return f"{name}/{path.relative_to(top).as_posix()}"
    return ""
