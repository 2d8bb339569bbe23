"""Finds and identifies the compilers of front ends by the RECORD files of pip, without importing them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..core.need import Need
from .ask import identity

CONTENT = re.compile(r"(\.(so|py|a|h|hpp|cuh|inl|bc)(\.\d+)*|/bin/[^/,]+),")
"""What decides the output of a compiler, in rows of a RECORD: libraries, sources, device code, and programs.

Scripts that pip makes begin with ``..``; they differ between installs.
"""


@dataclass(frozen=True)
class Distribution:
    """A compiler as pip has installed it here: its version, and a digest of its files' hashes; or absent.

    Attributes:
        python, path: empty: it has no environment of its own, unlike one that is elsewhere.
    """

    version: str
    identity: str
    python: ClassVar[str] = ""
    path: ClassVar[str] = ""

    def has(self, need: Need) -> bool:
        """Whether a Python package is installed beside it."""
        return need.is_installed


def distribution_records(name: str, parts: str = "") -> list[Path]:
    """The RECORD files of all distributions of a compiler; empty: it is not installed.

    Arguments:
        name: the distribution, as its folder has it, and the folder of its modules.
        parts: a pattern for the names of all distributions that belong to it; empty: it is one.
    """
    for folder in sys.path:
        # Every run of scons asks this, and a search takes a millisecond.
        if os.path.isdir(f"{folder or '.'}/{name}"):  # noqa: PTH112
            records = sorted(Path(folder or ".").glob(f"{parts or name}-*.dist-info/RECORD"))
            if records:
                return records
    return []


def probe_distribution(name: str, records: Sequence[Path]) -> Distribution:
    """Read the records; the version is "absent" where there are none."""
    names = [re.sub(r".*/(.+)\.dist-info$", r"\1", record.parent.as_posix()) for record in records]
    version = next((each.rpartition("-")[2] for each in names if each.startswith(f"{name}-")), "absent")
    return Distribution(version, identity([sorted(names)], map(hashes_of, records)))


def hashes_of(record: Path) -> bytes:
    """The hashes of the files that decide the output, without extension modules (see :mod:`.tvm`)."""
    rows = [row for row in record.read_text().splitlines() if CONTENT.search(row) and not row.startswith("..")]
    return "\n".join(sorted(row for row in rows if ".cpython-" not in row)).encode()
