"""What the remote cache was asked for before anybody needs it. Each answer goes to whoever asks first."""

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
"""Bytes that came ahead and are held in memory until they are asked for; further ones are read again."""


@dataclass
class Asked:
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


class AskedAhead:
    """The questions that were asked ahead, and what is held of the answers. Safe to use from several threads."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._lock = threading.Lock()
        self.held = 0

    def ask(self, remote: RemoteCache, looks: Iterable[tuple[str, Callable[[Asked], None]]]) -> None:
        """Look for keys in threads of the remote cache, unless somebody looks for them already.

        Arguments:
            looks: key, and what looks for it and notes what there is.
        """

        def do(asked: Asked, look: Callable[[Asked], None]) -> None:
            try:
                look(asked)
            finally:  # whatever happens: somebody may wait for it
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
        """Note what a question has given, and have it at hand if there is room.

        Arguments:
            dispensable: whether it can be read again where it was kept; otherwise there is room.

        Returns:
            Whether it is at hand.
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
        """What the remote cache has given for a question that it was asked ahead; None: it was not."""
        with self._lock:
            asked = self._asked.pop(key, None)
        if asked is not None:
            asked.done.wait()
            with self._lock:
                self.held -= asked.size
        return asked

    def take_compressed(self, key: str) -> Compressed | None:
        """An answer as it came: waits for it, and gives it once. What is known of any other one stays known."""
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
        """Have an answer that came in another way."""
        asked.done.set()
        with self._lock:
            self._asked[key] = asked
