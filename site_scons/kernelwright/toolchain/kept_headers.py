"""Keeps what headers leave in a folder, for later builds: to preprocess and read them takes 0.2 s for each arch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import canonical_json, file_stamp
from ..core.records import Record
from ..core.sealed import read_sealed, write_sealed
from .declarations import Declaration, Declarations
from .trimming import Headers

SCHEMA = "kernelwright/headers-1"


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
        kept = read_sealed(path, SCHEMA, lambda record: _kept(record, before))
        if kept is None:
            kept = read()
            with contextlib.suppress(OSError, UnicodeEncodeError):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_sealed(path, SCHEMA, _to_json(kept, before))
        return kept


def _to_json(headers: Headers, before: Headers | None) -> dict[str, Any]:
    """What a part adds, and the stamps of the files that were read."""
    known = before.macros if before else {}
    return {
        "files": {file: file_stamp(file) for file in sorted(headers.files)},
        "macros": {name: line for name, line in headers.macros.items() if known.get(name) != line},
        "declarations": [[one.text, sorted(one.names), one.in_std] for one in headers.declarations.own],
    }


def _kept(record: Record, before: Headers | None) -> Headers:
    raw = record.raw
    for file, stamp in raw["files"].items():
        if list(file_stamp(file)) != stamp:
            raise ValueError(f"{file} has changed")
    own = [Declaration(text, frozenset(names), in_std) for text, names, in_std in raw["declarations"]]
    declarations = Declarations(own, before.declarations if before else None)
    return Headers(declarations, {**(before.macros if before else {}), **raw["macros"]}, frozenset(raw["files"]))
