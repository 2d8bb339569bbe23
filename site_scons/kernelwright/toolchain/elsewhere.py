"""Finds and identifies a front end's compiler in the environment that a setting names, without running its Python."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.files import file_stamp
from ..core.need import Need, Parts
from ..core.request import ASIDE
from .ask import content_digest, identity
from .distribution import hashes_of


@dataclass(frozen=True)
class Elsewhere:
    """A compiler as pip has installed it in another environment: its version, and a digest of its files; or absent.

    Arguments:
        python: the interpreter that imports it; empty: there is none.
        path: the folder of its modules and headers; empty: it is absent.
    """

    version: str
    identity: str
    python: str = field(metadata=ASIDE)
    path: str = field(metadata=ASIDE)

    def has(self, need: Need) -> bool:
        """Whether a Python package is installed beside it."""
        return bool(self.path) and (Path(self.path).parent / need.module).is_dir()


ABSENT = Elsewhere("absent", "absent", "", "")


def find_elsewhere(setting: str, parts: Parts) -> tuple[str, list[Path]]:
    """The interpreter that a setting names, and the records of the compiler in its environment, if that has it.

    Arguments:
        setting: a path, which may begin with ``~``, or the name of a program on PATH.
    """
    python = shutil.which(os.path.expanduser(setting)) if setting else None  # noqa: PTH111
    if python is None:
        return setting, []
    python = os.path.abspath(python)  # noqa: PTH100 (links stay: one is how Python finds its environment)
    names = parts.distributions
    for site in sorted(Path(python).parent.parent.glob("lib/python3.*/site-packages")):
        if (site / (parts.modules or names[0])).is_dir():
            return python, [record for name in names for record in sorted(site.glob(f"{name}-*.dist-info/RECORD"))]
    return python, []


def probe_elsewhere(python: str, records: Sequence[Path], parts: Parts) -> Elsewhere:
    """Read the records; the version is "absent" where there are none."""
    if not records:
        return Elsewhere("absent", "absent", python, "")
    names = [re.sub(r".*/(.+)\.dist-info$", r"\1", record.parent.as_posix()) for record in records]
    headers = [path for path in parts.files(records) if path not in records]
    digests = [[path.name, content_digest(str(path), file_stamp(path))] for path in headers]
    digest = identity([names, digests], map(hashes_of, records))
    return Elsewhere(names[0].rpartition("-")[2], digest, python, str(parts.folder(records)))
