"""Asks the remote cache for entries before anybody needs them. Each answer goes to whoever asks for it first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .entries import Found
from .remote_entries import Compressed

if TYPE_CHECKING:
    from .remote_client import RemoteCache

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
