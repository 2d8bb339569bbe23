"""Folders of headers in installed Python packages, such as those of CUTLASS, which some packages bring along."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..core.errors import DefinitionError, Where


@dataclass(frozen=True)
class PackageFolder:
    """A folder that pip has installed.

    Arguments:
        path: where it is.
        identity: a digest of what pip has recorded of the files in it; empty: nothing, because it was installed in
            another way. Then each header that is read has to be looked at.
    """

    path: Path
    identity: str


@cache
def package_folder(name: str, where: Where, option: str = "includes") -> PackageFolder:
    """The folder of that name, which begins with that of a package; nothing is imported.

    Arguments:
        where: the place for error messages.
        option: where the definition has the name.

    Raises:
        DefinitionError: there is none.
    """
    for top in sys.path:
        path = Path(top or ".", name)
        if path.is_dir():
            return PackageFolder(path.absolute(), _identity(Path(top or "."), name))
    package = name.partition("/")[0]
    remedy = f"install the package that has {package}, or mend the name: folders of packages are looked for in sys.path"
    raise DefinitionError(f"{option} names {name!r}, and no installed package has that folder", where, remedy)


def _identity(top: Path, name: str) -> str:
    """A digest of the rows of a folder's files, in the records of the distributions that they belong to."""
    rows: list[str] = []
    for record in sorted(top.glob("*.dist-info/RECORD")):
        text = record.read_text(encoding="utf-8", errors="replace")
        if f"{name}/" in text:
            rows += [row for row in text.splitlines() if row.startswith(f"{name}/") and ".pyc," not in row]
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest() if rows else ""
