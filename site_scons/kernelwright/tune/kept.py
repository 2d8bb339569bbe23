"""The timings that are kept, so that a run measures only what no earlier one has: ``timings.jsonl``.

Each line is one candidate at one combination of sizes. It has ``config`` (all values of the variant), ``digest`` (of
its source), ``default`` (that of the default's source), ``sizes``, ``with`` (a digest of device, driver, compilers and
policy), and ``us`` with ``default_us``, the microseconds of each round; ``warm_us`` and ``clock_mhz`` on CUDA; and
``noisy``, in which rounds something else had the CPUs all the time. Or it has ``failed``: why the candidate is out. Of
two lines for one the later one counts. A line that is cut off, because the process was killed, counts as none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..core.converter import from_json, to_json
from ..core.files import canonical_json, open_regular
from ..core.records import decoded
from .decide import Timing

FILE = "timings.jsonl"


@dataclass(frozen=True)
class Entry(Timing):
    """A kept timing, or the reason why there is none.

    Arguments:
        warm_us: with warm caches, where the others are with cold ones.
        clock_mhz: the lowest and the highest clock of the device that was seen.
        failed: why the candidate is out; empty: it is not.
    """

    warm_us: tuple[float, ...] = ()
    clock_mhz: tuple[int, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class Key:
    """What a timing depends on; see above for the fields."""

    config: Mapping[str, Any]
    digest: str
    default: str
    sizes: Mapping[str, int]
    made_with: str

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a line."""
        values = dict(vars(self))
        return {**values, "with": values.pop("made_with")}


@dataclass
class Kept:
    """The kept timings of one kernel on one device.

    Arguments:
        folder: where the file is.
        anew: whether those of earlier runs do not count.
        writes: whether what is measured now is kept for later runs.
    """

    folder: Path
    anew: bool = False
    writes: bool = True
    _entries: dict[str, tuple[Key, Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.folder / FILE
        lines = path.read_bytes().splitlines() if path.is_file() and not self.anew else []
        for line in lines:
            if (read := _read(line)) is not None:
                self._entries[canonical_json(read[0].fields)] = read

    @property
    def has_timings(self) -> bool:
        """Whether there are any."""
        return bool(self._entries)

    def get(self, key: Key) -> Entry | None:
        """What is known of a candidate."""
        known = self._entries.get(canonical_json(key.fields))
        return known and known[1]

    def failure(self, key: Key) -> str:
        """Why a candidate is out, be it at other sizes; empty: it is not."""
        failed = ((known, entry.failed) for known, entry in self._entries.values() if entry.failed)
        return next((why for known, why in failed if replace(known, sizes=key.sizes) == key), "")

    def put(self, key: Key, entry: Entry) -> None:
        """Keep an entry, from now on and for later runs."""
        self._entries[canonical_json(key.fields)] = key, entry
        if self.writes:
            self._append(key, entry)

    def _append(self, key: Key, entry: Entry) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_regular(self.folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            # A process that was killed may have left a line without its end.
            begin = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
            os.write(descriptor, begin + json.dumps({**key.fields, **to_json(entry)}).encode() + b"\n")
        finally:
            os.close(descriptor)


def _read(line: bytes) -> tuple[Key, Entry] | None:
    """Key and entry of a line; None if it is none."""
    try:
        read = decoded(line)
        entry = from_json(Entry, {each.name: read.pop(each.name) for each in fields(Entry) if each.name in read})
        key = from_json(Key, {"made_with": read.pop("with"), **read})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    is_whole = len(entry.us) == len(entry.default_us) and len(entry.noisy) in (0, len(entry.us))
    is_possible = all(0 < each < math.inf for each in (*entry.us, *entry.default_us))
    return (key, entry) if is_whole and is_possible and (entry.us or entry.failed) else None
