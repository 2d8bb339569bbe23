"""Notes which tests execute which functions of ours, in the process of pytest and in all that the tests start.

``sample.py`` puts this into a copy of the tree as ``site_scons/sitecustomize.py``, which each Python imports that has
this folder in its path, and gives it to pytest as a plugin. Workers have few variables and may open no files of others,
so each process finds the test by its ancestors, when it starts, and reads it from memory that is shared.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER = Path("THE_FOLDER")
"""Where the notes are; ``sample.py`` replaces the text."""
ROOM = 4096


class Recorder:
    """What this process has noted in the present phase of the present test."""

    def __init__(self) -> None:
        self.seen: dict[int, CodeType] = {}
        self.ours: list[int] = []
        self.open()
        self.test = next((shared(path) for pid in ancestors() if (path := FOLDER / f"{pid}.test").exists()), None)

    def open(self) -> None:
        """Open the notes, under a number that tests hardly use."""
        opened = os.open(FOLDER / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.file = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 700)
        os.close(opened)
        self.inode = os.fstat(self.file).st_ino

    def is_open(self) -> bool:
        """Whether no test has closed them."""
        try:
            return os.fstat(self.file).st_ino == self.inode
        except OSError:
            return False

    def begin(self, phase: str) -> None:
        """Note calls for another phase of a test, also if the one before has closed the notes or set another tracer."""
        assert self.test is not None
        if not self.is_open():
            self.open()
        if sys.gettrace() is not self:
            sys.settrace(self)
        self.test[:] = phase.encode()[:ROOM].ljust(ROOM, b"\0")
        self.forget()

    def forget(self) -> None:
        for number in self.ours:
            self.seen.pop(number, None)
        self.ours.clear()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        number = id(code)
        if number in self.seen:
            return
        self.seen[number] = code  # so that no other code gets this number
        _, of_ours, path = code.co_filename.rpartition("/site_scons/kernelwright/")
        if not of_ours:
            _, of_ours, path = code.co_filename.rpartition("/_runtime/")
            path = f"runtime/{path}"
        if of_ours and self.test is not None:
            self.ours.append(number)
            test = self.test[:].rstrip(b"\0").decode(errors="replace")
            if test and self.is_open():
                os.write(self.file, f"{test}\t{path}\t{code.co_qualname}\n".encode())


def ancestors() -> Iterator[int]:
    """The processes that this one comes from, the nearest first."""
    pid = os.getpid()
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def shared(path: Path) -> mmap.mmap:
    """The memory with the name of the present test."""
    file = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(file, ROOM)
    finally:
        os.close(file)


RECORDER = Recorder()
sys.settrace(RECORDER)
threading.settrace(RECORDER)
os.register_at_fork(after_in_child=RECORDER.forget)


def pytest_configure(config: Any) -> None:
    path = FOLDER / f"{os.getpid()}.test"
    path.write_bytes(bytes(ROOM))
    RECORDER.test = shared(path)
    config.pluginmanager.register(hooks())


def hooks() -> object:
    """What pytest calls. Only its own process imports it: what a worker imports is no dependency of a definition."""
    import pytest

    class Hooks:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
            RECORDER.begin(f"setup\t{item.nodeid}")
            return (yield)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
            RECORDER.begin(f"call\t{item.nodeid}")
            return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
            began = time.monotonic()
            try:
                return (yield)
            finally:
                with (FOLDER / "times").open("a") as file:
                    file.write(f"{item.nodeid}\t{time.monotonic() - began:.3f}\n")

    return Hooks()
