"""The build cache: it keeps finished stages by what they were made from. Runs, branches and trees share it.

It also keeps answers, which no stage made, such as how a tool identifies itself. An answer is the one file of an entry
whose key is made of the question. ``state.entries`` has the folder, and ``state.layers`` the caches behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.converter import json_text
from ..core.dependencies import is_portable
from ..core.records import decoded
from .counts import Counts
from .entries import Found
from .entry import AN_ANSWER, ANSWER, HERE, LARGEST_OUTPUTS, Wanted, entry_key, question_key
from .layers import Asked, LayeredCache, is_file
from .remote_entries import Compressed, find_compressed

if TYPE_CHECKING:
    from .remote_client import RemoteCache


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


class BuildCache(LayeredCache):
    """A cache of stages and answers; see :class:`LayeredCache` for the arguments."""

    def fetch(
        self, key: str, out: Path, files: Sequence[str], current: Callable[[str], str], here: bool = False
    ) -> dict[str, str] | None:
        """Write the outputs of an entry into a folder.

        Arguments:
            key: of the stage, from :func:`key_of`.
            out: receives the files.
            files: the names that they must have.
            current: gives the present digest of a file that the stage turned out to depend on while it ran.
            here: whether no other machine can have the entry.

        Returns:
            The files that the stage turned out to depend on, with their digests; None: no entry fits.
        """
        found = self.look_up(key, Wanted(frozenset(files)), functools.cache(current), here)
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

    def recall(self, question: Any, current: Callable[[str], str], here: bool = False) -> Any:
        """The answer to a question that somebody has asked before; see :class:`core.answers.Answers`."""
        found = self.recall_with_files(question, current, here)
        return None if found is None else found[0]

    def recall_with_files(
        self, question: Any, current: Callable[[str], str], here: bool = False
    ) -> tuple[Any, dict[str, bytes]] | None:
        """The answer to a question, and the files that it has with it; see :meth:`remember`."""
        found = self.look_up(question_key(question), AN_ANSWER, functools.cache(current), here)
        if found is None:
            return None
        files = found[0]
        try:
            return decoded(files.pop(ANSWER)), files
        except ValueError:
            return None

    def remember(
        self,
        question: Any,
        answer: Any,
        later: Mapping[str, str],
        here: bool = False,
        refers: Mapping[str, Sequence[str]] | None = None,
        needs: Collection[str] = (),
    ) -> None:
        """Keep the answer to a question; see :class:`core.answers.Answers`.

        Arguments:
            refers: entries of this cache without which the answer is useless -> the names of their files. The remote
                cache gets these files together with the answer, under names from :func:`file_with_answer`, so that
                one request brings all.
            needs: further such entries, which many answers need: the remote cache gets each of them once.
        """
        key = question_key(question)
        # Not sorted: the order of a config's parameters counts.
        text = json_text(answer).encode()
        more = {"refers": refers or {}, "needs": tuple(needs)} if refers or needs else {}
        self._keep(key, {ANSWER: text}, later, HERE if here else more)
        if not here:
            self._share(key, later)

    def recall_ahead(self, questions: Iterable[Any], current: Callable[[str], str]) -> None:
        """Have the remote cache look for the answers to questions that are going to be asked."""
        self.look_ahead((question_key(question), AN_ANSWER, current) for question in questions)

    def recall_compressed_ahead(self, questions: Iterable[Any], current: Callable[[str], str]) -> None:
        """Like :meth:`recall_ahead`, but answers stay compressed until somebody takes them: :meth:`take_compressed`."""
        remote = self.remote
        if remote is None or remote.is_off:
            return
        digest = functools.cache(current)

        def look(asked: Asked, key: str) -> None:
            asked.known = self.has(key, digest)
            if asked.known:
                return
            compressed = find_compressed(remote, key, digest)
            if compressed is not None:
                self._hold_compressed(remote, asked, compressed)

        keys = map(question_key, questions)
        self._ahead.ask(remote, ((key, functools.partial(look, key=key)) for key in keys))

    def take_compressed(self, question: Any) -> Compressed | None:
        """Wait for an answer that was asked for ahead, and take it as it came from the remote cache.

        It is given once. None: this cache has it already, or the remote cache lacks it.
        """
        return self._ahead.take_compressed(question_key(question))

    def receive(self, compressed: Compressed) -> None:
        """Keep an answer that another process got from the remote cache, and hold it for whoever asks.

        Raises:
            ValueError: it is damaged.
        """
        self._ahead.put(compressed.key, Asked(known=True, found=self._adopt(compressed)))

    def give_back(self, compressed: Compressed) -> None:
        """Take back an answer that another process could not use, so that the remote cache is not asked again."""
        asked = Asked(known=True)
        # If the other process has kept the entry in the folder, it was not damaged.
        if self.remote is not None and not is_file(self.place(entry_key(compressed.key, compressed.later))):
            self._hold_compressed(self.remote, asked, compressed)
        self._ahead.put(compressed.key, asked)

    def push(self, remote: RemoteCache) -> None:
        """Write to a remote cache all entries of this one that it lacks."""
        self._sender.push(remote)

    def work_done(self) -> Work:
        """What was done here: counts since the last call, whether anything was stored, and why something was not."""
        with self._lock:
            work = Work(self.counts, self._stored, self.problem)
            self.counts = Counts()
        return work

    def note(self, work: Work) -> None:
        """Note what another process has done in this cache."""
        with self._lock:
            self.counts += work.counts
            self._stored |= work.stored
            self.problem = self.problem or work.problem

    def fetch_ahead(
        self, key: str, files: Sequence[str], current: Callable[[str], str], then: Callable[[Found], None]
    ) -> None:
        """Have the remote cache look for the outputs of a stage that is going to run.

        Arguments:
            then: called with the entry, in any thread, when this cache has it; not called if there is none.
        """
        self.look_ahead([(key, Wanted(frozenset(files)), current)], then)
