"""Where a build's sources come from: the git commit, whether they are those of it, and the time of all files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError, Where, shown
from ..core.files import dependency_digest
from ..core.records import Record, read_json
from .git import repository_of

FIRST_ZIP_TIME = 315_532_800
"""1980-01-01, the earliest time that a zip archive can hold, in seconds."""

AFTER_ZIP_TIME = 4_354_819_200
"""2108-01-01, where zip's times end."""

RECORD = "kernelwright-source.json"
"""File of a source distribution that has what git said of the tree that it was made from, and a digest of each file."""

MADE = ("build", "dist")
"""Folders that a build makes, which is no change of its sources, also where nobody told git to ignore them."""


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


def find_source(root: Path, used: Collection[str] = (), outside: Collection[str] = ()) -> Source:
    """What is known of a project's sources: what git says; without git, what the record of a source distribution says.

    Arguments:
        root: the project's folder.
        used: files that are built from, relative to it; one that the commit does not have makes the tree differ, even
            if git was told to ignore it.
        outside: files outside of the project that are built from (see ``core.dependencies``). Those of its repository
            count as those of the project; no commit has any other.

    Raises:
        KernelwrightError: SOURCE_DATE_EPOCH is not a number of seconds from 1980 to 2107, or the record is damaged.
    """
    epoch = _epoch(os.environ.get("SOURCE_DATE_EPOCH"))
    used = {name for name in used if not is_made(name)}  # what is generated is made of other files
    source = _of_git(root, used, outside) or _of_record(root, used) or Source("", False, FIRST_ZIP_TIME)
    return source if epoch is None else replace(source, time=epoch)


def recorded_files(root: Path) -> Mapping[str, str] | None:
    """The files of an unpacked source distribution with their digests; None: it is none.

    Raises:
        KernelwrightError: its record is damaged.
    """
    record = _record(root)
    return record and record[1]


def is_made(name: str) -> bool:
    """Whether a file of a project is made by a build, or is written into each source distribution anew."""
    parts = name.split("/")
    return parts[0] in MADE or name in ("PKG-INFO", RECORD) or parts[-1].startswith(".sconsign")


def present_files(root: Path) -> list[str]:
    """The files in a project's folder but for what a build makes and what is hidden, as virtual environments are."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in MADE]
        files += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return sorted(name for name in files if not is_made(name))


REMEDY = "unpack the source distribution again"


def _of_git(root: Path, used: Collection[str], outside: Collection[str]) -> Source | None:
    """What git says; None: no commit has the project."""
    repository = repository_of(root)
    tracked = repository.tracked() if repository is not None else []
    if repository is None or not tracked:
        return None  # the folder may lie in the repository of something else
    beside = sorted(name for name in outside if name.startswith("../"))
    commit = repository.ask("log", "-1", "--format=%H %ct", "--", ".", *beside)
    if not commit:
        return None
    digest, seconds = commit.split()
    excluded = [f":(exclude){name}" for name in MADE]
    options = ["--porcelain", "--untracked-files=normal", "--ignore-submodules=none"]
    changed = repository.ask("status", *options, "--", ".", *beside, *excluded) != ""  # no answer is no promise either
    unwatched = any(file.unwatched and (root / file.name).exists() for file in tracked)
    files_beside = (repository.ask("ls-files", "-z", "--", *beside) or "").split("\0") if beside else []
    untracked = {*used, *outside} - {file.name for file in tracked} - {*files_beside}
    return Source(digest, changed or unwatched or bool(untracked), max(int(seconds), FIRST_ZIP_TIME))


def _of_record(root: Path, used: Collection[str]) -> Source | None:
    """Read the record of a source distribution. The tree is clean if its files are exactly the recorded ones."""
    if (record := _record(root)) is None:
        return None
    source, files = record
    # Hidden files are not looked for, because tools put theirs there.
    present = {name for name in present_files(root) if not name.startswith(".")}
    same = {*present, *used} <= files.keys() and all(dependency_digest(root, name) == files[name] for name in files)
    return replace(source, dirty=source.dirty or not same)


def _record(root: Path) -> tuple[Source, dict[str, str]] | None:
    path = root / RECORD
    return read_json(path, _recorded, REMEDY) if path.is_file() else None


def _recorded(item: Record) -> tuple[Source, dict[str, str]]:
    """The record of a source distribution; those of the first versions list no files, so nothing of them is sure."""
    source = Source(item.text("commit"), item.flag("dirty"), item.count("time"))
    if not re.fullmatch("([0-9a-f]{40}|[0-9a-f]{64})?", source.commit):
        raise ValueError(f"commit is {shown(source.commit)}, expected one of git's")
    if not FIRST_ZIP_TIME <= source.time < AFTER_ZIP_TIME:
        raise ValueError(f"time is {shown(source.time)}, expected seconds since 1970, from 1980 to 2107")
    digests = item.record("files") if item.has("files") else Record({}, "files")
    return source, {name: digests.text(name) for name in digests.raw}


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
