"""Notes which variables code asks for through ``os.environ``; Python has no audit event for that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.surroundings import may_be_declared


@dataclass(frozen=True)
class Variables:
    """The variables of the environment of the build, as definitions see them.

    Arguments:
        declared: names of the variables that the setting ``environment`` lets definitions see.
        others: names of the variables that are set where the build was started, but that definitions do not see.
    """

    declared: Sequence[str] = ()
    others: Sequence[str] = ()

    def remedy(self, name: str) -> str:
        """What to do about a variable that a definition needs and does not have."""
        if name in self.declared:
            return f"set {name} where the build is started, or ask with os.environ.get({name!r}, ...)"
        if not may_be_declared(name):
            return "leave it out, or ask for a variable of another name: the setting environment cannot have this one"
        setting = f'write environment = ["{name}"] under [tool.kernelwright] in pyproject.toml: then definitions see it'
        return setting if name in self.others else f"set {name} where the build is started, and {setting}"


def variables_of(argument: str) -> Variables:
    """The variables, from the argument with which the pool starts a worker."""
    return Variables(**json.loads(argument))


def watch_environment(note: Callable[[str, bool], None], remedy: Callable[[str], str]) -> None:
    """Call a function with the name of each variable that code asks for from now on. This cannot be undone.

    Other modules may hold ``os.environ`` already. So the objects stay the same, and get another class.

    Arguments:
        note: gets the name, and whether the variable is set.
        remedy: gets the name of a variable that is not set, and returns what to do; the ``KeyError`` has that as its
            ``remedy``.
    """

    class Watched(os._Environ[Any]):
        """An environment that notes what it is asked for; its other methods use these two."""

        def __getitem__(self, key: Any) -> Any:
            name = os.fsdecode(key)
            note(name, self.encodekey(key) in self._data)  # type: ignore[attr-defined]
            try:
                return super().__getitem__(key)
            except KeyError as error:
                error.remedy = remedy(name)  # type: ignore[attr-defined]
                raise

        def __iter__(self) -> Iterator[Any]:
            for key in list(super().__iter__()):
                note(os.fsdecode(key), True)
                yield key

    os.environ.__class__ = Watched
    os.environb.__class__ = Watched
