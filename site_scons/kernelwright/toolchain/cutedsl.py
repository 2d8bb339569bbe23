"""Finds and probes NVIDIA's CuTe DSL, through what pip has recorded of it and without importing it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .ask import identity


@dataclass(frozen=True)
class CuteDsl:
    """NVIDIA's CuTe DSL as it is installed: its version, and a digest of the installed files' hashes; or absent."""

    version: str
    identity: str


def cutedsl_records() -> list[Path]:
    """The RECORD files of the distributions that CuTe DSL consists of; empty: it is not installed."""
    for folder in sys.path:
        # Every run of scons asks this, and a search takes a millisecond.
        if os.path.isdir(f"{folder or '.'}/nvidia_cutlass_dsl"):  # noqa: PTH112
            return sorted(Path(folder or ".").glob("nvidia_cutlass_dsl*-*.dist-info/RECORD"))
    return []


def probe_cutedsl(records: Sequence[Path]) -> CuteDsl:
    """Read the records; the version is "absent" where there are none."""
    names = [re.sub(r".*/(.+)\.dist-info$", r"\1", record.parent.as_posix()) for record in records]
    version = next((name.rpartition("-")[2] for name in names if name.startswith("nvidia_cutlass_dsl-")), "absent")
    return CuteDsl(version, identity([sorted(names)], map(_hashes, records)))


def _hashes(record: Path) -> bytes:
    """The hashes of libraries, sources and device code, but for extension modules (see :mod:`.tvm`)."""
    rows = [row for row in record.read_text().splitlines() if re.search(r"\.(so|py|a|h|bc)(\.\d+)*,", row)]
    return "\n".join(sorted(row for row in rows if ".cpython-" not in row)).encode()
