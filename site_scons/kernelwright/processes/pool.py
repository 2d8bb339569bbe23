"""The client's side of the worker processes: starts them when needed, talks to them, and survives their deaths.

A pool has workers of one kind: those that have TVM loaded (see ``server``), or those that run compilers (``tools``).
Callers are threads of the build (SCons runs Python actions in threads), so a call only blocks on a pipe. Nothing here
imports TVM, NumPy or SCons.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core.errors import KernelwrightError, Where, WorkerError, escaped
from ..core.surroundings import PASSED_ON
from . import protocol
from .children import Forked, ForkServer, Process, Spawned
from .protocol import Answer, CheckRequest, Definition, Hello, Progress, Request, Spent, definition_of
from .tool_process import LARGEST_PIPE, Output

LONGEST_LINE = 1 << 28
"""Bytes of the longest line that a worker may send. Of a compiler's output it sends at most 16 MiB, escaped."""

TAIL = 4000
"""Characters of a dead worker's log that an error shows."""

LOOK_S = 0.5
"""Seconds between two looks whether a worker that says nothing has ended. The end of its pipe does not always tell: a
process that it has left behind may have that open."""

REAP_S = 1.0
"""Seconds that a worker may take to end after its pipe did. One that takes longer is said to have closed its pipe."""

LAST_GRACE_S = 0.5
"""Seconds that a fork server may take at the end of a build."""

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class WorkerKind:
    """What the processes of a pool are, and how errors speak of them.

    Arguments:
        name: such as ``a worker``.
        arguments: the interpreter's arguments that start one.
        late: what to do about one that takes too long.
        crashed: what to do about one that a signal ended (other than SIGKILL).
        left: what to do about one that ended, or closed its pipe, by itself.
        forked: whether ``arguments`` start a fork server, which makes them; otherwise each has an interpreter.
        variables: names of variables that it sees besides those that all see.
    """

    name: str
    arguments: tuple[str, ...]
    late: str
    crashed: str
    left: str
    forked: bool = False
    variables: tuple[str, ...] = ()

    def remedy(self, status: int | None) -> str:
        """What a user can do about a process that ended like this."""
        if status == -signal.SIGKILL:
            return OUT_OF_MEMORY
        return self.crashed if status is not None and status < 0 else self.left


STARTING = "starting"

BROKEN_START = "see whether TVM can be imported: python -c 'import tvm'; on a busy machine raise worker_timeout"

OUT_OF_MEMORY = "the system may have run out of memory: try fewer jobs (-j), or a smaller configuration"

SERVER = WorkerKind(
    "a worker",
    ("-m", "kernelwright.worker.forkserver"),
    "raise the setting worker_timeout, or look for an endless loop in the definition",
    "the kernel crashes TVM, or crashes itself: change its definition or its schedule",
    "a definition must not end the process it runs in: look for os._exit and for closed file descriptors",
    forked=True,
)
"""The workers that execute definitions and lower them."""


