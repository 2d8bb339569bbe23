"""Finds out whether a build can import a function later: modules that a program writes or makes up are gone by then."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .source_digest import name_of


def why_not_found(function: Any, path: Sequence[str]) -> str:
    """Why no build can import a function by its name, as the rest of a sentence about it; empty: one can.

    Arguments:
        function: a ``JITFunction``.
        path: ``sys.path`` before the program could add to it.
    """
    module_name, _, names = name_of(function).partition(":")
    if "<locals>" in names:
        return "is defined inside of a function"
    module = sys.modules.get(function.module)
    file = getattr(module, "__file__", None)
    if module is None or file is None or not Path(file).is_file():
        return f"is in the module {module_name!r}, which has no file"
    if not is_reached(function, function):
        return f"is not what its module {module_name!r} has under this name"
    if function.module == "__main__":
        return ""
    found = _file_of(module_name)
    if found is None or not found.samefile(file):
        return f"is in a module that Python does not find by its name, {file}"
    is_temporary = found.is_relative_to(Path(tempfile.gettempdir()).resolve())
    if is_temporary and not any(found.is_relative_to(Path(entry).resolve()) for entry in path):
        return f"is in a module that the program has put into a temporary folder, {file}"
    return ""


def is_reached(wanted: Any, function: Any) -> bool:
    """Whether a function's name leads to something: the function, or one of its decorators.

    A build has the decorators that are found so, and no others.
    """
    value: Any = sys.modules.get(function.module)
    for name in function.fn.__qualname__.split("."):
        value = getattr(value, name, None)
    while value is not None and value is not wanted:
        value = vars(value).get("fn") if hasattr(value, "__dict__") else None
    return value is wanted


def _file_of(module_name: str) -> Path | None:
    """The file that Python would import a module from, if it was not imported yet."""
    parent = module_name.rpartition(".")[0]
    folders = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and folders is None:
        return None
    for finder in sys.meta_path:
        spec = finder.find_spec(module_name, folders)
        if spec is not None:
            return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    return None
