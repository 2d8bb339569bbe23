"""The version of a project, as its pyproject.toml tells it: written down, in a file, or by a git tag.

Apart from the other fields, because builds ask for it whose packages have a backend that needs it.
"""

from __future__ import annotations

import email
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ..core.errors import SettingsError, Where, shown
from .git import for_this_process, repository_of
from .source import RECORD

WHERE = Where(stage="wheel", location="pyproject.toml")
PLAIN = re.compile(r"\s*([0-9][^\s]*)\s*")
ASSIGNED = re.compile(r"""^(?:__version__|VERSION|version)(?:\s*:\s*\w+)?\s*=\s*["']([^"']+)["']""", re.M)
"""A version alone in a file, and one that is assigned in a Python module or a TOML file."""


def project_table(document: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The table with the project's fields, and its name.

    Raises:
        SettingsError: there is none.
    """
    own = document.get("tool", {}).get("kernelwright", {}).get("project")
    table, place = (document.get("project"), "[project]") if own is None else (own, "[tool.kernelwright.project]")
    if not isinstance(table, dict):
        remedy = 'write [project] with at least name = "..." and version = "..."'
        raise refused(f"it has no table {place}", remedy)
    if not isinstance(table.get("dynamic", []), list):
        raise refused(f"{place}.dynamic is {shown(table['dynamic'])}, expected a list", 'write dynamic = ["version"]')
    return dict(table), place


def version_of(root: Path, document: Mapping[str, Any]) -> str:
    """The version of a project; empty: the document describes none.

    Raises:
        KernelwrightError: there should be one, and it cannot be told.
    """
    own = document.get("tool", {}).get("kernelwright", {}).get("project")
    if own is None and "project" not in document:
        return ""  # kernels can be built without a project around them
    table, place = project_table(document)
    if "version" in table.get("dynamic", ()):
        return dynamic_version(root, document, [])
    given = table.get("version", "")
    return normal(given, place) if isinstance(given, str) and given else ""


def dynamic_version(root: Path, document: Mapping[str, Any], files: list[str]) -> str:
    """The version that a file or the newest git tag has; the file's name is added to ``files``.

    Raises:
        SettingsError: ``[tool.kernelwright.version]`` is missing or not valid, or finds no version.
    """
    table = document.get("tool", {}).get("kernelwright", {}).get("version")
    remedy = 'write [tool.kernelwright.version] with file = "path", or with git = true'
    if not isinstance(table, dict) or len(table) != 1 or not {"file", "git"} & table.keys():
        given = "missing" if table is None else shown(table)
        raise refused(f"[project] has a dynamic version, but [tool.kernelwright.version] is {given}", remedy)
    if "git" in table:
        if table["git"] is not True:
            raise refused(f"[tool.kernelwright.version] has git = {shown(table['git'])}", remedy)
        return _version_of_tag(root)
    name = table["file"]
    if not isinstance(name, str) or not name:
        raise refused(f"[tool.kernelwright.version] has file = {shown(name)}", remedy)
    files.append(name)
    text = content_of(root / name).decode("utf-8", "replace")
    match = PLAIN.fullmatch(text) or ASSIGNED.search(text)
    if match is None:
        raise refused(f"{name} has no version", 'write a version alone into it, or __version__ = "1.0"')
    return normal(match[1], name)


def _version_of_tag(root: Path) -> str:
    """The version that a tag has; in a source distribution, in which git has nothing to say, that of PKG-INFO."""
    import dunamai

    repository = repository_of(root)
    if repository is None or not repository.tracked():
        if (root / RECORD).is_file():
            version = email.message_from_bytes(content_of(root / "PKG-INFO"))["Version"]
            return normal(str(version), "PKG-INFO")
        raise refused("git tells no version: it tracks nothing here", "commit the project, or write the version down")
    try:
        with for_this_process(repository):
            tag = dunamai.Version.from_git(path=root, strict=True)
    except (RuntimeError, ValueError) as error:
        raise refused(
            f"git tells no version: {error}", "tag a commit, such as v1.0, or write the version down"
        ) from error
    return normal(tag.serialize(style=dunamai.Style.Pep440), "the git tag")


def normal(text: str, place: str) -> str:
    """A version as packaging tools write it. Raises SettingsError if it is none; ``place`` is where it stands."""
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise refused(f"{text!r}, the version in {place}, is not valid", "write one such as 1.0 or 2.1rc1") from error


def content_of(path: Path) -> bytes:
    """The content of a file that pyproject.toml names. Raises SettingsError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise refused(f"{path.name} cannot be read: {error.strerror}", "mend it, or name another file") from error


def refused(message: str, remedy: str) -> SettingsError:
    """The error for what pyproject.toml should not have."""
    return SettingsError(message, WHERE, remedy)
