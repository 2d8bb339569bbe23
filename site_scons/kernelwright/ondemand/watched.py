"""What the choices of eager calls rely on: variables, files, and what functions of this process have around them.

A call compares stamps. A stamp is taken before the content that it vouches for is read, and that content is compared
with the digest of what the work has used. So an edit at any moment is seen: before the stamp, the digest differs;
behind it, the stamp does. A stamp that is younger than the clock of a file system is exact vouches for nothing: the
content is compared at each call until it is older.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.dependencies import is_file, path_of, present_digest
from ..core.files import COARSE_NS
from ..core.surroundings import FOLDER, INSTALLED, OUTSIDE, VARIABLE, installed_record
from .options import VARIABLES
from .reached import Doubt, Reached
from .session import SESSIONS

Stamp = tuple[int, ...]
"""Size, times and inode of a file or a folder; empty: there is none."""

YOUNG: Stamp = (-1,)
"""In place of a stamp that vouches for nothing yet; nothing has it."""


class Watch:
    """What choices rely on. It is made before the work, and asked afterwards whether it has covered it.

    Arguments:
        top: the project's folder.
        reached: what functions of this process have from around them.
    """

    def __init__(self, top: Path, reached: Reached) -> None:
        self._top = top
        self._reached = reached
        self._said = _said()
        self._names = tuple(map(os.fsencode, VARIABLES))
        self._variables = _values(self._names)
        self._before: dict[str, Stamp] = {}
        self._digests: dict[str, str] = {}
        self._doubt: Doubt | None = None
        self._compared: tuple[tuple[str, Stamp], ...] = ()
        self.look_at(["pyproject.toml", *reached.files])

    @property
    def doubt(self) -> Doubt | None:
        """What cannot be compared; None: all can."""
        return self._reached.doubt or self._doubt

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
            if self._digests.setdefault(name, digest) != digest:
                self._digests[name] = "it was edited meanwhile"

    def give_up(self, doubt: Doubt) -> None:
        """Know that the work has used something which nothing can compare."""
        self._doubt = doubt

    def settle(self) -> bool:
        """After the work: whether all is what the work has used, so that it can be compared from now on."""
        if not self._others_are_current():
            return False
        for name, before in self._before.items():
            if _stamp(str(path_of(self._top, name))) != before:
                return False
        aside = [name for name in self._digests if not is_file(name)]
        return all(self._is_as_used(name) for name in aside) and self._compare()

    def is_current(self) -> bool:
        """Whether all is known to be what it was."""
        if not self._others_are_current():
            return False
        for path, known in self._compared:
            try:
                status = os.stat(path)  # noqa: PTH116 (at each call)
            except (OSError, ValueError):
                if known:
                    return self._compare()
            else:
                if (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) != known:
                    return self._compare()
        return True

    def _others_are_current(self) -> bool:
        """Whether all but the files is what it was."""
        if self._doubt is not None or not self._reached.is_current():
            return False
        return self._variables == _values(self._names) and self._said == _said()

    def _compare(self) -> bool:
        """Whether all files are as the work has used them. Those of which the stamp has not changed are not read."""
        known, now = dict(self._compared), time.time_ns() - COARSE_NS
        found: dict[str, Stamp] = {}
        for path, names in self._names_by_path().items():
            stamp = _stamp(path)  # before the content is read
            if known.get(path) != stamp:
                if not all(map(self._is_as_used, names)):
                    return False
                stamp = stamp if not stamp or stamp[2] < now else YOUNG
            found[path] = stamp
        self._compared = tuple(found.items())
        return self._doubt is None

    def _is_as_used(self, name: str) -> bool:
        return present_digest(self._top, name) == self._digests[name]

    def _names_by_path(self) -> dict[str, list[str]]:
        """What is stamped -> names of what it vouches for: for what is not there, the folder that it would be in."""
        found: dict[str, list[str]] = {}
        for name, digest in self._digests.items():
            if name.startswith((VARIABLE, FOLDER, OUTSIDE)):
                continue
            path = path_of(self._top, name) if is_file(name) else installed_record(name.removeprefix(INSTALLED))
            if path is None:
                self._doubt = Doubt(f"{name}, of which no file is known", str(self._top))
            else:
                is_absent = not digest and not os.path.lexists(path)
                found.setdefault(str(path.parent if is_absent else path), []).append(name)
        return found


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _values(names: tuple[bytes, ...]) -> tuple[Any, ...]:
    """The values of variables: from the dict behind ``os.environ``, which takes a tenth of the time."""
    behind = getattr(os.environ, "_data", None)
    if behind is None:
        return tuple(os.environ.get(os.fsdecode(name)) for name in names)
    return tuple(map(behind.get, names))


def _said() -> tuple[Any, ...]:
    """What the process was told about its caches."""
    return SESSIONS.generation, SESSIONS.cache_disabled
