"""A value that is made when it is needed first, also if several threads ask for it at once."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


class shared_property(cached_property[T]):
    """A cached property that several threads may ask for.

    That of functools is made twice then, from Python 3.12 on; before, it has a lock that a child of fork may wait for.
    """

    if not TYPE_CHECKING:  # its type is that of the base class

        def __get__(self, instance: object, owner: type | None = None) -> T:
            if instance is None:
                return self
            with _MAKING:
                values = vars(instance)
                if self.attrname not in values:
                    values[self.attrname] = self.func(instance)
                return values[self.attrname]


_MAKING = threading.RLock()
"""The lock that whoever makes such a value holds."""

# In a child of fork, a thread that is gone may have it.
os.register_at_fork(after_in_child=_MAKING._at_fork_reinit)  # type: ignore[attr-defined]


def if_made(instance: object, name: str) -> Any:
    """The value of a cached property; None: nobody has asked for it yet."""
    return vars(instance).get(name)
