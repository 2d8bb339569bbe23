"""Keeps the declarations and macros of headers for later builds, because reading headers takes 0.2 s for each arch."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.files import Stamp, canonical_json, file_stamp
from ..core.sealed import read_sealed, write_sealed
from .declarations import Declaration, Declarations
from .trimming import Headers

TICK_NS = 20_000_000
"""More than the clock of files is behind that of programs: what changes just after a moment may seem older than it."""


@dataclass(frozen=True)
class KeptHeaders:
    """A folder with a sealed file for each part of the headers of sources.

    Arguments:
        folder: where they are. One that cannot be written keeps nothing.
        identity: what decides their content besides the text that includes them, the arch and flags: the compilers, and
            our own code that reads them.
    """

    folder: Path
    identity: tuple[str, ...]

    def of(self, key: Sequence[str], before: Headers | None, read: Callable[[], Headers]) -> Headers:
        """What is kept by that key, if the files that it was read from are as they were, or else what ``read`` gives.

        Arguments:
            key: arch, flags, and the text that includes the headers.
            before: what the parts before this one leave.
        """
        name = hashlib.sha256(canonical_json([self.identity, *key]).encode("utf-8", "surrogateescape")).hexdigest()
        path = self.folder / f"{name[:32]}.json"
        known = read_sealed(path, _Kept)
        kept = known.headers(before) if known and known.key == name and known.is_current else None
        if kept is None:
            begun = time.time_ns()
            kept = read()
            with contextlib.suppress(OSError, UnicodeEncodeError):
                stamps = {file: file_stamp(file) for file in sorted(kept.files)}
                if all(changed + TICK_NS < begun for _, _, changed, _ in stamps.values()):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_sealed(path, _kept(kept, name, stamps, before))
        return kept


@dataclass(frozen=True)
class _Kept:
    """What a part of the headers adds to those before it.

    Arguments:
        key: what it is kept by.
        files: path -> stamp of each file that it was read from.
        macros: those that it changes.
        declarations: text and names of each of its own.
        doubtful: as of :class:`Headers`.
    """

    key: str
    files: Mapping[str, Stamp]
    macros: Mapping[str, str]
    declarations: tuple[tuple[str, tuple[str, ...]], ...]
    doubtful: tuple[str, ...]

    @property
    def is_current(self) -> bool:
        """Whether all files are as they were."""
        try:
            return all(file_stamp(file) == stamp for file, stamp in self.files.items())
        except (OSError, ValueError):  # ValueError: no file can have such a name
            return False

    def headers(self, before: Headers | None) -> Headers:
        """The part behind those before it."""
        own = [Declaration(text, frozenset(names)) for text, names in self.declarations]
        declarations = Declarations(own, before.declarations if before else None)
        macros = {**(before.macros if before else {}), **self.macros}
        return Headers(declarations, macros, frozenset(self.files), frozenset(self.doubtful))


def _kept(headers: Headers, name: str, stamps: Mapping[str, Stamp], before: Headers | None) -> _Kept:
    known = before.macros if before else {}
    return _Kept(
        name,
        stamps,
        {name: line for name, line in headers.macros.items() if known.get(name) != line},
        tuple((one.text, tuple(sorted(one.names))) for one in headers.declarations.own),
        tuple(sorted(headers.doubtful)),
    )
