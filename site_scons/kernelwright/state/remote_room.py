"""Room in the memory for answers of a remote cache, which all threads of a process share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Room:
    """A number of bytes, of which a thread takes some before it reads. If it needs more than all, it reads alone.

    A thread gives back what it has before it waits for more, so no two threads wait for each other.

    Arguments:
        size: bytes that all answers may have together.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._taken: dict[int, int] = {}  # by thread, of those in a turn
        self._closed = False

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which this thread has answers in memory: the room that it takes is given back at the end."""
        thread = threading.get_ident()
        with self._changed:
            is_outermost = thread not in self._taken
            self._taken.setdefault(thread, 0)
        try:
            yield
        finally:
            if is_outermost:
                with self._changed:
                    del self._taken[thread]
                    self._changed.notify_all()

    def take(self, size: int, patient: bool = False) -> bool:
        """Take room for so many bytes in place of what this thread has, unless it has as much.

        Outside of a turn nothing is counted, because nobody would give it back.

        Arguments:
            patient: whether to wait until there is room.

        Returns:
            Whether there is room.
        """
        thread = threading.get_ident()
        with self._changed:
            if self._taken.get(thread, size) >= size:
                return True
            self._taken[thread] = 0
            self._changed.notify_all()
            if patient:
                self._changed.wait_for(lambda: self._closed or self._has(size))
            if self._closed or not self._has(size):
                return False
            self._taken[thread] = size
            return True

    def close(self) -> None:
        """End all waiting: there is no room any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has(self, size: int) -> bool:
        taken = sum(self._taken.values())
        return not taken or taken + size <= self.size
