"""A folder of entries with caches behind it: another folder, and a remote cache (``state.remote_client``).

The remote cache has the same entries under the same names (``state.remote_entries``). Entries from
either are kept in the folder, too, so that they live as long as all others that are used here.
"""

from __future__ import annotations

import contextlib
import functools
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.dependencies import is_portable
from ..core.files import LARGEST_RECORD
from .counts import Counts
from .entries import Entries, Found
from .entry import (
    AN_ANSWER,
    LARGEST_OUTPUTS,
    MOST_NAMES,
    Wanted,
    entry_key,
    entry_with,
    file_with_answer,
    files_in,
    open_entry,
    possible_entries,
    read_entry,
    wanted_files,
    whole,
)
from .remote_entries import Compressed, fetched, from_afar, send_list, slots
from .remote_objects import LargerError, decompressed, most_expected

if TYPE_CHECKING:
    from .remote_client import RemoteCache

MOST_PASSED = 1 << 20
"""Bytes of an answer that is passed on to another process as it came; a larger one is put into the folder first."""


MOST_HELD = 64 << 20
"""Bytes of answers that are held in memory until somebody asks; further answers are read again from the folder."""


@dataclass
class Asked:
    """A question that the remote cache was asked ahead.

    Arguments:
        done: set when the answer is known.
        known: whether an entry was there, so that it makes sense to ask once more if the answer was lost meanwhile.
        found: the content of the entry; None: it is in the folder and not held in memory as well, or there is none.
        compressed: in place of ``found``, the answer as it came: whoever takes it unpacks it, perhaps another process.
        size: bytes of ``found`` or ``compressed``.
    """

    done: threading.Event = field(default_factory=threading.Event)
    known: bool = False
    found: Found | None = None
    compressed: Compressed | None = None
    size: int = 0


class AskedAhead:
    """The questions that were asked ahead, and the answers held in memory. Safe to use from several threads."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._lock = threading.Lock()
        self.held = 0

    def ask(self, remote: RemoteCache, looks: Iterable[tuple[str, Callable[[Asked], None]]]) -> None:
        """Look for entries in threads of the remote cache, unless somebody looks for them already.

        Arguments:
            looks: the key of each entry, and a function that looks for it and notes the answer.
        """

        def do(asked: Asked, look: Callable[[Asked], None]) -> None:
            try:
                look(asked)
            finally:  # also after an error: somebody may wait for it
                asked.done.set()

        tasks = []
        for key, look in looks:
            with self._lock:
                if key in self._asked:
                    continue
                asked = self._asked[key] = Asked()
            tasks.append(functools.partial(do, asked, look))
        remote.ask_ahead(tasks)

    def hold(self, asked: Asked, size: int, answer: Found | Compressed, dispensable: bool) -> bool:
        """Note the answer to a question, and hold it in memory if there is room.

        Arguments:
            dispensable: whether the answer can be read again from the folder; if not, it is held in any case.

        Returns:
            Whether it is held.
        """
        asked.known = True
        with self._lock:
            if self.held + size > MOST_HELD and dispensable:
                return False
            self.held += size
            asked.size = size
            asked.found, asked.compressed = (None, answer) if isinstance(answer, Compressed) else (answer, None)
        return True

    def answered(self, key: str) -> Asked | None:
        """Take the question of a key, and wait for its answer; None: it was not asked ahead."""
        with self._lock:
            asked = self._asked.pop(key, None)
        if asked is not None:
            asked.done.wait()
            with self._lock:
                self.held -= asked.size
        return asked

    def take_compressed(self, key: str) -> Compressed | None:
        """Wait for an answer and take it as it came; None: it is not held in that form, and its question stays here."""
        with self._lock:
            asked = self._asked.get(key)
        if asked is None:
            return None
        asked.done.wait()
        with self._lock:
            if asked.compressed is not None and self._asked.pop(key, None) is asked:
                self.held -= asked.size
        return asked.compressed

    def put(self, key: str, asked: Asked) -> None:
        """Note an answer that came in another way."""
        asked.done.set()
        with self._lock:
            self._asked[key] = asked


class Sender:
    """Sends entries of a folder to a remote cache.

    Arguments:
        entries: the folder.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._sent = set[str]()
        self._lock = threading.Lock()

    def share(self, remote: RemoteCache, key: str, later: Mapping[str, str]) -> None:
        """Have an entry written, and the list that leads from the key of its stage to it."""
        if len(later) > MOST_NAMES:
            return
        name, names = entry_key(key, later), sorted(later)

        def send() -> None:
            if self._send(remote, name) and names:
                send_list(remote, key, names)

        remote.write_behind(send)

    def push(self, remote: RemoteCache) -> None:
        """Write all entries of the folder that the remote cache lacks."""

        def push(path: Path) -> None:
            with contextlib.suppress(OSError, ValueError):  # it is damaged, or somebody has removed it
                header = read_entry(path, lambda header, data: header)
                if header.lists is None and not remote.has(path.name):
                    self._send(remote, path.name)
                for names in reversed(header.lists or ()):
                    if header.of and all(map(is_portable, names)):
                        send_list(remote, header.of, names)

        for _, _, path in self._entries.entries():
            remote.write_behind(functools.partial(push, path), patient=True)

    def _send(self, remote: RemoteCache, name: str) -> bool:
        """Write an entry to the remote cache; whether it is there now. Files that an answer refers to go with it."""
        try:
            place = self._entries.place(name)
            header, contents = read_entry(place, lambda header, data: (header, files_in(header, data)))
            for entry, files in header.refers.items():
                found = self._entries.outputs(self._entries.place(entry), Wanted(frozenset(files)))
                if found is None:
                    return False
                contents |= {file_with_answer(entry, file): data for file, data in found.items()}
            for entry in header.needs:
                self._send_once(remote, entry)
        except (OSError, ValueError):
            return False  # it was removed, or damaged, meanwhile
        if header.here or sum(map(len, contents.values())) > LARGEST_OUTPUTS:
            return False
        return remote.put(name, entry_with(name, contents)) is not None

    def _send_once(self, remote: RemoteCache, name: str) -> None:
        """See to it that an entry which many answers need is in the remote cache."""
        with self._lock:
            first = name not in self._sent
            self._sent.add(name)
        if first and not remote.has(name):
            self._send(remote, name)


