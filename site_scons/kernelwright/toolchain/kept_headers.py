"""Keeps what headers leave in a folder, for later builds: to preprocess and read them takes 0.2 s for each arch."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import Stamp, canonical_json, file_stamp
from ..core.records import Record
from ..core.sealed import read_sealed, write_sealed
from .declarations import Declaration, Declarations
from .trimming import Headers

SCHEMA = "kernelwright/headers-2"

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
        kept = read_sealed(path, SCHEMA, lambda record: _kept(record, name, before))
        if kept is None:
            begun = time.time_ns()
            kept = read()
            with contextlib.suppress(OSError, UnicodeEncodeError):
                stamps = {file: file_stamp(file) for file in sorted(kept.files)}
                if all(changed + TICK_NS < begun for _, _, changed, _ in stamps.values()):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_sealed(path, SCHEMA, _to_json(kept, name, stamps, before))
        return kept


def _to_json(headers: Headers, name: str, stamps: Mapping[str, Stamp], before: Headers | None) -> dict[str, Any]:
    """What a part adds, and the stamps of the files that were read."""
    known, own = before.macros if before else {}, headers.declarations.own
    return {
        "key": name,
        "files": stamps,
        "macros": {name: line for name, line in headers.macros.items() if known.get(name) != line},
        "texts": [one.text for one in own],
        "names": [sorted(one.names) for one in own],
        "doubtful": sorted(headers.doubtful),
    }


def _kept(record: Record, name: str, before: Headers | None) -> Headers:
    if record.text("key") != name:
        raise ValueError("it is of other headers")
    files, macros = record.mapping("files"), record.mapping("macros")
    for file, stamp in files.items():
        if [*file_stamp(file)] != stamp:
            raise ValueError(f"{file} has changed")
    if not all(isinstance(line, str) for line in macros.values()):
        raise ValueError("a macro is no text")
    listed = zip(record.texts("texts"), record.lists_of_texts("names"), strict=True)
    own = [Declaration(text, frozenset(names)) for text, names in listed]
    declarations = Declarations(own, before.declarations if before else None)
    macros = {**(before.macros if before else {}), **macros}
    return Headers(declarations, macros, frozenset(files), frozenset(record.texts("doubtful")))
