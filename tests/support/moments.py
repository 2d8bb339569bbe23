"""Moments that a test makes on purpose, so that it depends on no machine's speed.

A test waits until something is so, however long that takes, and stops others at a gate until it lets them go on. The
one limit of time here ends a test that would hang. What is never to end by itself is :data:`ENDLESS`, or waits for a
signal (``signal.pause()`` in Python).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

HANGS_AFTER_S = 300.0
"""After so long a test hangs. Nothing that works comes near it."""

ENDLESS = f"tail --pid={os.getpid()} -f /dev/null"
"""A shell command that does nothing for as long as this process lives, so that no failed test leaves it behind."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so.

    Arguments:
        condition: tells whether it is.
        what: the message of a test that hangs.
    """
    end = time.monotonic() + HANGS_AFTER_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that has been killed, or soon will be."""
    wait_for(lambda: not running(pid), f"process {pid} is still there")


def processes_of(folder: Path) -> list[tuple[int, list[str]]]:
    """Number and command of the processes that have a folder in their command, or work in it; without this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            here = entry.joinpath("cwd").readlink()
        except OSError:
            continue  # it ended just now
        ours = here.is_relative_to(folder) or any(str(folder) in word for word in words)
        if ours and int(entry.name) != os.getpid():
            found.append((int(entry.name), words))
    return found


def rewrite(path: Path, content: bytes, times_ns: tuple[int, int] | None = None) -> None:
    """Write a file anew, and give it times. Its inode gets another time, also where the clock of files is coarse."""
    before = path.stat().st_ctime_ns

    def has_moved_on() -> bool:
        path.write_bytes(content)
        if times_ns is not None:
            os.utime(path, ns=times_ns)
        return path.stat().st_ctime_ns != before

    wait_for(has_moved_on, "the clock of the file system stands still")


class Gate:
    """Where processes stop until the test lets them go on.

    Arguments:
        folder: a new folder for its files. In a project's own folder they would count as read by its definitions.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._pipe, self._reached = folder / "pipe", folder / "reached"
        os.mkfifo(self._pipe)
        # Open for both, it neither waits for the other side, nor does the other side see an end before the test's.
        self._held = os.open(self._pipe, os.O_RDWR)

    @property
    def shell(self) -> str:
        """The shell command that stops there."""
        return f"echo >> '{self._reached}'; read -r go < '{self._pipe}'"

    @property
    def python(self) -> str:
        """The same as one line of Python."""
        return f"open({str(self._reached)!r}, 'a').write(chr(10)); open({str(self._pipe)!r}, 'rb', 0).read(1)"

    def wait(self, count: int = 1) -> None:
        """Wait until so many have come."""
        wait_for(lambda: self.count >= count, f"{self.count} and not {count} have come to the gate")

    @property
    def count(self) -> int:
        """How many have come so far."""
        return self._reached.stat().st_size if self._reached.exists() else 0

    def open(self) -> None:
        """Let all go on who are there or will come."""
        os.write(self._held, b"\n" * 4096)

    def close(self) -> None:
        """End the use of the gate; whoever is there, or comes later, goes on."""
        self._pipe.unlink()
        self._pipe.touch()
        os.close(self._held)

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Clock:
    """In the place of the module ``time``: goes on like the real one, and as far ahead as a test sets it.

    ``step`` is by how many seconds each look at it sets it ahead.
    """

    def __init__(self) -> None:
        self.ahead, self.step = 0.0, 0.0

    def monotonic(self) -> float:
        self.ahead += self.step
        return time.monotonic() + self.ahead


@contextmanager
def held(gate: str | Path, work: Callable[[], Any]) -> Iterator[None]:
    """Run ``work`` in another thread; the block runs while something that it calls is held at the gate.

    Arguments:
        gate: the path of a named pipe to make. Whoever opens it and reads it to its end is held until the block is
            over. Who comes while the block runs finds no pipe, and goes on.
        work: raises in this thread, once the block is over, what it raised.
    """
    errors: list[BaseException] = []
    late: list[int] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        with suppress(FileNotFoundError):  # it never came to the gate, and must not be waited for
            late.append(os.open(gate, os.O_RDONLY | os.O_NONBLOCK))

    os.mkfifo(gate)
    thread = threading.Thread(target=run)
    thread.start()
    writer = os.open(gate, os.O_WRONLY)  # waits for a reader
    Path(gate).unlink()
    try:
        yield
    finally:
        os.close(writer)
        thread.join()
        for file in late:
            os.close(file)
    if errors:
        raise errors[0]
    if late:
        raise AssertionError(f"nothing was held at {gate}")
