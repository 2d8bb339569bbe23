"""Locks of keys: the process that holds one compiles the kernel of that key. Each is a file's lock in the cache."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.files import open_lock, read_record
from ..core.locks import hold, is_held, let_go
from .cache_place import PLACE, CacheError

SHOW_WAIT_S = 1.0
"""If another process holds a lock for longer, the user is told."""


@contextlib.contextmanager
def locked(path: Path, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file, which is removed at the end; see :meth:`.store.KernelStore.locked`."""
    lock = _lock(path, timeout_s, on_wait, given_up)
    try:
        yield
    finally:
        if is_held(lock):  # not in a child that was forked meanwhile
            # Those who wait for this file see that it is gone, and take the lock of the next one.
            with contextlib.suppress(OSError):
                if os.fstat(lock).st_ino == path.stat().st_ino:
                    path.unlink()
            let_go(lock)


def _lock(path: Path, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool]) -> int:
    """The descriptor of a lock that is held now; -1: nothing can be locked there."""
    begin = time.monotonic()
    pause, told = 0.005, False
    while True:
        if given_up():
            raise CacheError("the compile was ended before it began", PLACE)
        try:
            lock = _try_lock(path)
        except OSError:
            return -1
        if lock is not None:
            return lock
        waited = time.monotonic() - begin
        if waited > timeout_s:
            message = f"{_holder(path)} is compiling the same kernel, and did not finish in {timeout_s:g} s"
            remedy = f"wait for it to end, or end it; nobody has the lock then ({path})"
            raise CacheError(message, PLACE, remedy)
        if waited > SHOW_WAIT_S and not told and _holder(path) != f"process {os.getpid()}":
            told = True
            on_wait()
        time.sleep(min(pause, max(timeout_s - waited, 0.001)))
        pause = min(pause * 1.5, 0.1)


def _try_lock(path: Path) -> int | None:
    """The descriptor of a lock if it is free; None if it is not. Raises OSError if nothing can be locked there."""
    lock = open_lock(path)
    try:
        hold(lock)
        if os.fstat(lock).st_ino == path.stat().st_ino:
            with contextlib.suppress(OSError):  # the number of the process is only for messages
                os.truncate(lock, 0)
                os.write(lock, str(os.getpid()).encode())
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        let_go(lock)
        raise
    # Somebody holds it, or its last holder removed the file after we opened it.
    let_go(lock)
    return None


def _holder(path: Path) -> str:
    """The process that holds a lock, for messages, if its file has the number of one."""
    try:
        number = read_record(path, 1 << 10).decode()[:20]
    except (OSError, UnicodeDecodeError):
        number = ""
    return f"process {number}" if number.isdecimal() else "another process"
