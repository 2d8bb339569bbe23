"""Where the tuning tables of a project are: found by the names of the files, without reading any."""

from __future__ import annotations

import os
from pathlib import Path

ENDING = ".json"


def tables_in(top: Path, folder: str) -> dict[str, tuple[str, ...]]:
    """The tuning tables of each kernel: name of the kernel -> files, relative to the top, in sorted order.

    Arguments:
        top: the folder of the SConstruct.
        folder: the setting ``tuning``; empty: there are none.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(_names(top / folder)) if folder else ():
        if name.endswith(ENDING) and not name.startswith("."):
            found.setdefault(name.partition(".")[0], []).append(f"{folder}/{name}")
    return {kernel: tuple(names) for kernel, names in found.items()}


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (in every run)
    except (FileNotFoundError, NotADirectoryError):
        return []
