"""Where a build's sources come from: git commit, and the time that all files of a wheel have."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError, Where, shown
from ..records import read_json

FIRST_ZIP_TIME = 315_532_800
"""1980-01-01, the earliest time that a zip archive can hold, in seconds."""

AFTER_ZIP_TIME = 4_354_819_200
"""2108-01-01, where zip's times end."""

RECORD = "kernelwright-source.json"
"""File of a source distribution that has what git would say of the tree that it was made from."""


@dataclass(frozen=True)
class Source:
    """Where the sources come from.

    Arguments:
        commit: of git; empty: there is no git.
        dirty: whether files differ from that commit; untracked ones count too.
        time: seconds since 1970 of the commit, or of SOURCE_DATE_EPOCH.
    """

    commit: str
    dirty: bool
    time: int

    def as_json(self) -> dict[str, Any]:
        """What the manifest shows. The time is not in it: the archive has it."""
        return {"commit": self.commit, "dirty": self.dirty}


def find_source(root: Path) -> Source:
    """What is known of a project's sources.

    Raises:
        SettingsError: SOURCE_DATE_EPOCH is not a number of seconds from 1980 to 2107.
    """
    epoch = _epoch(os.environ.get("SOURCE_DATE_EPOCH"))
    kept = root / RECORD
    if kept.is_file():
        source = read_json(kept, lambda item: Source(item.text("commit"), item.flag("dirty"), item.count("time")), "")
        return source if epoch is None else Source(source.commit, source.dirty, epoch)
    commit = _git(root, "log", "-1", "--format=%H %ct", "--", ".")
    if not commit:
        return Source("", False, FIRST_ZIP_TIME if epoch is None else epoch)
    digest, seconds = commit.split()
    # What a build makes is no change of its sources, also where nobody told git to ignore it.
    made = [f":(exclude){name}" for name in ("build", "dist")]
    dirty = bool(_git(root, "status", "--porcelain", "--", ".", *made))
    return Source(digest, dirty, max(int(seconds), FIRST_ZIP_TIME) if epoch is None else epoch)


def _epoch(text: str | None) -> int | None:
    if not text:
        return None
    # More digits than these are no time, and Python refuses to read thousands of them.
    if not text.isdecimal() or len(text) > 12 or not FIRST_ZIP_TIME <= int(text) < AFTER_ZIP_TIME:
        where = Where(stage="wheel", location="SOURCE_DATE_EPOCH")
        bounds = f"{FIRST_ZIP_TIME} (1980) to {AFTER_ZIP_TIME - 1} (2107)"
        remedy = "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it"
        raise SettingsError(f"it is {shown(text)}, expected seconds since 1970, from {bounds}", where, remedy)
    return int(text)


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing, if there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


NOT_SOURCES = ("build", "dist", "__pycache__")
"""Folders that are no part of a source distribution, also where there is no git to ask."""


def tracked_files(root: Path) -> list[str]:
    """The files of a project, relative to its folder: those that git knows, or all of them where there is no git."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
    if listed:
        return sorted(name for name in listed.split("\0") if name)
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_SOURCES and not name.startswith(".")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]  # noqa: PTH118
    return sorted(found)


def is_source_file(root: Path, name: str) -> bool:
    """Whether a listed file belongs into a source distribution."""
    parts = name.split("/")
    made = parts[0] in ("build", "dist") or name in ("PKG-INFO", RECORD) or parts[-1].startswith(".sconsign")
    return not made and (root / name).is_file()