class LayeredCache(Entries):
    """A folder of entries, and what is behind it.

    Arguments:
        folder, limit, writable, owned: see :class:`Entries`.
        behind: gives another cache, which is asked for what this one lacks; called at the first miss.
        remote: gives the remote cache, which is asked for what both lack; called at the first miss of both.

    Attributes:
        counts: what was done here, in numbers.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        writable: bool = True,
        owned: bool = False,
        behind: Callable[[], LayeredCache | None] = lambda: None,
        remote: Callable[[], RemoteCache | None] = lambda: None,
    ) -> None:
        super().__init__(folder, limit, writable, owned)
        self._find_behind = behind
        self._find_remote = remote
        self._ahead = AskedAhead()
        self._sender = Sender(self)
        self._missing = set[str]()
        self._alone: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.counts = Counts()

    @functools.cached_property
    def behind(self) -> LayeredCache | None:
        """The cache that is asked for what this one lacks."""
        return self._find_behind()

    @functools.cached_property
    def remote(self) -> RemoteCache | None:
        """The cache on a network that is asked for what this machine lacks."""
        return self._find_remote()

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Let one stage with this key run at a time, so that the next one finds in the cache what it has made."""
        with self._lock:
            lock = self._alone.setdefault(key, threading.Lock())
        with lock:
            yield

    def has(self, key: str, current: Callable[[str], str]) -> bool:
        """Whether there is an entry for a stage, be it intact or not; ``current`` as for :func:`fetch`."""
        present = functools.cache(current)
        entries = possible_entries(key, self._lists(key), present)
        found = any(is_file(self.place(entry)) for entry, _ in entries)
        return found or (self.behind is not None and self.behind.has(key, present))

    def contents(self, entry: str, files: Sequence[str], far: bool = False) -> dict[str, bytes] | None:
        """The files in an entry, which must have these names; None: it is missing, or damaged.

        Arguments:
            far: whether the remote cache is asked for what is not here.
        """
        start = time.monotonic()
        wanted, place = Wanted(frozenset(files)), self.place(entry)
        contents = self.outputs(place, wanted)
        if contents is not None:
            self._touch(place)
        self._count(None if contents is None else (contents, {}), time.monotonic() - start)
        if contents is None and (taken := self._taken_from_behind(entry)) is not None:
            with contextlib.suppress(ValueError):  # it has other files
                contents = open_entry(entry, taken, functools.partial(wanted_files, wanted))
        return self._contents_far(entry, wanted) if contents is None and far else contents

    def whole(self, name: str) -> bytes | None:
        """All bytes of an entry, from here or from behind; None: there is none, or it is damaged."""
        entry = self._read(self.place(name), whole)
        return entry if entry is not None or self.behind is None else self.behind.whole(name)

    def _contents_far(self, entry: str, files: Wanted) -> dict[str, bytes] | None:
        """The files of an entry of the remote cache, which is then kept here. A missing entry is asked for once."""
        if self.remote is None or entry in self._missing:
            return None
        with self.remote.room.turn():
            found = fetched(self.remote, entry, functools.partial(wanted_files, files))
            if found is None:
                self._missing.add(entry)
                return None
            self._keep_whole(entry, found[0])
            return found[1]

    def look_ahead(
        self,
        wanted: Iterable[tuple[str, Wanted, Callable[[str], str]]],
        then: Callable[[Found], None] = lambda found: None,
    ) -> None:
        """Have the remote cache look for entries that will be needed, unless they are here."""
        remote = self.remote
        if remote is None or remote.is_off:
            return

        def look(asked: Asked, key: str, files: Wanted, digest: Callable[[str], str]) -> None:
            found = self._find(key, files, digest)
            asked.known = found is not None  # also if it is here: somebody may remove it meanwhile
            if found is None:
                found = self._find_far(remote, key, files, digest)
                if found is not None:
                    self._ahead.hold(asked, sum(map(len, found[0].values())), found, self._is_kept)
            asked.done.set()
            if found is not None:
                then(found)

        looks = (
            (key, functools.partial(look, key=key, files=files, digest=functools.cache(current)))
            for key, files, current in wanted
        )
        self._ahead.ask(remote, looks)

    def look_up(self, key: str, files: Wanted, digest: Callable[[str], str], here: bool = False) -> Found | None:
        """The contents in an entry of this cache or of those behind it, and the files that they depend on.

        Arguments:
            here: whether no other machine can have it.
        """
        asked = self._ahead.answered(key)
        come = None if asked is None else asked.found
        if asked is not None and asked.compressed is not None and self.remote is not None:
            come = self._adopt_or_tell(self.remote, asked.compressed)
            asked.known = come is not None
        if come is not None and _is_current(come[1], digest):
            self._count(None, 0)
            return come
        start = time.monotonic()
        found = self._find(key, files, digest)
        self._count(found, time.monotonic() - start)
        if found is None and self.behind is not None:
            found = self.behind.look_up(key, files, digest)
            if found is not None:
                self._taken_from_behind(entry_key(key, found[1]), key, found[1])
                if not here and all(map(is_portable, found[1])):
                    self._share(key, found[1])
        if found is None and not here and self.remote is not None and (asked is None or asked.known):
            found = self._find_far(self.remote, key, files, digest)
        return found

    def _taken_from_behind(self, name: str, key: str = "", later: Mapping[str, str] | None = None) -> bytes | None:
        """An entry of the caches behind this one, which is kept here, if it can be; None: there is none.

        Arguments:
            key, later: as for :meth:`_keep_whole`.
        """
        entry = self.behind.whole(name) if self.behind else None
        if entry is not None and self._writable:
            self._keep_whole(name, entry, key, later)
        return entry

    def _count(self, found: Found | None, seconds: float) -> None:
        """Count a question: as a hit with its bytes, or as a miss."""
        with self._lock:
            self.counts.seconds += seconds
            self.counts.hits += found is not None
            self.counts.misses += found is None
            self.counts.read += sum(map(len, found[0].values())) if found else 0

    def _find_far(self, remote: RemoteCache, key: str, files: Wanted, digest: Callable[[str], str]) -> Found | None:
        """What :meth:`look_up` gives for an entry of the remote cache, which is then kept here."""
        with remote.room.turn():
            for later, whole in slots(remote, key, files, digest):
                name = entry_key(key, later)
                found = whole or fetched(remote, name, functools.partial(wanted_files, files))
                if found is not None:
                    self._keep_whole(name, found[0], key, later)
                    return found[1], later
        return None

    def _adopt(self, compressed: Compressed, limit: int = LARGEST_RECORD) -> Found:
        """Unpack an answer that came from the remote cache, and keep it here.

        Raises:
            ValueError: it is damaged, or no answer.
            LargerError: it is larger than the limit.
        """
        name, entry = entry_key(compressed.key, compressed.later), decompressed(compressed.data, limit)
        contents = open_entry(name, entry, functools.partial(from_afar, functools.partial(wanted_files, AN_ANSWER)))
        self._keep_whole(name, entry, compressed.key, compressed.later)
        return contents, {**compressed.later}

    def _adopt_or_tell(self, remote: RemoteCache, compressed: Compressed, limit: int = LARGEST_RECORD) -> Found | None:
        """Like :meth:`_adopt`; None: the answer is damaged, and the user is told."""
        try:
            return self._adopt(compressed, limit)
        except ValueError as error:
            remote.damaged(entry_key(compressed.key, compressed.later), str(error), len(compressed.data))
            return None

    def _hold_compressed(self, remote: RemoteCache, asked: Asked, compressed: Compressed) -> None:
        """Hold an answer in memory as it came; a large one, or one without room, is put into the folder instead."""
        size = len(compressed.data)
        if size <= MOST_PASSED and self._ahead.hold(asked, size, compressed, self._is_kept):
            return
        try:
            found = self._adopt_or_tell(remote, compressed, most_expected(size))
        except LargerError:  # whoever needs it asks for it again, alone
            asked.known = True
            return
        asked.known = found is not None
        if found is not None and self.problem is not None:
            self._ahead.hold(asked, size, found, self._is_kept)

    def _share(self, key: str, later: Mapping[str, str]) -> None:
        """Have an entry written to the remote cache, if entries may be written."""
        if self._writable and self.remote is not None:
            self._sender.share(self.remote, key, later)

    @property
    def _is_kept(self) -> bool:
        """Whether an entry from behind can be read again, because it is written here."""
        return self._writable and self.problem is None


def _is_current(later: Mapping[str, str], digest: Callable[[str], str]) -> bool:
    """Whether what an entry depends on is still the same."""
    return all(digest(name) == was for name, was in later.items())


def is_file(path: Path) -> bool:
    """Whether a path is a file. If that cannot be found out, it is False; ``Path.is_file`` would raise an OSError."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
