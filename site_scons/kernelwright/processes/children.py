"""Processes of a pool, as the build sees them: started with a program of their own, or forked by a fork server."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from .tool_process import end_session

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
"""Where our package is imported from."""

START_ELSEWHERE = PACKAGE_PARENT / "kernelwright/worker/start_elsewhere.py"
"""What starts one of our modules in a Python that has no Kernelwright; its first argument is the module's name."""

POLL_S = 0.005
"""Seconds between two looks at a process that is about to end."""


class Process(Protocol):
    """A process, and our ends of its pipes: ``stdin``, which does not block, and ``stdout``."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    @property
    def server(self) -> ForkServer | None:
        """The fork server that makes it; None: it has a program of its own."""

    def end(self) -> None:
        """Kill the process and everything that it started; may be called from any thread."""

    def reap(self, timeout_s: float | None) -> int | None:
        """Exit status, or None if the process has not ended in time; what it has left running is killed."""

    def has_ended(self) -> bool:
        """Whether the process has ended, whoever still holds its pipes."""

    def close(self) -> None:
        """Let go of a process that was reaped."""

    @property
    def startup_log(self) -> IO[bytes] | None:
        """The file that it wrote to before it had its own log; None: there is no such file."""


class Spawned:
    """A process with a program of its own.

    It leads a session: Ctrl-C at the terminal reaches the build, which then ends its processes, and what a process has
    started can be ended with it.

    Arguments:
        command: the program and its arguments.
        environment: its environment.
        log: descriptor that its stderr goes to.
        inner: whether it stays in the session of this process, and ends with it. Then it answers on a further pipe,
            whose number is its last argument: on stdout, what its environment prints would be taken for an answer.

    Raises:
        OSError: it cannot be started.
    """

    startup_log = None
    server: ForkServer | None = None

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: int, inner: bool = False) -> None:
        self._lock = threading.Lock()
        self._inner = inner
        their_stdin, self.stdin = _pipe()
        self.stdout, answers = _pipe()
        os.set_blocking(self.stdin.fileno(), False)
        with their_stdin, answers:
            try:
                self._process = subprocess.Popen(
                    [*command, str(answers.fileno())] if inner else command,
                    cwd=None if inner else PACKAGE_PARENT,
                    env=dict(environment),
                    stdin=their_stdin,
                    stdout=log if inner else answers,
                    stderr=log,
                    pass_fds=(answers.fileno(),) if inner else (),
                    start_new_session=not inner,
                )
            except BaseException:
                self.close()
                raise

    def end(self) -> None:
        """Kill the process and everything that it started; may be called from any thread."""
        with self._lock:
            # The session's number is the process id, which stays ours until the process was waited for.
            if self._process.returncode is None:
                end_session(self._process.pid)
                if self._inner:
                    os.kill(self._process.pid, signal.SIGKILL)

    def reap(self, timeout_s: float | None) -> int | None:
        """Exit status, or None if the process has not ended in time; what it has left running is killed."""
        end = time.monotonic() + (timeout_s or 0)
        while True:
            with self._lock:
                if self._process.returncode is None and self._has_ended():
                    end_session(self._process.pid)
                    self._process.poll()
            status = self._process.returncode
            if status is not None or (timeout_s is not None and time.monotonic() > end):
                return status
            time.sleep(POLL_S)

    def has_ended(self) -> bool:
        """Whether the process has ended, whoever still holds its pipes."""
        with self._lock:
            return self._process.returncode is not None or self._has_ended()

    def _has_ended(self) -> bool:
        """Whether the process has ended; it stays a zombie, so that nobody else gets its number."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the build was started with SIGCHLD ignored: then nothing becomes a zombie
            return True

    def close(self) -> None:
        """Close the pipes."""
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                stream.close()