class WorkerPool:
    """At most ``size`` worker processes, started when calls need them and reused for later calls.

    A worker that has been asked about a definition file is asked about no other one. If a call finds all places taken
    by idle workers of other files, the one that was idle for longest makes room for a new one. Calls that wait for a
    place get one in the order in which they came.

    Safe to use from several threads. As a context manager it closes itself.

    Arguments:
        size: largest number of workers, at least 1.
        project_root: the folder that definition files and their imports are relative to.
        timeout_s: seconds that starting a worker, or answering one request, may take.
        python: the interpreter; for the default kind, one that has TVM installed.
        on_output: called with a request and with what the worker printed while it worked on it (the prints of user
            definitions, TVM's warnings), without control characters; from the thread that made the call. None drops
            the text.
        kind: what the workers are.

    ``variables`` are the names of those that definitions see besides ``PASSED_ON``.
    """

    def __init__(
        self,
        size: int,
        project_root: Path,
        timeout_s: float = 300.0,
        python: str = sys.executable,
        on_output: Callable[[Request, str], None] | None = None,
        kind: WorkerKind = SERVER,
    ) -> None:
        self.size = max(1, size)
        self._kind = kind
        self._command = [python, *kind.arguments, str(project_root)]
        self._started_in: tuple[dict[str, str], list[str]] | None = None
        self.variables: tuple[str, ...] = ()
        self.timeout_s = timeout_s
        self._on_output = on_output
        self._change = threading.Condition()
        self._line: deque[object] = deque()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
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

    def call(self, request: Request) -> Any:
        """Have a worker do a request, and return the result, of the type that ``RESULTS`` has for it.

        It blocks until there is a free worker and that has answered.

        Raises:
            DefinitionError, LoweringError, CheckError: what the worker found wrong.
            WorkerError: the worker died, took too long or answered nonsense, or the pool was closed. Only this request
                is lost: the next call gets another worker.
        """
        result = None
        while result is None:
            worker = self._take(request.where, definition_of(request))
            try:
                result = worker.call(request, self.timeout_s)
            finally:
                self._pass_on_output(request, worker)
                self._put_back(worker)
        return result

    def warm_up(self, count: int) -> None:
        """Start some workers now, while the caller does something else. What goes wrong is told by the first call."""
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

    def _take(self, where: Where, definition: Definition = None) -> _Worker:
        """Wait for a worker that may execute a definition file, or start one."""
        with contextlib.ExitStack() as unlocked, self._change:
            self._wait_for_place(where)
            for outdated in self._leave_other_environment():
                unlocked.callback(outdated.dispose)
            if (idle := self._find_idle(definition)) is not None:
                return idle
            if len(self._all) >= self.size:
                oldest = self._idle.pop(0)
                self._all.discard(oldest)
                unlocked.callback(oldest.dispose)
            worker = _Worker(self._kind, self._start_process, where, definition)
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
        raise _ending(where)

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
        self._refuse_if_closed(where)

    @property
    def _has_place(self) -> bool:
        return bool(self._idle) or len(self._all) < self.size

    def _find_idle(self, definition: Definition) -> _Worker | None:
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
            return Spawned([*self._command, self._told(self._others())], self._environment(), log)
        if self._fork_server is None or not self._fork_server.is_alive:
            self._started_in = environment, others = self._environment(), self._others()
            self._fork_server = ForkServer([*self._command, self._told(others)], environment)
        return Forked(self._fork_server, log)

    def _leave_other_environment(self) -> list[_Worker]:
        """The idle workers, if they see other variables than they would now; none of them is used any more.

        A process may change its environment between two compiles. The caller has the lock.
        """
        if self._started_in in (None, (self._environment(), self._others())) or self._fork_server is None:
            return []
        self._hanging.append(self._fork_server)
        self._fork_server = self._started_in = None
        outdated, self._idle = self._idle, []
        self._all.difference_update(outdated)
        return outdated

    def _told(self, others: Sequence[str]) -> str:
        """The argument of ``worker.environment.variables_of``."""
        return json.dumps({"declared": self.variables, "others": others})

    def _others(self) -> list[str]:
        """The names of the variables that are set here and that definitions do not see."""
        return sorted(os.environ.keys() - {*PASSED_ON, *self.variables})

    def _refuse_if_closed(self, where: Where) -> None:
        if self._closed:
            raise _ending(where)

    def _put_back(self, worker: _Worker) -> None:
        with self._change:
            if worker.reusable and not self._closed and worker.server in (None, self._fork_server):
                self._idle.append(worker)
                self._change.notify_all()
                return
        self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        worker.dispose()
        with self._change:
            self._all.discard(worker)
            self._change.notify_all()

    def _pass_on_output(self, request: Request, worker: _Worker) -> None:
        if self._on_output is None or not worker.answered:
            return  # a dead worker's output is part of the error
        if text := worker.new_output():
            self._on_output(request, escaped(text))

    def _environment(self) -> dict[str, str]:
        """A fixed environment, in which kernelwright is imported from where this process imported it."""
        seen = (*PASSED_ON, *self._kind.variables, *self.variables)
        kept = {name: os.environ[name] for name in seen if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(_PACKAGE_PARENT),
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
        }


