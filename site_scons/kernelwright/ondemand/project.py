"""The project that a definition file belongs to."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from ..core.dependencies import repository_around
from ..core.quantity import parse_size
from ..define.settings import Settings
from .cache_place import cache_folder
from .monitor import say_at_exit
from .options import Options, effective, unknown_variables
from .session import SESSIONS, Session
from .store import KernelStore
from .store import clear_cache as clear_folder


def project_root(path: Path) -> Path:
    """The folder that names of files are relative to: that of the project, of the git tree, or of the top package."""
    outside = next(folder for folder in path.parents if not (folder / "__init__.py").is_file())
    return project_of(path) or repository_around(path.parent) or outside


def root_of_live(location: str) -> Path:
    """The folder of the project of a definition that is in this process only.

    Arguments:
        location: ``path:line``, of its definition or, for a program, of the call that compiles it; if there is no such
            file, the working folder counts.
    """
    file = Path(location.rpartition(":")[0])
    return project_root(file.absolute() if file.is_file() else Path.cwd() / "script.py")


def project_of(path: Path) -> Path | None:
    """The folder of the project that a file is in; None: it is in none.

    It is the nearest one above the file with an SConstruct, where builds run; or else with a pyproject.toml that has
    settings of ours.
    """
    builds = (folder for folder in path.parents if (folder / "SConstruct").is_file())
    configured = (folder for folder in path.parents if _has_settings(folder / "pyproject.toml"))
    return next(builds, None) or next(configured, None)


def _has_settings(path: Path) -> bool:
    try:
        return "[tool.kernelwright" in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def session_for(root: Path, settings: Settings, options: Options) -> Session:
    """The session of a project."""
    _point_out_variables()
    asked = effective(os.environ, options, Options(disable_cache=SESSIONS.cache_disabled))
    if asked.monitor:
        say_at_exit()
    if asked.disable_cache:
        store = _private_store()
    else:
        limit = parse_size(settings.cache_size or "1T") * 1024
        folder = Path(options.cache_dir).absolute() if options.cache_dir else cache_folder(root, os.environ)
        store = _store(folder, limit, bool(asked.clear_cache))
    return SESSIONS.get(root, settings, store, asked.workers, bool(asked.verbose))


@cache
def _point_out_variables() -> None:
    """Show once which variables have no effect, because there are none of these names."""
    for line in unknown_variables(os.environ):
        sys.stderr.write(f"{line}\n")


@cache
def _store(folder: Path, limit: int, clear: bool) -> KernelStore:
    """The store of a cache folder, one for each folder in a process.

    Arguments:
        clear: whether the cache is emptied first.
    """
    if clear:
        clear_folder(folder)
    return KernelStore(folder, limit)


@cache
def _private_store() -> KernelStore:
    """The store of a process whose cache is disabled."""
    return KernelStore.private()


def disable_cache() -> None:
    """From now on this process reads and keeps nothing in the cache, whatever ``KERNELWRIGHT_DISABLE_CACHE`` says."""
    SESSIONS.cache_disabled = True


def enable_cache() -> None:
    """From now on this process uses the cache, whatever ``KERNELWRIGHT_DISABLE_CACHE`` says."""
    SESSIONS.cache_disabled = False


def clear_cache() -> None:
    """Forget all compiled kernels: those that this process holds, and those in the caches that it has used.

    If it has used none yet, the one of the current folder is emptied. Kernel objects that are in use go on working.

    Raises:
        KernelwrightError: a cache cannot be emptied.
    """
    SESSIONS.forget()
    for store in SESSIONS.stores:
        store.clear()
    if not SESSIONS.stores:
        clear_folder(cache_folder(Path.cwd(), os.environ))
