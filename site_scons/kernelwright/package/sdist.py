"""Chooses the files of a source distribution, and reads them: what git tracks, and nothing that merely lies there."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import SettingsError, Where, printable, shown
from ..define.settings import Settings
from ..define.tables import tables_in
from .git import repository_of
from .source import is_made, present_files, recorded_files

ALWAYS = ("pyproject.toml", "SConstruct")
"""Files that no project can be built without."""

NAMED = 20
"""Names that a message lists."""


class Chosen(NamedTuple):
    """The files of a source distribution, and those in the project's folder that it leaves out."""

    files: list[str]
    left_out: list[str]


def choose_files(root: Path, document: Mapping[str, Any], described: Collection[str]) -> Chosen:
    """The files of a project that a source distribution has.

    They are those that git tracks; in an unpacked source distribution, those that it came with; without both, those
    that ``[tool.kernelwright.sdist]`` names, and the tuning tables.

    Arguments:
        root: the project's folder.
        document: its pyproject.toml.
        described: files that its fields name, such as the readme.

    Raises:
        KernelwrightError: nothing says which files are sources, or a file that a build needs would be missing.
    """
    chosen = _of_git(root, document) or _of_record(root) or _of_document(root, document, described)
    names = {name for name in chosen.files if not is_made(name)}
    if missing := sorted({"pyproject.toml", *described} - names):
        remedy = "add them: git add, or name them in [tool.kernelwright.sdist]"
        raise _refused(f"it would have no {_enumerated(missing)}, and its wheel needs that", remedy)
    return Chosen(sorted(names), sorted({name for name in chosen.left_out if not is_made(name)} - names))


def read_files(root: Path, names: Collection[str]) -> dict[str, bytes]:
    """The content of some files of a project, but for those that were removed from it.

    Raises:
        SettingsError: one is a link to something else than another one of them.
    """
    top, content = root.resolve(), {}
    for name in sorted(names):
        real = (root / name).resolve()
        inside = real.relative_to(top).as_posix() if real.is_relative_to(top) else None
        if inside not in names:
            remedy = "put a copy of the file there; or take the link out of git, or out of [tool.kernelwright.sdist]"
            message = f"it leads to {printable(str(real))}, which is no file of the source distribution"
            raise _refused(message, remedy, printable(name))
        if real.is_file():
            content[name] = real.read_bytes()
    return content


def words_for(left_out: Sequence[str]) -> str:
    """What to tell whoever makes a source distribution of the files that are not in it; empty: all are."""
    count = f"{len(left_out)} file{'s' if len(left_out) > 1 else ''}"
    return f"kernelwright: the source distribution leaves out {count}: {_enumerated(left_out)}" if left_out else ""


def _tables(root: Path, document: Mapping[str, Any]) -> set[str]:
    """The tuning tables in the folder of the setting."""
    table = document.get("tool", {}).get("kernelwright", {})
    folder = table.get("tuning", Settings.tuning)
    return {name for names in tables_in(root, folder).values() for name in names} if isinstance(folder, str) else set()


def _of_git(root: Path, document: Mapping[str, Any]) -> Chosen | None:
    """What git tracks; None: it tracks nothing here."""
    repository = repository_of(root)
    tracked = [] if repository is None else [file.name for file in repository.tracked()]
    if repository is None or not tracked:
        return None
    others = repository.ask("ls-files", "-z", "--others", "--exclude-standard", "--", ".") or ""
    left_out = [name for name in others.split("\0") if name and not is_made(name)]
    tables = _tables(root, document)
    # The build file takes all files of a folder, so a file that git does not know may well be built here.
    used = (n for n in left_out if n.endswith(".py") or Path(n).name.startswith("SCons") or n in tables)
    if code := sorted(used):
        message = f"git does not track {_enumerated(code)}: the build here may use that, and it would be missing"
        raise _refused(message, "git add what belongs to the project, and have .gitignore name what does not")
    return Chosen(tracked, left_out)


def _of_record(root: Path) -> Chosen | None:
    """What an unpacked source distribution came with."""
    recorded = recorded_files(root)
    return Chosen(list(recorded), present_files(root)) if recorded else None


def _of_document(root: Path, document: Mapping[str, Any], described: Collection[str]) -> Chosen:
    """What pyproject.toml names."""
    table = document.get("tool", {}).get("kernelwright", {}).get("sdist")
    remedy = 'write [tool.kernelwright.sdist] with include = ["kernels/**/*.py"], or commit the sources to git'
    if table is None:
        raise _refused("git tracks nothing here, and pyproject.toml does not say which files are sources", remedy)
    patterns = table.get("include") if isinstance(table, dict) and table.keys() == {"include"} else None
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise _refused(f"[tool.kernelwright.sdist] is {shown(table)}", remedy)
    names = {*(name for name in ALWAYS if (root / name).exists()), *described, *_tables(root, document)}
    for pattern in patterns:
        # Unlike that of Path, this one leaves out hidden files unless the pattern has their dot.
        matches = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207
        matches = [name for name in matches if not (root / name).is_dir()]
        if not matches or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            problem = f"[tool.kernelwright.sdist].include has {shown(pattern)}, which names no file in the project"
            raise _refused(problem, remedy)
        names |= {Path(name).as_posix() for name in matches if "__pycache__" not in Path(name).parts}
    return Chosen(sorted(names), present_files(root))


def _enumerated(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(printable, names[:NAMED])) + more


def _refused(message: str, remedy: str, place: str = "pyproject.toml") -> SettingsError:
    return SettingsError(message, Where(stage="sdist", location=place), remedy)
