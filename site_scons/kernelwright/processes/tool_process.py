"""The runner process: ``python -I -S -B tool_process.py``, which runs compilers for the build, one at a time.

It speaks the protocol of the workers (see ``messages``), knows the request ``tool`` only, and ends when its stdin
does, also while a tool runs: so no nvcc, cicc or ptxas outlives the build, however that ended. It is run as a file and
imports a few small modules only, because starting it must cost next to nothing; the package would take 20 ms to import.

A tool gets a process group of its own and stays in the runner's session. The session tells which processes belong to
it: those that are left when the tool has ended, or did not end in time, are killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all of the above but json
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

REVISION = 2
"""The revision of the protocol (see ``messages``); both sides must have the same."""

OUTPUT_LIMIT = 8 << 20
"""Bytes of a process's output that are kept from its beginning, and as many from its end."""

LARGEST_PIPE = 1 << 20
"""Bytes that a pipe holds at most, unless root has made it larger."""

LONGEST_POLL_S = 3600.0
"""Seconds of the longest poll(): its milliseconds have to fit into 32 bits."""


def end_session(leader: int, spared: int = 0) -> None:
    """Kill every process of a session, except one.

    Arguments:
        leader: process id of the session's leader, which must not have been waited for: until then, no other process
            can have its number.
        spared: process id of the one to leave alone.
    """
    killed = {spared}
    # Again until there is nothing new: a process may have forked while the others were looked for.
    while members := set(_members(leader)) - killed:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        killed |= members


def end_own_session() -> None:
    """Kill all other processes of the session that this process leads; nothing if it does not lead one."""
    # Not os.getsid(0): somebody who runs this file by hand does not want to lose their shell.
    end_session(os.getpid(), os.getpid())


def _members(leader: int) -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 (importing pathlib takes longer than anything else here)
        if name.isdigit():
            try:
                session = os.getsid(int(name))
            except OSError:  # it is gone, or none of our business
                continue
            if session == leader:
                yield int(name)


class Output:
    """What a process prints; the middle of a very long text is dropped."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = bytearray()
        self._dropped = 0

    def add(self, block: bytes) -> None:
        """Keep some more bytes."""
        room = OUTPUT_LIMIT - len(self._head)
        self._head += block[:room]
        self._tail += block[room:]
        # Twice the limit, so that dropping bytes does not copy the tail for every block.
        if len(self._tail) > 2 * OUTPUT_LIMIT:
            self._shorten()

    def text(self) -> str:
        """All that is kept; what is not UTF-8 is replaced."""
        self._shorten()
        gap = f"\n[... {self._dropped} bytes ...]\n".encode() if self._dropped else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")

    def _shorten(self) -> None:
        excess = max(0, len(self._tail) - OUTPUT_LIMIT)
        self._dropped += excess
        del self._tail[:excess]


class Runner:
    """Answers requests, one after the other."""

    def __init__(self) -> None:
        self._buffer = b""
        # A child that ends makes this pipe readable, so that one poll() waits for everything.
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        """Greet, and answer until stdin ends."""
        send(0, "hello", versions={"python": sys.version.split()[0]}, revision=REVISION)
        while True:
            while b"\n" not in self._buffer:
                self._receive()
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = json.loads(line)
            self._answer(message["id"], message["tool"])

    def _receive(self) -> None:
        """Take what the build has sent; end here and now if the build is gone."""
        block = os.read(0, 1 << 16)
        if not block:
            end_own_session()
            os._exit(0)
        self._buffer += block

    def _answer(self, number: int, request: dict[str, Any]) -> None:
        name = request["command"][0].rpartition("/")[2]
        send(number, "progress", doing=f"running {name}")
        try:
            result = self._run(request)
        except (OSError, ValueError) as error:
            send(number, "error", **_not_run(name, request, error))
        else:
            send(number, "result", value=result)

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the tool of a request, and see to it that nothing of it is left."""
        output = Output()
        start = time.monotonic()
        pid, pipe = _start(request)
        in_time = self._wait(pid, pipe, output, start + request["timeout_s"])
        # The tool was not waited for yet, so the number of its group is still its own.
        os.killpg(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        end_own_session()
        seconds = time.monotonic() - start
        _drain(pipe, output)
        return {
            "status": os.waitstatus_to_exitcode(status),
            "in_time": in_time,
            "output": output.text(),
            "seconds": round(seconds, 4),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 4),
            "peak_kib": usage.ru_maxrss,
        }

    def _wait(self, pid: int, pipe: int, output: Output, deadline: float) -> bool:
        """Collect a tool's output until it has ended (True) or the time is over (False); the tool is not reaped."""
        poll = select.poll()
        for descriptor in (0, pipe, self._woken):
            poll.register(descriptor, select.POLLIN)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poll.poll(min(left, LONGEST_POLL_S) * 1000 + 1):
                if descriptor == 0:
                    self._receive()
                elif descriptor == self._woken:
                    os.read(self._woken, 1 << 12)
                elif block := os.read(pipe, 1 << 16):
                    output.add(block)
                else:
                    poll.unregister(pipe)
        return True


def _start(request: dict[str, Any]) -> tuple[int, int]:
    """Start the tool of a request; its process id, and the pipe with its output."""
    os.chdir(request["folder"])
    reading, writing = os.pipe()
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, writing, 2),
    ]
    command = request["command"]
    try:
        # Python ignores these two signals, and the tool would ignore them, too.
        signals = [signal.SIGPIPE, signal.SIGXFSZ]
        pid = os.posix_spawn(
            command[0], command, request["environment"], file_actions=streams, setpgroup=0, setsigdef=signals
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, reading


def _drain(pipe: int, output: Output) -> None:
    """Collect what the tool had printed by its end.

    The end of the pipe is not waited for: a process that left the session may hold it, and print, for ever.
    """
    os.set_blocking(pipe, False)
    try:
        output.add(os.read(pipe, LARGEST_PIPE))
    except BlockingIOError:
        pass  # it is empty, and somebody has it open
    finally:
        os.close(pipe)


def _not_run(name: str, request: dict[str, Any], error: Exception) -> dict[str, Any]:
    """The error for a tool that cannot be started, as JSON."""
    return {
        "kind": "ToolchainError",
        "message": f"{name} cannot be run: {error}",
        "where": request["where"],
        "remedy": "was it removed meanwhile? See to it that it is there and executable, and try again",
    }


def send(number: int, name: str, /, **fields: Any) -> None:
    """Write a message to the build: one line."""
    write(1, json.dumps({"id": number, name: fields}, separators=(",", ":")).encode() + b"\n")


def write(descriptor: int, line: bytes) -> None:
    """Write all of a line to a pipe."""
    while line:
        line = line[os.write(descriptor, line) :]


if __name__ == "__main__":
    Runner().serve()