class ForkServer:
    """The build's side of a fork server.

    Arguments:
        command: the program and its arguments.
        environment: the environment of the fork server, and so of what it forks.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Logs have no name: they are gone when the last process that has them open is.
        self.log: IO[bytes] = tempfile.TemporaryFile(prefix="kernelwright-worker-")  # noqa: SIM115
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command,
                cwd=PACKAGE_PARENT,
                env=dict(environment),
                stdin=theirs.fileno(),
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            self.log.close()
            raise
        finally:
            theirs.close()

    def request(self, descriptors: Sequence[int]) -> None:
        """Ask for a process with these descriptors, see ``forkserver``. If the fork server is gone, nothing happens."""
        with self._lock, contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"f"], descriptors)

    def status(self, timeout_s: float) -> int | None:
        """Its exit status, or None if it has not ended in so many seconds."""
        try:
            return int(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        with self._lock:
            return self._process.poll() is None

    def end(self, grace_s: float = 0.0) -> None:
        """End it; the processes that it has forked go on.

        Arguments:
            grace_s: seconds for reaping those that have ended before it is killed, so that their use of the processor
                is counted as the build's.
        """
        with self._lock:
            self._control.close()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Forked:
    """A process that a fork server has made, or will have made in a moment.

    Arguments:
        server: who makes it.
        log: descriptor that its stderr goes to.
    """

    def __init__(self, server: ForkServer, log: int) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._buffer = b""
        self._pid: int | None = None
        self._born: str | None = None
        self._status: int | None = None
        self._lost = False
        self._given_up = False
        self._life_line, theirs = socket.socketpair()
        self._life_line.setblocking(False)
        their_stdin, self.stdin = _pipe()
        self.stdout, their_stdout = _pipe()
        os.set_blocking(self.stdin.fileno(), False)
        with theirs, their_stdin, their_stdout:
            server.request([their_stdin.fileno(), their_stdout.fileno(), log, theirs.fileno()])

    @property
    def startup_log(self) -> IO[bytes] | None:
        """The fork server's log, until the process exists."""
        with self._lock:
            self._look()
            return self.server.log if self._pid is None else None

    def end(self) -> None:
        """Kill the process and everything that it started; may be called from any thread.

        A process that does not exist yet will end by itself, because its stdin will be closed by then.
        """
        with self._lock:
            self._look()
            self._given_up = self._pid is None
            # While the fork server is there, the number stays the process's own until we close the life line.
            if self._pid is not None and (not self._lost or born(self._pid) == self._born):
                end_session(self._pid)

    def reap(self, timeout_s: float | None) -> int | None:
        """Exit status, or None if it has not ended in time or nobody knows it; what it has left running is killed."""
        end = time.monotonic() + (timeout_s or 0)
        while True:
            with self._lock:
                self._look()
                has_status = self._status is not None
            if has_status:
                self.end()
                return self._status
            if self._lost or self._given_up:
                return self.server.status(1.0) if self._lost and self._pid is None else None
            left = end - time.monotonic()
            if timeout_s is not None and left <= 0:
                return None
            poll = select.poll()
            poll.register(self._life_line, select.POLLIN)
            poll.poll(None if timeout_s is None else left * 1000 + 1)

    def has_ended(self) -> bool:
        """Whether the process has ended, whoever still holds its pipes."""
        with self._lock:
            self._look()
            gone = self._lost and (self._pid is None or born(self._pid) != self._born)
            return self._status is not None or gone

    def _look(self) -> None:
        """Take what the fork server has said."""
        while not self._lost:
            try:
                block = self._life_line.recv(64)
            except BlockingIOError:
                return
            except OSError:
                block = b""
            self._lost = not block
            self._buffer += block
            while b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                name, value = line.split()
                if name == b"status":
                    self._status = int(value)
                else:  # from the worker itself, once it leads a session
                    self._pid, self._born = int(name), value.decode()

    def close(self) -> None:
        """Close the pipes, and the life line: then the fork server reaps the process."""
        for stream in (self.stdin, self.stdout, self._life_line):
            with contextlib.suppress(OSError):
                stream.close()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of a pipe, without buffers."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)


def born(pid: int) -> str | None:
    """When a process was started, to tell it from a later one with its number (proc(5): field 22 of stat)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
