"""The client's side of the worker processes: starts them when needed, talks to them, and survives their deaths.

A pool has workers of one kind: those that have TVM loaded (see ``server``), or those that run compilers (``tools``).
Callers are threads of the build (SCons runs Python actions in threads), so a call only blocks on a pipe. Nothing here
imports TVM, NumPy or SCons.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core.errors import KernelwrightError, Where, escaped
from ..core.surroundings import PASSED_ON
from .children import PACKAGE_PARENT, START_ELSEWHERE, Forked, ForkServer, Process, Spawned
from .protocol import Definition, Request
from .worker import Answered, Worker, WorkerKind, ending

LAST_GRACE_S = 0.5
"""Seconds that a fork server may take at the end of a build."""

SPARE = 4
"""Idle workers beside those that may work. A build that goes back and forth between two definition files, or between
two archs that a module is imported for, would otherwise replace a worker each time; what the new one imports, such as
PyTorch, can take seconds, and some hundred MiB."""

SERVER = WorkerKind(
    "a worker",
    ("-m", "kernelwright.worker.forkserver"),
    "raise the setting worker_timeout, or look for an endless loop in the definition",
    "the kernel crashes TVM, or crashes itself: change its definition or its schedule",
    "a definition must not end the process it runs in: look for os._exit and for closed file descriptors",
    forked=True,
)
"""The workers that execute definitions and lower them."""

ON_OTHER_MACHINE = replace(SERVER, arguments=("-s", str(START_ELSEWHERE), "forkserver"), has_ours=False)
"""The same in a Python on CPUs of another family, which has its own TVM and no Kernelwright."""

WRITER = WorkerKind(
    "the process of a backend",
    ("-m", "kernelwright.backends.writer"),
    "raise the setting worker_timeout, or look for an endless loop in the plug-in",
    "the plug-in crashes: mend it, or take the backend out of backends",
    "a plug-in must not end the process it runs in: mend it, or take the backend out of backends",
)
"""Those in which backends of other distributions write files."""


class WorkerPool:
    """Worker processes of which at most ``size`` work at once, started when calls need them and reused for later calls.

    A worker that has been asked about a definition file is asked about no other one. So up to :data:`SPARE` more may
    be idle; of more than these, the one that was idle for longest is ended. Calls that wait for a place get one in the
    order in which they came.

    Safe to use from several threads. As a context manager it closes itself.

    Arguments:
        size: largest number of workers that are at work, at least 1.
        project_root: the folder that definition files and their imports are relative to.
        timeout_s: seconds that starting a worker, or answering one request, may take.
        python: the interpreter; for the default kind, one that has TVM installed.
        on_output: called with a request and with what the worker printed while it worked on it (the prints of user
            definitions, TVM's warnings), without control characters; from the thread that made the call. None drops
            the text.
        kind: what the workers are.

    ``variables`` are the names of the variables that definitions see besides ``PASSED_ON``.
    """

    def __init__(
        self,
        size: int,
        project_root: Path,
        timeout_s: float = 300.0,
        python: str = sys.executable,
        on_output: Callable[[Request[Any], str], None] | None = None,
        kind: WorkerKind = SERVER,
    ) -> None:
        self.size = max(1, size)
        self._kind = kind
        self._root = project_root
        self._others: dict[tuple[WorkerKind, str], WorkerPool] = {}
        self._command = [python, *kind.arguments, str(project_root)]
        self._started_in: tuple[dict[str, str], list[str]] | None = None
        self.variables: tuple[str, ...] = ()
        self.timeout_s = timeout_s
        self._on_output = on_output
        self._change = threading.Condition()
        self._line: deque[object] = deque()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._fork_server: ForkServer | None = None
        self._hanging: list[ForkServer] = []
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def started(self) -> int:
        """How many workers are alive or starting."""
        with self._change:
            return len(self._all)

    def call(self, request: Request[Answered], timeout_s: float | None = None) -> Answered:
        """Have a worker do a request, and return the result.

        It blocks until a worker is free and has answered.

        Arguments:
            timeout_s: seconds that the answer may take; None: those of the pool.

        Raises:
            DefinitionError, LoweringError, CheckError: what the worker found wrong.
            WorkerError: the worker died, took too long or answered nonsense, or the pool was closed. Only this request
                is lost: the next call gets another worker.
        """
        result = None
        while result is None:
            worker = self._take(request.where, request.definition)
            worker.take_output()
            try:
                result = worker.call(request, self.timeout_s if timeout_s is None else timeout_s)
            finally:
                self._pass_on_output(request, worker)
                self._put_back(worker)
        return result

    def of(self, kind: WorkerKind, python: str = sys.executable) -> WorkerPool:
        """Workers of another kind, with the same limits. They end with these.

        Arguments:
            python: the interpreter.
        """
        with self._change:
            if (kind, python) not in self._others:
                pool = WorkerPool(self.size, self._root, self.timeout_s, python, self._on_output, kind)
                pool.variables, pool._closed = self.variables, self._closed
                self._others[kind, python] = pool
            return self._others[kind, python]

    def warm_up(self, count: int) -> None:
        """Start some workers now, while the caller does something else. Errors are told by the first call."""
        for _ in range(min(count, self.size)):
            threading.Thread(target=self._start_one, daemon=True).start()

    def _start_one(self) -> None:
        with contextlib.suppress(KernelwrightError):
            self._put_back(self._take(Where()))

    def close(self) -> None:
        """End all workers now, also those that are at work; their calls, and any later call, raise a WorkerError."""
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._all:
                worker.end()
            if self._fork_server is not None:
                self._fork_server.end(LAST_GRACE_S)
            for server in self._hanging:
                server.end()
            self._change.notify_all()
        for worker in idle:
            self._discard(worker)
        for pool in self._others.values():
            pool.close()

    def _take(self, where: Where, definition: Definition = None) -> Worker:
        """Wait for a worker that may execute a definition file, or start one."""
        with contextlib.ExitStack() as unlocked, self._change:
            self._wait_for_place(where)
            for outdated in self._leave_other_environment():
                unlocked.callback(outdated.dispose)
            if (idle := self._find_idle(definition)) is not None:
                return idle
            if len(self._all) >= self.size + SPARE:
                oldest = self._idle.pop(0)
                self._all.discard(oldest)
                unlocked.callback(oldest.dispose)
            worker = Worker(self._kind, self._start_process, where, definition)
            self._all.add(worker)
        try:
            worker.greet(self.timeout_s, where)
        except BaseException:
            with self._change:
                if worker.is_late and self._fork_server is not None and worker.server is self._fork_server:
                    self._hanging.append(self._fork_server)  # others wait for it too, each with its own deadline
                    self._fork_server = None
            self._discard(worker)
            raise
        with self._change:
            if not self._closed:
                return worker
        self._discard(worker)  # close() came while it started
        raise ending(where)

    def _wait_for_place(self, where: Where) -> None:
        """Stand in line until a worker is idle, or one more may be started; the caller has the lock."""
        place = object()
        self._line.append(place)
        try:
            while not self._closed and not (self._line[0] is place and self._has_place):
                self._change.wait()
        finally:
            self._line.remove(place)
            self._change.notify_all()
        if self._closed:
            raise ending(where)

    @property
    def _has_place(self) -> bool:
        return len(self._all) - len(self._idle) < self.size

    def _find_idle(self, definition: Definition) -> Worker | None:
        """An idle worker that has executed this definition file, or none at all, and is its worker from now on."""
        for wanted in dict.fromkeys((definition, None)):
            for worker in reversed(self._idle):
                if worker.definition == wanted:
                    self._idle.remove(worker)
                    worker.definition = definition
                    return worker
        return None

    def _start_process(self, log: int) -> Process:
        """Start a process, which writes to a log; the caller has the lock."""
        if not self._kind.forked:
            return Spawned([*self._command, self._told(_others(self.variables))], self._environment(), log)
        if self._fork_server is None or not self._fork_server.is_alive:
            self._started_in = environment, others = self._environment(), _others(self.variables)
            self._fork_server = ForkServer([*self._command, self._told(others)], environment)
        return Forked(self._fork_server, log)

    def _leave_other_environment(self) -> list[Worker]:
        """Give up the idle workers, and return them, if new ones would see other variables.

        A process may change its environment between two compiles. The caller has the lock.
        """
        if self._started_in in (None, (self._environment(), _others(self.variables))) or self._fork_server is None:
            return []
        self._hanging.append(self._fork_server)
        self._fork_server = self._started_in = None
        outdated, self._idle = self._idle, []
        self._all.difference_update(outdated)
        return outdated

    def _told(self, others: Sequence[str]) -> str:
        """The argument of ``worker.environment.variables_of``."""
        return json.dumps({"declared": self.variables, "others": others})

    def _put_back(self, worker: Worker) -> None:
        with self._change:
            if worker.reusable and not self._closed and worker.server in (None, self._fork_server):
                self._idle.append(worker)
                self._change.notify_all()
                return
        self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        worker.dispose()
        with self._change:
            self._all.discard(worker)
            self._change.notify_all()

    def _pass_on_output(self, request: Request[Any], worker: Worker) -> None:
        if self._on_output is None or not worker.answered:
            return  # a dead worker's output is part of the error
        if text := worker.take_output():
            self._on_output(request, escaped(text))

    def _environment(self) -> dict[str, str]:
        """A fixed environment, in which Kernelwright is imported from where this process imported it, if it is."""
        seen = (*PASSED_ON, *self._kind.variables, *self.variables)
        kept = {name: os.environ[name] for name in seen if name in os.environ}
        return {
            **kept,
            **({"PYTHONPATH": str(PACKAGE_PARENT)} if self._kind.has_ours else {}),
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
        }


def _others(variables: Sequence[str]) -> list[str]:
    """The names of the variables that are set here and that definitions do not see."""
    return sorted(os.environ.keys() - {*PASSED_ON, *variables})
