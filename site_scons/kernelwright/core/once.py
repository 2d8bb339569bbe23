"""A value that is made when it is needed first, also if several threads ask for it at once."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any


class shared_property(cached_property[Any]):
    """A cached property that several threads may ask for; from Python 3.12 on, functools' own is then made twice."""

    _making = threading.RLock()

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        with self._making:
            return super().__get__(instance, owner)


def if_made(instance: object, name: str) -> Any:
    """The value of a cached property; None: nobody has asked for it yet."""
    return vars(instance).get(name)