class _Worker:
    """One worker process, used by one thread at a time (``end`` may come from any).

    Arguments:
        kind: what it is.
        start: starts the process, given a descriptor that it prints to.
        where: the place of the error if it cannot be started.
        definition: what its first request makes of it; None: it has had none.
    """

    def __init__(
        self, kind: WorkerKind, start: Callable[[int], Process], where: Where, definition: Definition = None
    ) -> None:
        self.definition = definition
        self._kind = kind
        self._buffer = bytearray()
        self._next_id = 0
        self._doing = STARTING
        self._if_late = ""
        self._ended_by_us = False
        self.is_late = False
        self.reusable = False
        self.answered = False
        self.versions: Mapping[str, str] = {}
        self._output = Output()
        # A pipe and not a file: however much a definition prints, it takes no room on the disk.
        self._log, printed = os.pipe()
        self._log_ended = False
        os.set_blocking(self._log, False)
        try:
            self._process = start(printed)
        except OSError as error:
            os.close(self._log)
            raise WorkerError(f"cannot start {kind.name}: {error}", where) from error
        finally:
            os.close(printed)

    @property
    def server(self) -> ForkServer | None:
        """Who has forked it."""
        return self._process.server

    def greet(self, timeout_s: float, where: Where) -> None:
        """Wait until the worker is ready."""
        hello: Hello = protocol.decode_hello(self._read_line(time.monotonic() + timeout_s, timeout_s, where))
        self.versions = hello.versions
        self.reusable = True

    def call(self, request: Request, timeout_s: float) -> Any | None:
        """Send a request and wait for its answer; None: a new worker has to do it.

        Only an answer, good or bad, leaves the worker reusable, and a good one not if the worker retires.
        """
        self._next_id += 1
        self._read_log()
        self._output = Output()
        self.reusable = self.answered = False
        self._doing = f"working on {request.op}"
        self._if_late = request.if_late if isinstance(request, CheckRequest) else ""
        deadline = time.monotonic() + timeout_s
        self._write(protocol.encode_request(self._next_id, request), deadline, timeout_s, request.where)
        answer = self._read_answer(deadline, timeout_s, request.where)
        if isinstance(answer, Spent):
            return None
        if answer.error is not None:
            self.reusable = self.answered = True
            raise answer.error
        result = protocol.result_of(request, answer.result)
        self.answered = True
        self.reusable = not answer.retiring
        return result

    def end(self) -> None:
        """Kill the process and everything that it started; may be called from any thread."""
        self._ended_by_us = True
        self._process.end()

    def dispose(self) -> None:
        """End the process, reap it and close its pipes; only for the thread that uses the worker."""
        self.reusable = False
        self.end()
        self._process.reap(None)
        self._process.close()
        os.close(self._log)

    def new_output(self) -> str:
        """What the worker has printed since its last request began; of a very long text the ends."""
        self._read_log()
        return self._output.text()

    def _read_log(self) -> None:
        """Take what has been printed by now, also by somebody who never stops."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._log, LARGEST_PIPE)
            self._log_ended = not block
            self._output.add(block)

    def _write(self, line: bytes, deadline: float, timeout_s: float, where: Where) -> None:
        stream = self._process.stdin
        try:
            view = memoryview(line)
            while view:
                # It does not block: a request that is longer than the pipe would wait for a process that reads nothing.
                written = stream.write(view)
                if written is None:
                    self._wait_for(stream.fileno(), select.POLLOUT, deadline, timeout_s, where)
                view = view[written or 0 :]
        except OSError as error:
            raise self._death(where) from error

    def _read_answer(self, deadline: float, timeout_s: float, where: Where) -> Answer | Spent:
        while True:
            line = self._read_line(deadline, timeout_s, where)
            try:
                message = protocol.decode_answer(line)
            except WorkerError as error:  # the answer makes no sense, so the error has no place yet
                error.where = where
                raise
            if message.id != self._next_id:
                text = f"{self._kind.name} answered request {message.id} instead of {self._next_id}"
                raise WorkerError(text, where)
            if isinstance(message, Progress):
                self._note(message)
            elif isinstance(message, Spent) and self._next_id == 1:
                raise WorkerError(f"{self._kind.name} that has executed nothing refused its first request", where)
            else:
                return message

    def _note(self, progress: Progress) -> None:
        self._doing = progress.doing

    def _read_line(self, deadline: float, timeout_s: float, where: Where) -> bytes:
        searched = 0  # an answer may hold megabytes of a compiler's output, so no byte is looked at twice
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            block = self._read_block(deadline, timeout_s, where)
            if not block:
                raise self._death(where)
            if searched > LONGEST_LINE:
                raise WorkerError(f"{self._kind.name} sent a line of more than {LONGEST_LINE} bytes", where)
            self._buffer += block
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read_block(self, deadline: float, timeout_s: float, where: Where) -> bytes:
        stream = self._process.stdout
        try:
            self._wait_for(stream.fileno(), select.POLLIN, deadline, timeout_s, where)
            return os.read(stream.fileno(), 1 << 16)
        except OSError as error:
            raise self._death(where) from error

    def _wait_for(self, descriptor: int, event: int, deadline: float, timeout_s: float, where: Where) -> None:
        """Wait until a pipe is ready, but not beyond the deadline, even if it always is.

        Raises:
            WorkerError: the time is over, or the worker has ended and has left nothing in the pipe.
        """
        look = time.monotonic() + LOOK_S
        while (now := time.monotonic()) < deadline:
            has_ended = now >= look and self._process.has_ended()
            wait_s = 0 if has_ended else min(deadline - now, LOOK_S)
            if self._poll(descriptor, event, wait_s):
                return
            if has_ended:
                raise self._death(where)
            if now >= look:
                look = now + LOOK_S
        raise self._late(timeout_s, where)

    def _poll(self, descriptor: int, event: int, wait_s: float) -> bool:
        """Whether a pipe is ready; what the worker prints until then, or until it ends its log, is taken."""
        poll = select.poll()
        poll.register(descriptor, event)
        if not self._log_ended:
            poll.register(self._log, select.POLLIN)
        ready = [number for number, _ in poll.poll(wait_s * 1000 + 1)]
        if self._log in ready:
            self._read_log()
        return descriptor in ready

    def _late(self, timeout_s: float, where: Where) -> WorkerError:
        self.is_late = True
        return WorkerError(
            f"{self._kind.name} took longer than {timeout_s:g} s while {self._doing}, and was ended",
            where,
            self._remedy(self._if_late or self._kind.late),
            self._tail(),
        )

    def _death(self, where: Where) -> WorkerError:
        """The error that explains why the worker is gone."""
        if self._ended_by_us:
            return _ending(where)
        status = self._process.reap(REAP_S)  # end of file comes a moment before the process can be reaped
        message = f"{self._kind.name} {describe_status(status)} while {self._doing}"
        return WorkerError(message, where, self._remedy(self._kind.remedy(status)), self._tail())

    def _remedy(self, otherwise: str) -> str:
        """What to do: before a worker has greeted, no definition can be to blame."""
        starting = self._doing == STARTING and self._kind.forked and otherwise != OUT_OF_MEMORY
        return BROKEN_START if starting else otherwise

    def _tail(self) -> str | None:
        self._read_log()
        text = self._output.text()
        if (log := self._process.startup_log) is not None:
            size = os.fstat(log.fileno()).st_size
            text = os.pread(log.fileno(), TAIL, max(0, size - TAIL)).decode("utf-8", "replace")
        text = text[-TAIL:].strip()
        return f"the end of its log:\n{text}" if text else None


def _ending(where: Where) -> WorkerError:
    return WorkerError("the build is ending, so no worker takes requests any more", where)


def describe_status(status: int | None) -> str:
    """How a process ended, in words; None: it closed its pipe but is still there."""
    if status is None:
        return "closed its pipe"
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"
