"""Finds and probes TileLang in the environment that a setting names, without running its Python."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.files import file_stamp
from .ask import content_digest, identity
from .distribution import hashes_of

PARTS = ("tilelang", "apache_tvm_ffi", "z3_solver")
"""The distributions that decide what TileLang makes, itself first."""

TEMPLATES = "src/tl_templates/cuda"
"""The folder of its own headers, whose contents count even where they are not what pip has recorded."""


@dataclass(frozen=True)
class TileLang:
    """TileLang as pip has installed it: its version, and a digest of its files; or absent.

    Arguments:
        python: the interpreter that imports it; empty: there is none.
        path: the folder of its modules and headers.
    """

    version: str
    identity: str
    python: str
    path: str


def find_tilelang(setting: str) -> tuple[str, list[Path]]:
    """The interpreter that the setting names, and the records of its TileLang, if it has one.

    Arguments:
        setting: a path, which may begin with ``~``, or the name of a program on PATH.
    """
    python = shutil.which(os.path.expanduser(setting)) if setting else None  # noqa: PTH111
    if python is None:
        return setting, []
    python = os.path.abspath(python)  # noqa: PTH100 (links stay: one is how Python finds its environment)
    for site in sorted(Path(python).parent.parent.glob("lib/python3.*/site-packages")):
        if (site / PARTS[0]).is_dir():
            return python, [record for part in PARTS for record in sorted(site.glob(f"{part}-*.dist-info/RECORD"))]
    return python, []


def parts_of(records: Sequence[Path]) -> list[Path]:
    """The files that decide what TileLang makes: its records and its own headers."""
    return [*records, *sorted(_folder_of(records).joinpath(TEMPLATES).rglob("*.h"))] if records else []


def probe_tilelang(python: str, records: Sequence[Path]) -> TileLang:
    """Read the records; the version is "absent" where there are none."""
    if not records:
        return TileLang("absent", "absent", python, "")
    names = [re.sub(r".*/(.+)\.dist-info$", r"\1", record.parent.as_posix()) for record in records]
    headers = [path for path in parts_of(records) if path not in records]
    digests = [[path.name, content_digest(str(path), file_stamp(path))] for path in headers]
    found = identity([names, digests], map(hashes_of, records))
    return TileLang(names[0].rpartition("-")[2], found, python, str(_folder_of(records)))


def _folder_of(records: Sequence[Path]) -> Path:
    return records[0].parent.parent / PARTS[0]
