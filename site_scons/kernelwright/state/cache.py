"""The build cache: finished stages by what they were made from, shared by runs, by branches and by trees.

Some files that a stage depends on are known only when it has run, as with the headers of a C compiler. So there are two
kinds of entries. One has, for the key of a stage, the names of these files: a list for each set that was ever seen,
because a branch may read others. The other has the outputs, and its key is made of the stage's key, one such list, and
the digests of these files. Entries of stages that read no such files need no list.

What a build found out and no stage made, such as what a tool says of itself, is kept in the same way: as the one file
of an entry whose key is made of the question.

Behind the folder there may be a remote cache (``state.remote_client``), which has the same entries under the same names
(``state.remote_entries``). An entry (``state.entry``) that does not fit what its line says is removed and counts as a
miss, so nothing that happens to a cache can get into an output.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.dependencies import is_portable
from ..core.files import LARGEST_RECORD, SCRATCH, held_folder, read_record, write_atomically
from ..core.records import Record, decoded
from .counts import Counts
from .entry import (
    AN_ANSWER,
    ANSWER,
    ENTRY,
    HERE,
    LARGEST_OUTPUTS,
    MOST_LISTS,
    MOST_NAMES,
    Wanted,
    checked,
    entry_key,
    entry_with,
    file_with_answer,
    files_in,
    list_key,
    lists_in,
    needed,
    open_entry,
    question_key,
    read_entry,
    referred,
    wanted_files,
    with_line,
)
from .own_folder import mark_own, require_own
from .remote_entries import Compressed, fetched, find_compressed, from_afar, send_list, slots
from .remote_objects import LargerError, decompressed, most_expected

if TYPE_CHECKING:
    from .remote_client import RemoteCache

Parsed = TypeVar("Parsed")

MOST_HELD = 64 << 20
"""Bytes that came ahead and are held in memory until they are asked for; further ones are read again."""

SHELF = re.compile(r"[0-9a-f]{2}")
"""Name of a folder with entries, whose names begin so."""

MOST_PASSED = 1 << 20
"""Bytes of an answer that is passed on to another process as it came; a larger one is kept here first."""

STALE_S = 24 * 3600
"""After so long a file that is half written has been left by a process that was killed, perhaps on another machine."""


Found = tuple[dict[str, bytes], dict[str, str]]
"""The files of an entry, and what they turned out to depend on, with the digests."""


@dataclass(frozen=True)
class Work:
    """What a process has done in a cache for another one.

    Arguments:
        counts: what it has done, in numbers.
        stored: whether it has added entries.
        problem: why some could not be added.
    """

    counts: Counts
    stored: bool = False
    problem: str | None = None


@dataclass
class _Asked:
    """A question that the remote cache was asked ahead.

    Arguments:
        done: whether the answer is known.
        known: whether it was there, so that it makes sense to ask once more if it was lost meanwhile.
        found: what was there; None, if it was kept here, and need not be in the memory as well.
        compressed: the same, if whoever needs it unpacks it, perhaps another process.
        size: bytes of either.
    """

    done: threading.Event = field(default_factory=threading.Event)
    known: bool = False
    found: Found | None = None
    compressed: Compressed | None = None
    size: int = 0


class BuildCache:
    """A folder of entries. Safe to use from several threads and processes, on a local or a shared file system.

    Arguments:
        folder: where the entries are; made when the first one is written.
        limit: size in bytes that :meth:`trim` cuts the cache down to.
        writable: whether entries may be added and removed.
        owned: whether nobody else can have anything in the folder, because all that it is in is the build's own.
        behind: gives another cache, which is asked for what this one lacks; called at the first miss. What the other
            one has is kept in this one, too, so that it lives as long as all else that is used here.
        remote: gives the remote cache, which is asked for what both lack; called at the first miss of both.

    Raises:
        SettingsError: there is something in the folder, and it is no build cache.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        writable: bool = True,
        owned: bool = False,
        behind: Callable[[], BuildCache | None] = lambda: None,
        remote: Callable[[], RemoteCache | None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._writable = writable
        self._stored = False
        self._find_behind = behind
        self._find_remote = remote
        self._asked: dict[str, _Asked] = {}
        self._missing = set[str]()
        self._shared = set[str]()
        self._held = 0
        self._lock = threading.Lock()
        self._alone: dict[str, threading.Lock] = {}
        self.counts = Counts()
        self.problem: str | None = None
        if not owned:
            require_own(folder, "build cache", "cache_dir", self._has_entries)

    @functools.cached_property
    def behind(self) -> BuildCache | None:
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

    def fetch(
        self, key: str, out: Path, files: Sequence[str], current: Callable[[str], str], here: bool = False
    ) -> dict[str, str] | None:
        """Write the outputs of an entry into a folder.

        Arguments:
            key: of the stage, from :func:`key_of`.
            out: receives the files.
            files: the names that they must have.
            current: gives the present digest of a file that the stage turned out to depend on while it ran.
            here: whether no other machine can have it.

        Returns:
            These files with their digests, or None if no entry fits.
        """
        found = self._look_up(key, Wanted(frozenset(files)), functools.cache(current), here)
        if found is None:
            return None
        contents, later = found
        for name, data in contents.items():
            (out / name).write_bytes(data)
        return later

    def store(self, key: str, out: Path, names: Sequence[str], later: Mapping[str, str], here: bool = False) -> None:
        """Keep the outputs of a stage. A cache that cannot be written is no reason to fail: see :attr:`problem`.

        Arguments:
            here: whether no other machine may have them.
        """
        here = here or not all(map(is_portable, later))
        if self._writable and sum((out / name).stat().st_size for name in names) <= LARGEST_OUTPUTS:
            self._keep(key, {name: (out / name).read_bytes() for name in names}, later, HERE if here else {})
            if not here:
                self._share(key, later)

    def recall(self, question: Any, current: Callable[[str], str], here: bool = False) -> Record | None:
        """The answer to a question that somebody has asked before; see :class:`core.answers.Answers`."""
        found = self.recall_with_files(question, current, here)
        return None if found is None else found[0]

    def recall_with_files(
        self, question: Any, current: Callable[[str], str], here: bool = False
    ) -> tuple[Record, dict[str, bytes]] | None:
        """The answer to a question, and the files that it has with it; see :meth:`remember`."""
        found = self._look_up(question_key(question), AN_ANSWER, functools.cache(current), here)
        if found is None:
            return None
        files = found[0]
        try:
            return Record(decoded(files.pop(ANSWER)), ""), files
        except ValueError:
            return None

    def remember(
        self,
        question: Any,
        answer: Mapping[str, Any],
        later: Mapping[str, str],
        here: bool = False,
        refers: Mapping[str, Sequence[str]] | None = None,
        needs: Collection[str] = (),
    ) -> None:
        """Keep the answer to a question; see :class:`core.answers.Answers`.

        Arguments:
            refers: entries of this cache that the answer is of no use without -> the names of their files. What the
                remote cache gets has these files with it, by the names that :func:`file_with_answer` gives them, so
                that one question is enough for all.
            needs: further such entries, which many answers need: the remote cache gets each of them once.
        """
        key = question_key(question)
        # Not sorted: the order of a config's parameters counts.
        text = json.dumps(answer, separators=(",", ":")).encode()
        more = {"refers": refers or {}, "needs": [*needs]} if refers or needs else {}
        self._keep(key, {ANSWER: text}, later, HERE if here else more)
        if not here:
            self._share(key, later)

    def recall_ahead(self, questions: Iterable[Any], current: Callable[[str], str]) -> None:
        """Have the remote cache look for the answers to questions that are going to be asked."""
        self.look_ahead((question_key(question), AN_ANSWER, current) for question in questions)

    def recall_compressed_ahead(self, questions: Iterable[Any], current: Callable[[str], str]) -> None:
        """The same for answers that are unpacked by whoever needs them; see :meth:`compressed`."""
        remote = self.remote
        if remote is None or remote.is_off:
            return
        digest = functools.cache(current)

        def look(asked: _Asked, key: str) -> None:
            asked.known = self.has(key, digest)
            if asked.known:
                return
            compressed = find_compressed(remote, key, digest)
            if compressed is not None:
                self._hold_compressed(remote, asked, compressed)

        keys = map(question_key, questions)
        self._ask_ahead(remote, ((key, functools.partial(look, key=key)) for key in keys))

    def take_compressed(self, question: Any) -> Compressed | None:
        """An answer that is looked for ahead, as it came from the remote cache: waits for it, and gives it once.

        None if it is here already, or not there; what is known of it stays known.
        """
        key = question_key(question)
        with self._lock:
            asked = self._asked.get(key)
        if asked is None:
            return None
        asked.done.wait()
        with self._lock:
            if asked.compressed is not None and self._asked.pop(key, None) is asked:
                self._held -= asked.size
        return asked.compressed

    def receive(self, compressed: Compressed) -> None:
        """Keep an answer that another process got from the remote cache, and have it at hand.

        Raises:
            ValueError: it is damaged.
        """
        asked = _Asked(known=True, found=self._adopt(compressed))
        asked.done.set()
        self._asked[compressed.key] = asked

    def give_back(self, compressed: Compressed) -> None:
        """Take an answer back that another process could not use: it is not asked for again."""
        asked = _Asked(known=True)
        # What the other process has kept was no damaged one.
        if self.remote is not None and not _is_file(self._place(entry_key(compressed.key, compressed.later))):
            self._hold_compressed(self.remote, asked, compressed)
        asked.done.set()
        with self._lock:
            self._asked[compressed.key] = asked

    def _hold_compressed(self, remote: RemoteCache, asked: _Asked, compressed: Compressed) -> None:
        """Have an answer at hand as it came; a large one, or one for which there is no room, is kept here instead."""
        size = len(compressed.data)
        if size <= MOST_PASSED and self._hold(asked, size, compressed=compressed):
            return
        try:
            found = self._adopt_or_tell(remote, compressed, most_expected(size))
        except LargerError:  # whoever needs it asks for it again, alone
            asked.known = True
            return
        asked.known = found is not None
        if found is not None and self.problem is not None:
            self._hold(asked, size, found)

    def work_done(self) -> Work:
        """What was done here: in numbers since it was last asked, and whether anything was stored, or could not be."""
        work = Work(self.counts, self._stored, self.problem)
        self.counts = Counts()
        return work

    def note(self, work: Work) -> None:
        """Note what another process has done in this cache."""
        self.counts += work.counts
        self._stored |= work.stored
        self.problem = self.problem or work.problem

    def fetch_ahead(
        self, key: str, files: Sequence[str], current: Callable[[str], str], then: Callable[[Found], None]
    ) -> None:
        """Have the remote cache look for the outputs of a stage that is going to run.

        Arguments:
            then: called with what this cache has, now or when it has come, in any thread; not called if there is
                nothing.
        """
        self.look_ahead([(key, Wanted(frozenset(files)), current)], then)

    def look_ahead(
        self,
        wanted: Iterable[tuple[str, Wanted, Callable[[str], str]]],
        then: Callable[[Found], None] = lambda found: None,
    ) -> None:
        """Have the remote cache look for what it is going to be asked for, unless it is here."""
        remote = self.remote
        if remote is None or remote.is_off:
            return

        def look(asked: _Asked, key: str, files: Wanted, digest: Callable[[str], str]) -> None:
            found = self._find(key, files, digest)
            if found is None:
                found = self._find_far(remote, key, files, digest)
                if found is not None:
                    self._hold(asked, sum(map(len, found[0].values())), found)
            asked.done.set()
            if found is not None:
                then(found)

        looks = (
            (key, functools.partial(look, key=key, files=files, digest=functools.cache(current)))
            for key, files, current in wanted
        )
        self._ask_ahead(remote, looks)

    def _ask_ahead(self, remote: RemoteCache, looks: Iterable[tuple[str, Callable[[_Asked], None]]]) -> None:
        """Look for keys in threads of the remote cache, unless somebody looks for them already.

        Arguments:
            looks: key, and what looks for it and notes what there is.
        """

        def do(asked: _Asked, look: Callable[[_Asked], None]) -> None:
            try:
                look(asked)
            finally:  # whatever happens: somebody may wait for it
                asked.done.set()

        tasks = []
        for key, look in looks:
            with self._lock:
                if key in self._asked:
                    continue
                asked = self._asked[key] = _Asked()
            tasks.append(functools.partial(do, asked, look))
        remote.ask_ahead(tasks)

    def entry_of(self, key: str, later: Mapping[str, str]) -> str:
        """Name of the entry with the outputs of a stage; ``later`` is what the stage turned out to depend on."""
        return entry_key(key, later)

    def contents(self, entry: str, files: Sequence[str], far: bool = False) -> dict[str, bytes] | None:
        """The files in an entry, which must have these names; None: it is missing, or damaged.

        Arguments:
            far: whether the remote cache is asked for what is not here.
        """
        start = time.monotonic()
        wanted, place = Wanted(frozenset(files)), self._place(entry)
        contents = self._outputs(place, wanted)
        if contents is not None:
            self._touch(place)
        self._count(None if contents is None else (contents, {}), time.monotonic() - start)
        return self._contents_far(entry, wanted) if contents is None and far else contents

    def _contents_far(self, entry: str, files: Wanted) -> dict[str, bytes] | None:
        """What :meth:`contents` gives for an entry of the remote cache, which is kept here. It is asked for once."""
        if self.remote is None or entry in self._missing:
            return None
        with self.remote.room.turn():
            found = fetched(self.remote, entry, functools.partial(wanted_files, files))
            if found is None:
                self._missing.add(entry)
                return None
            self._keep_whole(entry, found[0])
            return found[1]

    def _look_up(self, key: str, files: Wanted, digest: Callable[[str], str], here: bool = False) -> Found | None:
        """The contents in an entry of this cache or of those behind it, and the files that they depend on.

        Arguments:
            here: whether no other machine can have it.
        """
        asked = self._answered(key)
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
            found = self.behind._look_up(key, files, digest)
            if found is not None:
                here = here or not all(map(is_portable, found[1]))
                self._keep(key, *found, HERE if here else {})
                if not here:
                    self._share(key, found[1])
        if found is None and not here and self.remote is not None and (asked is None or asked.known):
            found = self._find_far(self.remote, key, files, digest)
        return found

    def _hold(self, asked: _Asked, size: int, found: Found | None = None, compressed: Compressed | None = None) -> bool:
        """Note what a question has given, and have it at hand if there is room, or if it could not be kept here.

        Returns:
            Whether it is at hand.
        """
        asked.known = True
        with self._lock:
            if self._held + size > MOST_HELD and self._writable and self.problem is None:
                return False
            self._held += size
            asked.size, asked.found, asked.compressed = size, found, compressed
        return True

    def _answered(self, key: str) -> _Asked | None:
        """What the remote cache has given for a question that it was asked ahead; None: it was not."""
        with self._lock:
            asked = self._asked.pop(key, None)
        if asked is not None:
            asked.done.wait()
            with self._lock:
                self._held -= asked.size
        return asked

    def _count(self, found: Found | None, seconds: float) -> None:
        """Note how a question went."""
        with self._lock:
            self.counts.seconds += seconds
            self.counts.hits += found is not None
            self.counts.misses += found is None
            self.counts.read += sum(map(len, found[0].values())) if found else 0

    def _find(self, key: str, files: Wanted, digest: Callable[[str], str]) -> Found | None:
        """What :meth:`_look_up` gives for an entry of this cache."""
        for names in ([], *self._lists(key)):
            later = {name: digest(name) for name in names}
            place = self._place(entry_key(key, later))
            contents = self._outputs(place, files)
            if contents is not None:
                # The list comes last: it must not be removed before the entries that it leads to.
                self._touch(place)
                if names:
                    self._touch(self._place(list_key(key)))
                return contents, later
        return None

    def _find_far(self, remote: RemoteCache, key: str, files: Wanted, digest: Callable[[str], str]) -> Found | None:
        """What :meth:`_look_up` gives for an entry of the remote cache; it is kept here."""
        with remote.room.turn():
            for later, whole in slots(remote, key, files, digest):
                name = entry_key(key, later)
                found = whole or fetched(remote, name, functools.partial(wanted_files, files))
                if found is not None:
                    self._keep_whole(name, found[0], key, later)
                    return found[1], later
        return None

    def _adopt(self, compressed: Compressed, limit: int = LARGEST_RECORD) -> Found:
        """Keep an answer as it came from the remote cache.

        Raises:
            ValueError: it is damaged, or no answer.
            LargerError: it is larger than the limit.
        """
        name, entry = entry_key(compressed.key, compressed.later), decompressed(compressed.data, limit)
        contents = open_entry(name, entry, functools.partial(from_afar, functools.partial(wanted_files, AN_ANSWER)))
        self._keep_whole(name, entry, compressed.key, compressed.later)
        return contents, {**compressed.later}

    def _adopt_or_tell(self, remote: RemoteCache, compressed: Compressed, limit: int = LARGEST_RECORD) -> Found | None:
        """The same; None: it is damaged, which is said."""
        try:
            return self._adopt(compressed, limit)
        except ValueError as error:
            remote.damaged(entry_key(compressed.key, compressed.later), str(error), len(compressed.data))
            return None

    def push(self, remote: RemoteCache) -> None:
        """Write everything that is here to a remote cache, as far as it is not there."""

        def push(path: Path) -> None:
            with contextlib.suppress(OSError, ValueError):  # it is damaged, or somebody has removed it
                header = read_entry(path, lambda header, data: header)
                if not header.has("lists"):
                    if not remote.has(path.name):
                        self._send(remote, path.name)
                elif header.has("of"):
                    for names in reversed(header.lists_of_texts("lists")):
                        if all(map(is_portable, names)):
                            send_list(remote, header.text("of"), names)

        for _, _, path in self.entries():
            remote.write_behind(functools.partial(push, path), patient=True)

    def _share(self, key: str, later: Mapping[str, str]) -> None:
        """Have an entry of this cache written to the remote one, if that may be written, and what leads to it."""
        if not self._writable or self.remote is None or len(later) > MOST_NAMES:
            return
        remote, name, names = self.remote, entry_key(key, later), sorted(later)

        def send() -> None:
            if self._send(remote, name) and names:
                send_list(remote, key, names)

        remote.write_behind(send)

    def _send(self, remote: RemoteCache, name: str) -> bool:
        """Write an entry to the remote cache; whether it is there now. An answer takes with it what it refers to."""
        try:
            header, contents = read_entry(self._place(name), lambda header, data: (header, files_in(header, data)))
            for entry, files in referred(header).items():
                found = self._outputs(self._place(entry), Wanted(frozenset(files)))
                if found is None:
                    return False
                contents |= {file_with_answer(entry, file): data for file, data in found.items()}
            for entry in needed(header):
                self._send_once(remote, entry)
        except (OSError, ValueError):
            return False  # it was removed, or damaged, meanwhile
        if header.has("here") or sum(map(len, contents.values())) > LARGEST_OUTPUTS:
            return False
        return remote.put(name, entry_with(name, contents)) is not None

    def _send_once(self, remote: RemoteCache, name: str) -> None:
        """See to it that an entry which many answers need is in the remote cache."""
        with self._lock:
            first = name not in self._shared
            self._shared.add(name)
        if first and not remote.has(name):
            self._send(remote, name)

    def _keep(
        self, key: str, contents: Mapping[str, bytes], later: Mapping[str, str], more: Mapping[str, Any] | None = None
    ) -> None:
        """Add an entry, if entries may be added and it is not too large.

        Arguments:
            more: what the line says besides.
        """
        if self._writable and sum(map(len, contents.values())) <= LARGEST_OUTPUTS:
            name = entry_key(key, later)
            self._keep_whole(name, entry_with(name, contents, more), key, later)

    def _keep_whole(self, name: str, entry: bytes, key: str = "", later: Mapping[str, str] | None = None) -> None:
        """Add an entry as it is, if entries may be added; with the list that leads from the key of the stage to it."""
        if not self._writable:
            return
        try:
            if not self._stored:
                mark_own(self._folder)
            self._write(name, entry)
            if later:
                self._add_list(list_key(key), sorted(later), key)
            self._stored = True
        except OSError as error:
            self.problem = f"{error.strerror or error} ({self._folder})"

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self._folder

    @property
    def writable(self) -> bool:
        """Whether entries may be added and removed."""
        return self._writable

    def take(self, entry: Path) -> None:
        """Add an entry of another cache. An intact one that is here already stays; lists of files are put together.

        Arguments:
            entry: its file.

        Raises:
            ValueError: it is damaged, or cannot be read.
            OSError: it cannot be written here.
        """
        try:
            data = read_record(entry)
            lists = open_entry(entry.name, data, checked)
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror or error}") from error
        if not self._stored:
            mark_own(self._folder)
            self._stored = True
        # The oldest list first, because each is put in front of those that are here.
        of = open_entry(entry.name, data, lambda header, data: header.optional(header.text, "of"))
        for names in reversed(lists or []):
            self._add_list(entry.name, names, of)
        if lists is None and self._read(self._place(entry.name), files_in) is None:
            self._write(entry.name, data)
        self._touch(self._place(entry.name))

    def has(self, key: str, current: Callable[[str], str]) -> bool:
        """Whether there is an entry for a stage, be it intact or not; ``current`` as for :func:`fetch`."""
        present = functools.cache(current)
        digests = ({name: present(name) for name in names} for names in ([], *self._lists(key)))
        found = any(_is_file(self._place(entry_key(key, later))) for later in digests)
        return found or (self.behind is not None and self.behind.has(key, present))

    def trim(self) -> None:
        """Remove the entries used least recently if this run has added some and they are too large together."""
        if not self._stored:
            return
        entries = list(self.entries())
        excess = sum(size for size, _, _ in entries) - self._limit
        for size, _, path in sorted(entries, key=lambda entry: entry[1]):
            if excess <= 0:
                return
            self.remove(path)
            excess -= size

    def damage(self, entry: Path) -> str | None:
        """What is wrong with an entry; None: nothing. It stays as it is."""
        try:
            read_entry(entry, checked)
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _place(self, key: str) -> Path:
        return Path(f"{self._folder}/{key[:2]}/{key}")  # with / it takes twice the time

    def _lists(self, key: str) -> list[list[str]]:
        """The sets of files that a stage was seen to depend on, the newest first."""
        return self._read(self._place(list_key(key)), lists_in) or []

    def _add_list(self, entry: str, names: list[str], of: str | None) -> None:
        """Note a set of files in the entry of this name; ``of`` is the key of the stage, if it is known.

        If two processes do so for one stage at once, one set is lost until it is met again.
        """
        lists = self._read(self._place(entry), lists_in) or []
        if names in lists:
            self._touch(self._place(entry))
        else:
            self._write(entry, with_line(entry, {"of": of, "lists": [names, *lists][:MOST_LISTS]}))

    def _outputs(self, place: Path, files: Wanted) -> dict[str, bytes] | None:
        """The outputs in an entry; None: there is none, or it does not fit, and is removed."""
        return self._read(place, functools.partial(wanted_files, files))

    def _read(self, place: Path, parse: Callable[[Record, bytes], Parsed]) -> Parsed | None:
        """What ``parse`` makes of the line and of the rest of an entry; None: there is none, or it is removed.

        It is removed if it is damaged, or has another key, or if ``parse`` raises a ValueError.
        """
        try:
            return read_entry(place, parse)
        except ValueError:
            self.remove(place)
        except OSError:
            pass
        return None

    def _write(self, key: str, entry: bytes) -> None:
        """Write an entry. Raises OSError if that is not possible."""
        shelf = self._place(key).parent
        shelf.mkdir(parents=True, exist_ok=True)
        with held_folder(shelf) as held:
            write_atomically(held / key, entry)

    def _touch(self, place: Path) -> None:
        """Note that an entry was used: those used least recently are removed first."""
        if self._writable:
            with contextlib.suppress(OSError), held_folder(place.parent) as held:
                os.utime(held / place.name, follow_symlinks=False)

    def remove(self, entry: Path) -> None:
        """Remove an entry, if entries may be removed."""
        if self._writable:
            with contextlib.suppress(OSError), held_folder(entry.parent) as held:
                (held / entry.name).unlink()

    def _has_entries(self, names: Collection[str]) -> bool:
        """Whether folders of these names are those of entries, which no other program has: one of them has an entry."""
        shelves = (self._folder / name for name in names)
        return all(map(SHELF.fullmatch, names)) and any(
            ENTRY.fullmatch(path.name) for shelf in shelves for path in shelf.iterdir()
        )

    def entries(self) -> Iterator[tuple[int, int, Path]]:
        """Size, time of the last use, and path of each entry. What processes have left half written is removed."""
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            # Another process may remove it at any moment.
            with contextlib.suppress(OSError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or path.parent.is_symlink():
                    continue
                if ENTRY.fullmatch(path.name) and path.name[:2] == path.parent.name:
                    yield status.st_size, status.st_mtime_ns, path
                elif path.name.startswith(SCRATCH) and status.st_mtime < time.time() - STALE_S:
                    self.remove(path)


def _is_current(later: Mapping[str, str], digest: Callable[[str], str]) -> bool:
    """Whether what an entry depends on is still the same."""
    return all(digest(name) == was for name, was in later.items())


def _is_file(path: Path) -> bool:
    """Whether there is a file; no, if that cannot be told, for which ``Path.is_file`` raises an OSError."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
