"""The project that a definition file belongs to."""

from __future__ import annotations

import os
from pathlib import Path

from ..define.settings import Settings
from .options import Options
from .session import SESSIONS, Session
from .store import KernelStore


def project_root(path: Path) -> Path:
    """The folder that the names of files are relative to.

    It is the nearest one above the file with an SConstruct, where builds run; or else with a pyproject.toml that has
    settings of ours; or else the one that the file's top package is in.
    """
    folders = path.parents
    for folder in folders:
        if (folder / "SConstruct").is_file():
            return folder
    for folder in folders:
        if _has_settings(folder / "pyproject.toml"):
            return folder
    return next(folder for folder in folders if not (folder / "__init__.py").is_file())


def _has_settings(path: Path) -> bool:
    try:
        return "[tool.kernelwright" in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def session_for(root: Path, settings: Settings, options: Options) -> Session:
    """The session of a project."""
    jobs = options.num_workers or len(os.sched_getaffinity(0))
    folder = Path(os.environ.get("KERNELWRIGHT_CACHE_DIR") or root / ".cache" / "kernelwright")
    return SESSIONS.get(root, settings, KernelStore(folder), jobs, bool(options.verbose))
