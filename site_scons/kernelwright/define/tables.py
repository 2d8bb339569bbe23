"""Finds the tuning tables of a project by the names of the files, without reading them."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import SettingsError, Where

ENDING = ".json"


def tables_in(top: Path, folder: str) -> dict[str, tuple[str, ...]]:
    """The tuning tables of each kernel: name of the kernel -> files, relative to the top, in sorted order.

    Arguments:
        top: the folder of the SConstruct.
        folder: the setting ``tuning``; empty: there are none.

    Raises:
        SettingsError: what has the name is no folder, or cannot be read.
    """
    tables: dict[str, list[str]] = {}
    for name in sorted(_names(top, folder)) if folder else ():
        if name.endswith(ENDING) and not name.startswith("."):
            tables.setdefault(name.partition(".")[0], []).append(f"{folder}/{name}")
    return {kernel: tuple(names) for kernel, names in tables.items()}


def _names(top: Path, folder: str) -> list[str]:
    place = top / folder
    try:
        return os.listdir(place)  # noqa: PTH208 (in every run)
    except OSError as error:
        # Nobody would miss tables that are overlooked, so only a name that nothing has means that there are none.
        if isinstance(error, FileNotFoundError) and not place.is_symlink():
            return []
        what = "a link to nothing" if isinstance(error, FileNotFoundError) else error.strerror
        remedy = 'remove or mend it, or set tuning = "FOLDER" under [tool.kernelwright] in pyproject.toml'
        where = Where(stage="settings", location=folder)
        raise SettingsError(f"cannot be read as the folder of the tuning tables: {what}", where, remedy) from error
