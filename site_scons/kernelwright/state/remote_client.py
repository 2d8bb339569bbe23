"""The client of a remote cache. It makes a build faster or leaves it as it was, whatever happens to the store.

It asks nothing before a build needs an entry. A thread that needs an entry asks for it itself. Entries that will be
needed are asked for ahead, in threads of the client. Other threads of it write, beside the build. They are no threads
of ``concurrent.futures``, which would wait at the end of the process until all work is done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..core.dependencies import may_be_asked
from ..core.files import LARGEST_RECORD
from .counts import Counts
from .remote_objects import LargerError, Seal, decompressed, most_expected
from .remote_store import NoRoomError, Refused, Store, Unknown, Unreachable

Result = TypeVar("Result")

READERS = 48
"""Threads that ask ahead."""

WRITERS = 8
"""Threads that write."""

ROOM = 1 << 30
"""Bytes that all answers above ``remote_store.SMALL`` may have together, with the entries unpacked from them."""

MOST_WAITING = 20_000
"""Writes that may wait; further ones are left out."""

MOST_FAILURES = 3
"""After so many failed requests in a row a store is off for the run."""

MOST_DAMAGED = 10
"""The same for damaged objects: perhaps the answers come from the login page of a network and not from a store."""

MOST_DAMAGED_BYTES = 64 << 20
"""The same for the bytes of damaged objects."""

SLOW_S = 3.0
"""A request that takes longer than this, plus the time for its size, counts as failed."""

SLOW_RATE = 1_000_000
"""Bytes per second, from which the time for a size follows."""

HANGS_S = 3.0
"""If a read fails after so long, the store is off at once: the next read would wait as long."""

RETRY_S = 1.0
"""A request that failed sooner than this is tried once more."""


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


@dataclass
class _Line:
    """One of the two ways to the store, for reading or for writing: its failures in a row, and whether it is closed."""

    failures: int = 0
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class RemoteCache:
    """A store of entries, behind a build cache. Called from several threads.

    Arguments:
        store: where the objects are.
        seal: how they are signed.
        writable: whether entries are written.
        warn: shows a line to the user.
        may_ask: whether we look at something that an entry says it depends on, see ``core.dependencies.may_be_asked``;
            None: what that function says for a project that is in no repository.
    """

    def __init__(
        self,
        store: Store,
        seal: Seal,
        writable: bool,
        warn: Callable[[str], None],
        may_ask: Callable[[str], bool] | None = None,
    ) -> None:
        self.may_ask = may_ask or partial(may_be_asked, Path("/nonexistent"))
        self._store = store
        self._seal = seal
        self.writable = writable
        self._warn = warn
        self.counts = Counts()
        self._lock = threading.Lock()
        self._reading, self._writing = _Line(), _Line()
        self.room = Room(ROOM)
        self._ahead = _Threads("ahead", READERS, self.room)
        self._behind = _Threads("behind", WRITERS, self.room)
        self._left_out = self._not_written = self._damaged = self._damaged_bytes = 0
        self._has_answered = False
        self.is_closed = False
        if writable:
            # A run also writes at its end, when Python 3.12 starts no more threads.
            self._behind.start_one()

    @property
    def is_off(self) -> bool:
        """Whether nothing is read any more in this run."""
        return self._reading.closed

    @property
    def lacks_something(self) -> bool:
        """Whether something was to be written, and was not."""
        return self._writing.closed or self._left_out + self._not_written > 0

    def get(self, name: str) -> bytes | None:
        """The entry of a name, as it was written; None: there is none, or it cannot be had. Never an error.

        A large entry waits for room, which is given back at the end of the thread's turn (``room.turn``).
        """
        with contextlib.suppress(LargerError):
            return self._get(name, most_expected)
        is_alone = self.room.take(self.room.size, patient=True)
        return self._get(name, lambda size: LARGEST_RECORD) if is_alone else None

    def _get(self, name: str, limit: Callable[[int], int]) -> bytes | None:
        """Like :meth:`get`. Raises LargerError if the entry is larger than ``limit`` gives for the object's size."""
        data = self.get_compressed(name)
        if data is None:
            return None
        try:
            return decompressed(data, limit(len(data)))
        except ValueError as error:
            self.damaged(name, str(error), len(data))
            return None

    def get_compressed(self, name: str) -> bytes | None:
        """Like :meth:`get`, but still compressed; its signature is checked. Whoever unpacks it tells of damage."""
        if self.is_off:
            return None
        start = time.monotonic()
        place = place_of(name)
        content = self._in_its_turn(place)
        with self._lock:
            self.counts.seconds += time.monotonic() - start
            self.counts.hits += content is not None
            self.counts.misses += content is None
            self.counts.read += len(content or b"")
        try:
            return None if content is None else self._seal.checked(name, content)
        except ValueError as error:
            self.damaged(name, str(error), len(content or b""))
            return None

    def _in_its_turn(self, place: str) -> bytes | None:
        """The content of an object. If there is no room for it, wait for room, and ask once more.

        It does not wait in the middle of an answer, because the rest would then come too late.
        """
        may_read = self.room.take
        for _ in range(2):
            try:
                return self._attempt(
                    self._reading, lambda: self._store.get(place, lambda size: may_read(size + most_expected(size)))
                )
            except NoRoomError as error:
                if not self.room.take(error.size + most_expected(error.size), patient=True):
                    return None
        return None

    def damaged(self, name: str, why: str, size: int) -> None:
        """Count an entry of so many bytes as damaged, and no longer as a hit; the user is told of the first one."""
        with self._lock:
            self._damaged_bytes += size
            self.counts.hits -= 1
            self.counts.misses += 1
            self._damaged += 1
            count = self._damaged
        if count == 1:
            self._warn(
                f"kernelwright: the remote cache has a damaged object, which counts as a miss: {name[:12]}: {why}"
            )
        if count >= MOST_DAMAGED or self._damaged_bytes > MOST_DAMAGED_BYTES:
            self._close(self._reading, f"is off for this run: {count} of its objects are damaged")

    def put(self, name: str, entry: bytes) -> bool | None:
        """Write an entry that is not there; whether it was written. None: that failed. Never an error."""
        data = self._seal.packed(name, entry)
        place = place_of(name)
        written = self._attempt(self._writing, lambda: self._store.put(place, data))
        with self._lock:
            self._not_written += written is None
            if written:
                self.counts.written += 1
                self.counts.sent += len(data)
        return written

    def has(self, name: str) -> bool | None:
        """Whether there is an entry of that name; None: nobody can say. Never an error."""
        place = place_of(name)
        return self._attempt(self._writing, lambda: self._store.has(place))

    def ask_ahead(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Do some tasks that ask for entries, many at the same time, in threads of the client.

        They are done even if nothing is read any more: somebody may wait for what they say.
        """
        self._ahead.add(tasks)

    def write_behind(self, task: Callable[[], None], patient: bool = False) -> None:
        """Do a task that writes entries when there is time for it.

        Arguments:
            patient: what is done if too many wait already: wait until there is room, or leave this one out.
        """
        if not self.writable or self._writing.closed:
            return
        if patient:
            self._behind.wait_for_room(MOST_WAITING)
        if self._behind.waiting >= MOST_WAITING:
            self._left_out += 1
        else:
            self._behind.add([task])

    def close(self, patience_s: float) -> None:
        """Wait until everything is written, and end. What is not written after so many seconds is left out.

        Whoever interrupts this calls it again: :attr:`is_closed` says whether it came to its end.
        """
        self._ahead.drop()
        self.room.close()
        deadline = time.monotonic() + patience_s
        self._behind.finish(deadline)
        left_out = 0 if self._writing.closed else self._behind.waiting
        self._behind.drop()
        self._left_out += left_out
        if 1 < self._damaged < MOST_DAMAGED:
            self._warn(f"kernelwright: {self._damaged} objects of the remote cache were damaged")
        if self._left_out:
            self._warn(
                f"kernelwright: {self._left_out} entries were not written to the remote cache: there was no time for it"
            )
        # A thread in the middle of a request cannot be left alone: the interpreter would crash at its end. Each
        # request has its own limits of time.
        self._ahead.join()
        self._behind.join()
        self.is_closed = True

    def _attempt(self, line: _Line, request: Callable[[], Result]) -> Result | None:
        """What a request gives; None if it fails, or the line is closed."""
        for attempt in (1, 2):
            if line.closed:
                return None
            start = time.monotonic()
            try:
                result = request()
            except Refused:
                # S3 answers so for a missing object, too, if we may not list the bucket. A refused write stays refused.
                self._count(line, None)
                if line is self._writing:
                    self._close(line, "does not let us write (403); nothing more is written in this run")
                return None
            except Unknown:
                for one in (self._reading, self._writing):
                    self._close(
                        one, "does not know us (401: no token, a wrong one, or an old one); it is off for this run"
                    )
                return None
            except Unreachable as error:
                waited = time.monotonic() - start
                if attempt == 1 and waited < RETRY_S:
                    continue
                hangs = waited >= (HANGS_S if self._has_answered else RETRY_S) and line is self._reading
                self._count(line, str(error), MOST_FAILURES if hangs else 1)
                return None
            size = len(result) if isinstance(result, bytes) else 0
            slow = time.monotonic() - start > SLOW_S + size / SLOW_RATE
            self._count(line, "it is too slow" if slow else None)
            return result
        return None

    def _count(self, line: _Line, problem: str | None, weight: int = 1) -> None:
        """Note how a request went; a failure counts ``weight`` times."""
        with line.lock:
            self._has_answered |= problem is None
            line.failures = 0 if problem is None else line.failures + weight
            too_many = line.failures >= MOST_FAILURES
        if too_many:
            self._close(line, f"is off for this run: {problem}", "cannot be written")

    def _close(self, line: _Line, text: str, writing: str = "") -> None:
        """Ask nothing more, and say so once."""
        with self._lock:
            first = not (line.closed or (self._reading.closed and self._writing.closed))
            line.closed = True
            is_news = first and not (line is self._writing and self._reading.closed)
        if is_news:
            prefix = f"{writing}, and " if writing and line is self._writing else ""
            self._warn(f"kernelwright: the remote cache {prefix}{text}; the build goes on without it")


class _Threads:
    """A few threads that do tasks in their order. They are started when there is something to do.

    Arguments:
        name: of the threads.
        most: how many there are at most.
        room: each task is a turn in it.
    """

    def __init__(self, name: str, most: int, room: Room) -> None:
        self._name = name
        self._most = most
        self._room = room
        self._tasks: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = 0
        self._idle = 0
        self._ended = False

    @property
    def waiting(self) -> int:
        """How many tasks nobody has begun."""
        return len(self._tasks)

    def add(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Do some tasks, unless they come too late."""
        with self._changed:
            if self._ended:
                return
            self._tasks.extend(tasks)
            for _ in range(min(len(self._tasks) - self._idle, self._most - self._running)):
                if not self.start_one():
                    break  # the threads that run do the tasks
            self._changed.notify_all()

    def start_one(self) -> bool:
        """Start a thread; False: that is not possible, as the system has no room for it or Python is ending."""
        with self._changed:
            try:
                threading.Thread(target=self._work, name=f"remote-{self._name}", daemon=True).start()
            except RuntimeError:
                return False
            self._running += 1
        return True

    def drop(self) -> None:
        """Begin no further task, and accept none."""
        with self._changed:
            self._tasks.clear()
            self._ended = True
            self._changed.notify_all()

    def finish(self, deadline: float) -> None:
        """Wait until all tasks are done, or until a moment of ``time.monotonic``."""
        with self._changed:
            while self._tasks or self._idle < self._running:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return

    def wait_for_room(self, most: int) -> None:
        """Wait until fewer tasks than that are waiting."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._tasks) < most)

    def join(self) -> None:
        """Wait for the tasks that have begun.

        Not by ``Thread.join``: before Python 3.13, a thread that was interrupted in it takes the other one for ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.notify_all()
                while not self._tasks:
                    if self._ended:
                        self._idle -= 1
                        self._running -= 1
                        self._changed.notify_all()
                        return
                    self._changed.wait()
                task = self._tasks.popleft()
                self._idle -= 1
            try:
                with self._room.turn():
                    task()
            except Exception:
                # A mistake of ours, shown as Python shows an error of a thread. But it must not end the threads, one
                # after another: somebody waits for the tasks that follow.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def place_of(name: str) -> str:
    """Where the object of an entry is in a store."""
    return f"v1/{name[:2]}/{name}"
