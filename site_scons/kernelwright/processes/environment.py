"""What tools are run with: a fixed environment, and paths that a shell leaves as they are."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from ..core.errors import ToolchainError, Where

SHELL = re.compile(r'[$`"\\]')
"""What a shell acts on between double quotes. nvcc 13.0 has a shell run its commands, with paths in such quotes."""


def tool_environment() -> dict[str, str]:
    """The fixed environment that tools run in: nothing of the user's may change what they make."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}


def place_for_shell(path: Path, folder: Path) -> str:
    """A path as nvcc, which runs in ``folder``, can be given it: relative if a shell would act on the absolute one.

    Raises:
        ToolchainError: a shell would act on either.
    """
    absolute = str(path)
    if SHELL.search(absolute) is None:
        return absolute
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    require_plain_path(relative)
    return relative


def require_plain_path(path: str) -> None:
    """Raise a ToolchainError for a path that nvcc would have a shell change."""
    if SHELL.search(path):
        message = f'nvcc would give the path {path!r} to a shell, which acts on $, `, " and \\ in it'
        raise ToolchainError(message, Where(stage="settings"), "move it to a folder without such characters")
