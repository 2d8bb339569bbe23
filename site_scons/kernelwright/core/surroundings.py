"""The dependencies of a definition besides the project's files: environment variables and installed packages.

Each has a name that begins with a slash, as no file of the project has, and a digest of what is there now.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from .arithmetic import of_numpy

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""The variables of the build's environment that each worker sees; none of them changes what it generates by itself.

Definitions see those of the setting ``environment`` besides."""

NAME_OF_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")

OF_WORKERS = ("PYTHON", "LD_")
"""How variables begin that decide how workers run; definitions cannot have those of the build's environment."""


def may_be_declared(variable: str) -> bool:
    """Whether the setting ``environment`` may have definitions see a variable."""
    return bool(NAME_OF_VARIABLE.fullmatch(variable)) and not variable.startswith(OF_WORKERS)


VARIABLE = "/environment/"
"""What the name of a variable begins with."""

INSTALLED = "/installed/"
"""What the name of an installed distribution begins with."""

OUTSIDE = "/outside/"
"""The name of all dependencies that no other machine can compare: files outside of the project, processes, the network.

A result that depends on it stays on the machine."""

FOLDER = "/folder/"
"""The name of the place of the project, for what has an absolute path of it, such as a flag with ``__file__`` in it."""

DISTRIBUTION = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Name of a distribution, see https://packaging.python.org/en/latest/specifications/name-normalization/."""

PRELOADED = ("numpy", "ml_dtypes")
"""What every worker has loaded besides TVM, and what definitions may compute their configs with."""


def surrounding_digest(name: str) -> str | None:
    """The digest of something besides the user's files; empty if it is absent, None for any other name.

    Others wrote the names that a remote cache gives, and what is asked for next depends on the digests. So whoever has
    names from there asks ``dependencies.may_be_asked`` first.
    """
    if name.startswith(VARIABLE):
        variable = name.removeprefix(VARIABLE)
        value = os.environ.get(variable)
        return "" if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()
    if name.startswith(INSTALLED):
        return installed_digest(name.removeprefix(INSTALLED))
    return "" if name == OUTSIDE else None


def installed_digest(distribution: str) -> str:
    """SHA-256 of the version and of the hashes that pip has recorded of a distribution's files.

    What pip itself writes differs between installs: bytecode, scripts, and the files of the record's own folder.
    """
    record = installed_record(distribution)
    try:
        rows = record.read_text(encoding="utf-8").splitlines() if record else []
    except (OSError, ValueError):
        return ""
    kept = sorted(row for row in rows if not row.startswith("..") and ".dist-info/" not in row and ".pyc," not in row)
    return hashlib.sha256("\n".join([record.parent.name, *kept]).encode()).hexdigest() if record else ""


def installed_record(distribution: str) -> Path | None:
    """The RECORD file of an installed distribution, which lists the sha256 of each of its files; None: there is none.

    ``importlib.metadata`` does the same and takes 30 ms to import, a third of a null build's start.
    """
    if not DISTRIBUTION.fullmatch(distribution):
        return None
    for folder in sys.path:
        for name in _installed_in(folder or "."):
            if name.startswith(f"{distribution}-") and (record := Path(folder or ".", name, "RECORD")).is_file():
                return record
    return None


def _installed_in(folder: str) -> tuple[str, ...]:
    try:
        return _listed(folder, os.stat(folder).st_mtime_ns)  # noqa: PTH116
    except OSError:
        return ()


@cache
def _listed(folder: str, changed: int) -> tuple[str, ...]:
    return tuple(sorted(name for name in os.listdir(folder) if name.endswith(".dist-info")))  # noqa: PTH208


def interpreter() -> list[Any]:
    """What every definition sees: the version of Python, and what workers have loaded besides TVM. JSON data.

    The C library is a part of TVM's identity.
    """
    python = [sys.implementation.cache_tag, sys.version_info[:3], sys.platform]
    return [*python, versions_of(PRELOADED), of_numpy()]


def versions_of(distributions: Iterable[str]) -> list[str]:
    """Name and version of some distributions, as their folders have them; empty for one that is not installed."""
    records = map(installed_record, distributions)
    return [record.parent.name if record else "" for record in records]


def distributions_of(files: Iterable[str]) -> list[str] | None:
    """The distributions that some installed files belong to, sorted; None if one belongs to none that is recorded."""
    names: set[str] = set()
    records_in = cache(_records_in)
    for file in files:
        folders = [folder for folder in sys.path if folder and file.startswith(folder.rstrip(os.sep) + os.sep)]
        # The longest one need not have the record: a distribution may add a folder of its own to the path.
        rows_of = {folder: f"\n{os.path.relpath(file, folder)}," for folder in folders}
        owners = (name for folder in folders for name, rows in records_in(folder) if rows_of[folder] in rows)
        owner = next(owners, None)
        if owner is None:
            return None
        names.add(owner)
    return sorted(names)


def _records_in(folder: str) -> list[tuple[str, str]]:
    """Name and rows of each distribution that is installed in a folder, if its name is one."""
    records = {record: record.parent.name.partition("-")[0] for record in Path(folder).glob("*.dist-info/RECORD")}
    known = ((name, record) for record, name in records.items() if DISTRIBUTION.fullmatch(name))
    return [(name, "\n" + record.read_text(encoding="utf-8", errors="replace")) for name, record in known]
