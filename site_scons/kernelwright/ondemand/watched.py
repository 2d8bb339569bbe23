"""What the choices of eager calls rely on: variables, files, and what functions of this process read from around them.

A call compares stamps. A stamp is taken before the content that it vouches for is read, and that content is compared
with the digest of what the work has used. So an edit at any moment is seen: an edit before the stamp changes the
digest, and one after it changes the stamp. A stamp that is too young for the clock of its file system to show the next
edit vouches for nothing: the content is compared at each call until the stamp is older.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from operator import attrgetter, eq
from pathlib import Path
from typing import Any

from ..core.dependencies import IN_PACKAGE, KIND, is_file, path_of, present_digest
from ..core.files import COARSE_NS
from ..core.surroundings import FOLDER, INSTALLED, OUTSIDE, VARIABLE, installed_record
from .options import VARIABLES
from .reached import Doubt, Reached
from .session import SESSIONS

Stamp = tuple[int, ...]
"""Size, times and inode of a file or a folder; empty: there is none."""

FIELDS = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
"""Takes the stamp out of what ``os.stat`` gives. Each call does so, so the loops are those of ``map``."""

YOUNG: Stamp = (-1,)
"""In place of a stamp that vouches for nothing yet; nothing has it."""


class Watch:
    """What choices rely on. It is made before the work, and says afterwards whether it covers all that was used.

    Arguments:
        top: the project's folder.
        reached: what functions of this process read from around them.
    """

    def __init__(self, top: Path, reached: Reached) -> None:
        self._top = top
        self._reached = reached
        self._generation = SESSIONS.generation
        self._names = tuple(map(os.fsencode, VARIABLES))
        self._variables = _values(self._names)
        self._search_path: list[str] | None = None
        self._before: dict[str, Stamp] = {}
        self._digests: dict[str, str] = {}
        self._doubt: Doubt | None = None
        self._is_settled = False
        self._compared: tuple[tuple[str, ...], tuple[Stamp, ...]] = (), ()
        self.look_at(["pyproject.toml", *reached.files])

    @property
    def doubt(self) -> Doubt | None:
        """What cannot be compared; None: all can."""
        return self._reached.doubt or self._doubt

    def anew(self, reached: Reached) -> Watch:
        """A copy of this watch, for functions that were looked at again."""
        other = copy(self)
        other._before, other._digests = dict(self._before), dict(self._digests)
        other._reached = reached
        other.look_at(reached.files)
        return other

    def look_at(self, names: Iterable[str]) -> None:
        """Rely on files of the project that are going to be read."""
        for name in names:
            self._before.setdefault(name, _stamp(str(path_of(self._top, name))))
            self._digests.setdefault(name, present_digest(self._top, name))

    def rely_on(self, digests: Mapping[str, str]) -> None:
        """Rely on what the work has used: name (see ``core.dependencies``) -> digest."""
        for name, digest in digests.items():
            variable = os.fsencode(name.removeprefix(VARIABLE))
            if name.startswith(VARIABLE) and variable not in self._names:
                self._names = (*self._names, variable)
                self._variables = _values(self._names)
            if name.removeprefix(KIND).startswith(f"/{IN_PACKAGE}"):
                self._search_path = self._search_path or list(sys.path)
            if self._digests.setdefault(name, digest) != digest:
                self._digests[name] = "it was edited meanwhile"

    def give_up(self, doubt: Doubt) -> None:
        """Note that the work has used something that no call can compare."""
        self._doubt = doubt

    def settle(self) -> bool:
        """After the work: whether all is still as the work has used it, so that it can be compared from now on."""
        self._is_settled = self._is_as_before() and self._is_as_used() and self._compare()
        return self._is_settled and self._reached.is_current()

    def is_current(self) -> bool:
        """Whether all is known to be unchanged."""
        return self._reached.is_current() and self.surroundings_are_current()

    def surroundings_are_current(self) -> bool:
        """Whether all is known to be unchanged, apart from what functions read from around them."""
        if not self._is_settled or self._variables != _values(self._names):
            return False
        if self._generation != SESSIONS.generation or self._search_path not in (None, sys.path):
            return False
        paths, stamps = self._compared
        try:
            return all(map(eq, map(FIELDS, map(os.stat, paths)), stamps)) or self._compare()
        except (OSError, ValueError):  # something is not there
            return all(map(eq, map(_stamp, paths), stamps)) or self._compare()

    def _is_as_before(self) -> bool:
        """Whether what was looked at before the work has the same stamps."""
        if self._variables != _values(self._names) or self._generation != SESSIONS.generation:
            return False
        return all(_stamp(str(path_of(self._top, name))) == before for name, before in self._before.items())

    def _is_as_used(self) -> bool:
        """Whether everything but files is as the work has used it."""
        return all(self._has_its_digest(name) for name in self._digests if not is_file(name))

    def _compare(self) -> bool:
        """Whether all files are as the work has used them. Those of which the stamp has not changed are not read."""
        known, now = dict(zip(*self._compared, strict=True)), time.time_ns() - COARSE_NS
        found: dict[str, Stamp] = {}
        for path, names in self._names_by_path().items():
            stamp = _stamp(path)  # before the content is read
            if known.get(path) != stamp:
                if not all(map(self._has_its_digest, names)):
                    return False
                stamp = stamp if not stamp or stamp[2] < now else YOUNG
            found[path] = stamp
        self._compared = tuple(found), tuple(found.values())
        return self._doubt is None

    def _has_its_digest(self, name: str) -> bool:
        return present_digest(self._top, name) == self._digests[name]

    def _names_by_path(self) -> dict[str, list[str]]:
        """Path that is stamped -> the names that its stamp vouches for."""
        by_path: dict[str, list[str]] = {}
        for name in self._digests:
            if not name.startswith((VARIABLE, FOLDER, OUTSIDE)):
                for path in self._places(name):
                    by_path.setdefault(str(path), []).append(name)
        return by_path

    def _places(self, name: str) -> Iterator[Path]:
        """The paths that are stamped for a name: its file, and the folders where another file would take its place."""
        path = path_of(self._top, name) if is_file(name) else installed_record(name.removeprefix(INSTALLED))
        if path is None:
            self._doubt = Doubt(f"{name}, of which no file is known", str(self._top))
        elif not name.removeprefix(KIND).startswith(f"/{IN_PACKAGE}"):
            is_absent = not self._digests[name] and not os.path.lexists(path)
            if is_absent or name.startswith(KIND):  # a new link to the same file changes only the folder's time
                yield path.parent
            if not is_absent:
                yield path
        else:
            folder, _, place = name.removeprefix(KIND).removeprefix(f"/{IN_PACKAGE}").partition("//")
            for top in filter(None, sys.path):
                candidate = Path(top, folder, place)
                yield candidate if candidate == path else candidate.parent
                if candidate == path:
                    break


def _stamp(path: str) -> Stamp:
    try:
        stamp: Stamp = FIELDS(os.stat(path))  # noqa: PTH116
    except (OSError, ValueError):
        return ()
    return stamp


def _values(names: tuple[bytes, ...]) -> tuple[Any, ...]:
    """The values of variables: from the dict behind ``os.environ``, which takes a tenth of the time."""
    behind = getattr(os.environ, "_data", None)
    if behind is None:
        return tuple(os.environ.get(os.fsdecode(name)) for name in names)
    return tuple(map(behind.get, names))
