"""Where the cache of compile on demand is, and where a process writes instead if it cannot write there.

The build cache (``state/entries.py``) goes on without keeping anything if its folder cannot be written, because the
outputs of its stages are elsewhere. A compile on demand has no other place for its outputs: so its process gets a
folder of its own, which is removed when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from ..core.errors import KernelwrightError, Where
from ..core.files import SCRATCH, read_record, write_atomically
from ..core.locks import remove_unlocked
from ..state.own_folder import mark_own, require_own
from .machine import REMEMBERED

FOLDER_VARIABLE = "KERNELWRIGHT_CACHE_DIR"

ROOM = 16 << 20
"""Bytes that a compile may need on a disk."""

PROBE_BYTES = 4096
"""This many bytes are written to find out whether the disk has any room."""

YOUNG_S = 10.0
"""The process that has made a scratch folder may not have locked it yet, if the folder is younger than this."""

MADE_FIRST = ("kernels", "locks", "scratch")
"""The folders that each cache has."""

RECORD_FOLDERS = ("discovery",)
RECORDS = ("toolchain.json", "measurements.json", REMEMBERED)
"""The folders and files in a cache whose content is found out again if it is missing."""

FOLDERS = (*MADE_FIRST, *RECORD_FOLDERS, "stages", "failed")
"""The folders that a cache may have."""

IGNORE = ".gitignore"
"""The cache is in a git tree as a rule. This file in it keeps git from listing the rest."""

PLACE = Where(stage="cache")


class CacheError(KernelwrightError):
    """The cache folder cannot be used as it is, or another process does not let go of a kernel."""


def cache_folder(start: Path, environment: Mapping[str, str]) -> Path:
    """The folder of the cache for definitions in a folder.

    Arguments:
        start: where the definitions are, or a folder below.
        environment: names and values of environment variables.

    Returns:
        What ``KERNELWRIGHT_CACHE_DIR`` names, else ``.cache/kernelwright`` at the root of the git tree that has
        ``start`` in it, else ``~/.cache/kernelwright``.

    Raises:
        CacheError: there is no home folder to put it in.
    """
    # Path has methods for all of this, which cost the first call of a kernel a millisecond more.
    given = environment.get(FOLDER_VARIABLE, "")
    if given:
        return Path(os.path.abspath(os.path.expanduser(given)))  # noqa: PTH100, PTH111
    place = os.path.abspath(start)  # noqa: PTH100
    while not os.path.exists(f"{place}/.git"):  # noqa: PTH110
        parent = os.path.dirname(place)  # noqa: PTH120
        if parent == place:
            place = environment.get("HOME", "") or os.path.expanduser("~")  # noqa: PTH111
            break
        place = parent
    if not os.path.isabs(place):  # noqa: PTH117
        message = "there is no place for the cache: no git tree around the definitions, and no home folder"
        raise CacheError(message, PLACE, f"set {FOLDER_VARIABLE} to a folder")
    return Path(place, ".cache", "kernelwright")


def require_cache(folder: Path) -> None:
    """Raise a SettingsError if a folder is not empty, and is no cache of ours."""
    require_own(folder, "on-demand cache", FOLDER_VARIABLE, _is_cache)


def _is_cache(names: Collection[str]) -> bool:
    """Whether only a cache of ours can have these names in it."""
    return {*names} >= {*MADE_FIRST} and {*names} <= {*FOLDERS, *RECORDS, IGNORE}


@contextlib.contextmanager
def cache_errors(place: Path) -> Iterator[None]:
    """Raise a CacheError in place of an OSError; ``place`` is named if the OSError names no file."""
    try:
        yield
    except OSError as error:
        text = f"the cache folder cannot be used: {error.strerror or error} ({error.filename or place})"
        raise CacheError(text, PLACE, _remedy(error)) from error


def _remedy(error: OSError) -> str:
    if _is_of_full_disk(error):
        return f"make room on the disk (kernelwright cache prune), or set {FOLDER_VARIABLE} to a folder on another one"
    return f"set {FOLDER_VARIABLE} to a folder that can be written"


class PrivateFolders:
    """Folders of this process that are removed when it ends, and not when a child of it ends."""

    def __init__(self) -> None:
        self._folders: list[tuple[Path, int]] = []
        atexit.register(self._remove)

    def make(self) -> Path:
        """A new folder."""
        folder = Path(tempfile.mkdtemp(prefix="kernelwright-"))
        self._folders.append((folder, os.getpid()))
        return folder

    def _remove(self) -> None:
        for folder, owner in self._folders:
            if owner == os.getpid():
                shutil.rmtree(folder, ignore_errors=True)


PRIVATE = PrivateFolders()
"""The folders of this process. Made with the module, so that what writes into them at the end still finds them."""


class CachePlace:
    """The folder of a cache, and the folder that this process writes into.

    Arguments:
        folder: the cache; made when something is written first.
        writable: whether it may be written; if not, this process writes into a folder of its own.

    Attributes:
        problem: why the cache cannot be written; None: no reason is known.

    Raises:
        SettingsError: the folder is not empty, and is no cache of ours.
    """

    def __init__(self, folder: Path, writable: bool = True) -> None:
        self.folder = folder
        self.problem: str | None = None
        self._told: str | None = None
        self._work: Path | None = None
        self._own: Path | None = None
        self._is_full = False
        self._making = threading.Lock()
        require_cache(folder)
        if not writable:
            self._become_private(None)
        # A child of fork lacks the thread that may hold it; this is what the standard library does with its own locks.
        os.register_at_fork(after_in_child=self._making._at_fork_reinit)  # type: ignore[attr-defined]

    @property
    def work(self) -> Path:
        """The folder that this process writes into: the cache, or a folder of its own; see :attr:`problem`."""
        if self._work is None:
            with self._making:
                if self._work is None:
                    self._prepare()
        assert self._work is not None
        return self._work

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders that kernels are looked for in; none is made for that."""
        return tuple(dict.fromkeys((self._work or self.folder, self.folder)))

    @property
    def lasting(self) -> bool:
        """Whether what is written stays when this process ends."""
        return self.work == self.folder and self._own is None

    @property
    def thinned(self) -> Path:
        """The folder that things are removed from: :attr:`work`, or the cache if only its disk is full."""
        return self.folder if self.work != self.folder and self._is_full else self.work

    def require_removable(self) -> None:
        """Raise a CacheError if nothing can be removed from the cache."""
        if not (self.lasting or self._is_full):
            raise CacheError(self.problem or f"{self.folder} cannot be written", PLACE)

    def gives_way(self, error: BaseException) -> bool:
        """Whether work has failed because the disk of the cache is full. Then a folder of this process takes its place.

        A compiler reports a full disk in words only, so the room that is left is looked at.
        """
        if not self.lasting:
            return False
        try:
            is_full = _is_of_full_disk(error) or shutil.disk_usage(self.folder).free < ROOM
            if not is_full or shutil.disk_usage(tempfile.gettempdir()).free < ROOM:
                return False
        except OSError:
            return False
        self._become_private(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder)))
        return True

    def untold_problem(self) -> str | None:
        """Why the cache cannot be written, unless the last call has returned the same; None: there is no reason."""
        self._told, told = self.problem, self._told
        return self.problem if self.problem != told else None

    def _prepare(self) -> None:
        """Make the cache, or find out why it cannot be written."""
        try:
            linked = next((name for name in FOLDERS if (self.folder / name).is_symlink()), None)
            if linked is not None:
                raise OSError(errno.ELOOP, "it is a symbolic link", str(self.folder / linked))
            mark_own(self.folder)
            if not (self.folder / IGNORE).exists():
                write_atomically(self.folder / IGNORE, "*\n")
            for name in MADE_FIRST:
                (self.folder / name).mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder / "scratch", buffering=0) as probe:
                # An incomplete write raises no error, but the next one does.
                while (written := probe.tell()) < PROBE_BYTES:
                    probe.write(bytes(PROBE_BYTES - written))
            leftovers = (self.folder / "scratch").glob(f"{SCRATCH}*")
            remove_unlocked(leftovers, os.O_DIRECTORY, partial(shutil.rmtree, ignore_errors=True), YOUNG_S)
            self._work = self.folder
        except OSError as error:
            self._become_private(error)

    def _become_private(self, error: OSError | None) -> None:
        """Work in a folder of this process's own from now on, which begins with copies of the cache's records."""
        self._own = PRIVATE.make()
        for name in RECORDS:
            with contextlib.suppress(OSError):
                (self._own / name).write_bytes(read_record(self.folder / name))
        for name in RECORD_FOLDERS:
            with contextlib.suppress(OSError):
                shutil.copytree(self.folder / name, self._own / name, symlinks=True)
        # The copies have the modes of the folders in the cache, which may forbid writing.
        for path in (self._own, *self._own.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        self._work = self._own
        self._is_full = _is_of_full_disk(error)
        if error is not None:
            self.problem = (
                f"the cache folder {self.folder} cannot be written: {error.strerror or error}; what is compiled now is "
                f"compiled again by the next process. {_remedy(error)}"
            )


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is that of the operating system for a disk without room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
