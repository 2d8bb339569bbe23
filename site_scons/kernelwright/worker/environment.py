"""Tells which variables of the environment are asked for through ``os.environ``; Python has no audit event for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any


def watch_environment(note: Callable[[str], None]) -> None:
    """Have a function called with the name of each variable that is asked for from now on; there is no way back.

    The objects stay the ones that other modules have got hold of, so they get another class.
    """

    class Watched(os._Environ[Any]):
        """An environment that tells what it is asked for; its other methods use these two."""

        def __getitem__(self, key: Any) -> Any:
            note(os.fsdecode(key))
            return super().__getitem__(key)

        def __iter__(self) -> Iterator[Any]:
            for key in list(super().__iter__()):
                note(os.fsdecode(key))
                yield key

    os.environ.__class__ = Watched
    os.environb.__class__ = Watched
