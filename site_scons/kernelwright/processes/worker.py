"""One worker process, as the build sees it: it is asked, listened to until a time limit, and its death is explained."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..core.errors import Where, WorkerError
from .children import ForkServer, Process
from .messages import ANSWERS, Failed, Hello, Progress, Result, Spent, decode, decode_greeting, encode
from .protocol import Definition, Request, result_of
from .tool_process import LARGEST_PIPE, Output

Answered = TypeVar("Answered")

LONGEST_LINE = 1 << 28
"""Bytes of the longest line that a worker may send. Of a compiler's output it sends at most 16 MiB, escaped."""

TAIL = 4000
"""Characters of a dead worker's log that an error shows."""

LOOK_S = 0.5
"""Seconds between two looks whether a worker that says nothing has ended. The end of its pipe does not always tell: a
process that it has left behind may have that open."""

REAP_S = 1.0
"""Seconds that a worker may take to end after its pipe did. One that takes longer is said to have closed its pipe."""


@dataclass(frozen=True)
class WorkerKind:
    """What the processes of a pool are, and how errors speak of them.

    Arguments:
        name: such as ``a worker``.
        arguments: the interpreter's arguments that start one.
        late: what to do about one that takes too long.
        crashed: what to do about one that a signal ended (other than SIGKILL).
        left: what to do about one that ended, or closed its pipe, by itself.
        forked: whether ``arguments`` start a fork server, which makes the processes; if not, they start one process.
        variables: names of variables that it sees besides those that all see.
        has_ours: whether Python finds Kernelwright by itself, in the folder that this process has it from.
    """

    name: str
    arguments: tuple[str, ...]
    late: str
    crashed: str
    left: str
    forked: bool = False
    variables: tuple[str, ...] = ()
    has_ours: bool = True

    def remedy(self, status: int | None) -> str:
        """What a user can do about a process that ended like this."""
        if status == -signal.SIGKILL:
            return OUT_OF_MEMORY
        return self.crashed if status is not None and status < 0 else self.left


STARTING = "starting"

BROKEN_START = "see whether TVM can be imported: python -c 'import tvm'; on a busy machine raise worker_timeout"

OUT_OF_MEMORY = "the system may have run out of memory: try fewer jobs (-j), or a smaller configuration"


class Worker:
    """One worker process, used by one thread at a time (``end`` may come from any).

    Arguments:
        kind: what it is.
        start: starts the process, given a descriptor that it prints to.
        where: the place of the error if it cannot be started.
        definition: what it becomes by its first request; None: it has had no request.
    """

    def __init__(
        self, kind: WorkerKind, start: Callable[[int], Process], where: Where, definition: Definition = None
    ) -> None:
        self.definition = definition
        self._kind = kind
        self._buffer = bytearray()
        self._next_id = 0
        self._ended_by_us = self.is_late = self.reusable = self.answered = False
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

    def greet(self, timeout_s: float, where: Where) -> Hello:
        """Wait until the worker is ready."""
        self._begin(STARTING, timeout_s, where)
        hello = decode_greeting(self._read_line())
        self.reusable = True
        return hello

    def call(self, request: Request[Answered], timeout_s: float) -> Answered | None:
        """Send a request and wait for its answer; None: a new worker has to do it.

        The worker is reusable only after an answer, good or bad, and not if it wants to retire.
        """
        self._next_id += 1
        self.reusable = self.answered = False
        self._begin(f"working on {request.op}", timeout_s, request.where, request.if_late)
        self._write(encode(self._next_id, request))
        answer = self._read_answer()
        if isinstance(answer, Spent):
            return None
        if isinstance(answer, Failed):
            self.reusable = self.answered = True
            raise answer.error
        result: Answered = result_of(request, answer.value)
        self.answered = True
        self.reusable = not answer.retiring
        return result

    def _begin(self, doing: str, timeout_s: float, where: Where, if_late: str = "") -> None:
        """Note what the worker does from now on, until when, and what errors say of it."""
        self._doing, self._timeout_s, self._where, self._if_late = doing, timeout_s, where, if_late
        self._deadline = time.monotonic() + timeout_s

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

    def take_output(self) -> str:
        """What the worker has printed since the last call; of a very long text the begin and the end."""
        self._read_log()
        output, self._output = self._output, Output()
        return output.text()

    def _read_log(self) -> None:
        """Take what has been printed by now, also by somebody who never stops."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._log, LARGEST_PIPE)
            self._log_ended = not block
            self._output.add(block)

    def _write(self, line: bytes) -> None:
        stream = self._process.stdin
        try:
            view = memoryview(line)
            while view:
                # This does not block: with a request that is longer than the pipe, it might wait for ever.
                written = stream.write(view)
                if written is None:
                    self._wait_for(stream.fileno(), select.POLLOUT)
                view = view[written or 0 :]
        except OSError as error:
            raise self._death() from error

    def _read_answer(self) -> Result | Failed | Spent:
        while True:
            line = self._read_line()
            try:
                number, message = decode(line, ANSWERS)
            except WorkerError as error:  # the answer makes no sense, so the error has no place yet
                error.where = self._where
                raise
            if number != self._next_id:
                text = f"{self._kind.name} answered request {number} instead of {self._next_id}"
                raise WorkerError(text, self._where)
            if isinstance(message, Spent) and number == 1:
                text = f"{self._kind.name} that has executed nothing refused its first request"
                raise WorkerError(text, self._where)
            if not isinstance(message, Progress):
                answer: Result | Failed | Spent = message
                return answer
            self._doing = message.doing

    def _read_line(self) -> bytes:
        searched = 0  # an answer may hold megabytes of a compiler's output, so no byte is looked at twice
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            block = self._read_block()
            if not block:
                raise self._death()
            if searched > LONGEST_LINE:
                raise WorkerError(f"{self._kind.name} sent a line of more than {LONGEST_LINE} bytes", self._where)
            self._buffer += block
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read_block(self) -> bytes:
        stream = self._process.stdout
        try:
            self._wait_for(stream.fileno(), select.POLLIN)
            return os.read(stream.fileno(), 1 << 16)
        except OSError as error:
            raise self._death() from error

    def _wait_for(self, descriptor: int, event: int) -> None:
        """Wait until a pipe is ready, but not beyond the deadline, even if it is ready again and again.

        Raises:
            WorkerError: the time is over, or the worker has ended and has left nothing in the pipe.
        """
        look = time.monotonic() + LOOK_S
        while (now := time.monotonic()) < self._deadline:
            has_ended = now >= look and self._process.has_ended()
            wait_s = 0 if has_ended else min(self._deadline - now, LOOK_S)
            if self._poll(descriptor, event, wait_s):
                return
            if has_ended:
                raise self._death()
            if now >= look:
                look = now + LOOK_S
        raise self._late()

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

    def _late(self) -> WorkerError:
        self.is_late = True
        return WorkerError(
            f"{self._kind.name} took longer than {self._timeout_s:g} s while {self._doing}, and was ended",
            self._where,
            self._remedy(self._if_late or self._kind.late),
            self._tail(),
        )

    def _death(self) -> WorkerError:
        """The error that explains why the worker is gone."""
        if self._ended_by_us:
            return ending(self._where)
        status = self._process.reap(REAP_S)  # end of file comes a moment before the process can be reaped
        message = f"{self._kind.name} {describe_status(status)} while {self._doing}"
        return WorkerError(message, self._where, self._remedy(self._kind.remedy(status)), self._tail())

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


def ending(where: Where) -> WorkerError:
    """The error of a request that comes while the build ends."""
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
