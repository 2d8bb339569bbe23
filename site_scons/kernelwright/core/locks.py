"""Locks that this process holds on files and folders. They end with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_HELD: set[int] = set()
"""The descriptors of these locks."""


def hold(descriptor: int) -> None:
    """Lock an open file or folder. Whether that succeeds or not, :func:`let_go` ends it.

    Raises:
        OSError: nothing can be locked there; BlockingIOError: it is locked already.
    """
    _HELD.add(descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(descriptor: int) -> bool:
    """Whether this process has called :func:`hold`; a child of it that was forked later has not."""
    return descriptor in _HELD


def let_go(descriptor: int) -> None:
    """End a lock, and close its descriptor."""
    _HELD.discard(descriptor)
    # Closing is not enough: a child that was forked meanwhile may have the descriptor, too.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _after_fork() -> None:
    """In a child: let go of the parent's locks, which would otherwise outlive the parent. The parent keeps them."""
    for descriptor in _HELD:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_after_fork)


def remove_unlocked(
    paths: Iterable[Path], flags: int, remove: Callable[[Path], None], age_s: float = -math.inf
) -> None:
    """Remove files of locks, or scratch folders, that no process has locked.

    The number of a process in a name says nothing: it may be that of a process in another container.

    Arguments:
        flags: with which they are opened. Some network file systems lock only files that are open for writing.
        remove: removes one of them.
        age_s: those that were changed in so many seconds up to now stay.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime > time.time() - age_s:
                continue
            lock = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(lock)
