"""Compares the functions of a recording with their texts of today, without importing anything.

An import might ask for a GPU. The files are read as recordings are: what a run says depends on them here, and what a
variant is compiled to does not.
"""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ...define.recorded import read_recorded
from .source_digest import digest_of_text


class Texts:
    """The texts of functions in modules of the project, as long as a definition file is executed."""

    def __init__(self) -> None:
        self._digests = cache(_digests_in)

    def has_other(self, function: str, source: str) -> bool:
        """Whether a function is there and has another text than it was recorded with.

        Arguments:
            function: ``module:name``.
            source: the digest in the recording.
        """
        module, _, name = function.partition(":")
        found = {digest for known, digest in self._digests(module) if known == name}
        return bool(found) and source not in found


def _digests_in(module: str) -> list[tuple[str, str]]:
    """The functions in a module with the digests of their texts; none, if it is installed, or cannot be read."""
    content = _source_of(module)
    try:
        return [] if content is None else list(_digests(ast.parse(content).body, ""))
    except (SyntaxError, ValueError):  # its import says so
        return []


def _digests(body: list[ast.stmt], before: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield before + node.name, digest_of_text(node)
        elif isinstance(node, ast.ClassDef):
            yield from _digests(node.body, f"{before}{node.name}.")
        else:
            for inner in ("body", "orelse", "handlers", "finalbody"):  # of if and try
                yield from _digests(getattr(node, inner, []), before)


def _source_of(module: str) -> bytes | None:
    """The content of a module's file, if it is one of the project."""
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.has_location or not spec.origin or not _is_own(Path(spec.origin)):
        return None
    files, folder = [Path(spec.origin)], Path(spec.origin).parent
    for part in inner:
        files, folder = [folder / f"{part}.py", folder / part / "__init__.py"], folder / part
    for file in files:
        try:
            return read_recorded(file)
        except (OSError, ValueError):
            continue
    return None


def _is_own(file: Path) -> bool:
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return file.is_relative_to(Path.cwd()) and not any(map(file.is_relative_to, installed))
