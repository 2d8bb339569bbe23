"""The cache of compile on demand: compiled kernels, finished stages, and what failed compiles have left.

    CACHEDIR.TAG             says that the folder is a cache, and ours
    stages/ab/abcd...        entries of ``state/cache.py``, one for each finished stage
    kernels/<name>-<a>-<b>/  one compiled kernel: a manifest, and the files that it lists
    failed/<name>-<key>/     the sources of a failed compile, and log.txt
    locks/<key>.lock         the process that holds it compiles the kernel of that key
    scratch/                 what is being made

``ondemand/kernel_folders.py`` says what ``a`` and ``b`` are, and ``ondemand/cache_place.py`` where the folder is.

A kernel is made in ``scratch`` and renamed. It stays as it is until it is removed. So a folder never has anything but
what its name stands for, and a process can load from it without a lock.

Nothing in the folder is believed: a manifest has its own digest, and the digests of all files of its kernel. So the
folder can be deleted, mounted read-only, or baked into an image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import held_folder, open_lock, read_record, scratch_folder
from ..core.locks import hold, is_held, let_go, remove_unlocked
from ..state.own_folder import Removable, mark_used, remove_oldest
from .cache_place import (
    PLACE,
    PRIVATE,
    RECORD_FOLDERS,
    RECORDS,
    CacheError,
    CachePlace,
    cache_errors,
    cache_folder,
    require_cache,
)
from .kernel_folders import (
    LONGEST_NAME,
    StoredAs,
    damage,
    find_kernel,
    folder_name,
    folder_size,
    folders_in,
    has_key,
    kernel_folder,
    put,
    request_of,
)

if TYPE_CHECKING:
    from ..state.cache import BuildCache

BUILD_CACHE = "build/.kernelwright/cache"
"""Where builds keep finished stages, if their settings do not say otherwise."""

LIMIT = 2 << 30
"""Bytes that a cache may have, if nobody sets a limit."""

IN_USE_S = 60.0
"""A kernel that was used so recently is not removed to make room, because a process may be loading it."""


SHOW_WAIT_S = 1.0
"""If another process holds a lock for longer, the user is told."""


@contextlib.contextmanager
def locked(path: Path, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file, which is removed at the end; see :meth:`.store.KernelStore.locked`."""
    lock = _lock(path, timeout_s, on_wait, given_up)
    try:
        yield
    finally:
        if is_held(lock):  # not in a child that was forked meanwhile
            # Those who wait for this file see that it is gone, and take the lock of the next one.
            with contextlib.suppress(OSError):
                if os.fstat(lock).st_ino == path.stat().st_ino:
                    path.unlink()
            let_go(lock)


def _lock(path: Path, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool]) -> int:
    """The descriptor of a lock that is held now; -1: nothing can be locked there."""
    begin = time.monotonic()
    pause, told = 0.005, False
    while True:
        if given_up():
            raise CacheError("the compile was ended before it began", PLACE)
        try:
            lock = _try_lock(path)
        except OSError:
            return -1
        if lock is not None:
            return lock
        waited = time.monotonic() - begin
        if waited > timeout_s:
            message = f"{_holder(path)} is compiling the same kernel, and did not finish in {timeout_s:g} s"
            remedy = f"wait for it to end, or end it; nobody has the lock then ({path})"
            raise CacheError(message, PLACE, remedy)
        if waited > SHOW_WAIT_S and not told and _holder(path) != f"process {os.getpid()}":
            told = True
            on_wait()
        time.sleep(min(pause, max(timeout_s - waited, 0.001)))
        pause = min(pause * 1.5, 0.1)


def _try_lock(path: Path) -> int | None:
    """The descriptor of a lock if it is free; None if it is not. Raises OSError if nothing can be locked there."""
    lock = open_lock(path)
    try:
        hold(lock)
        if os.fstat(lock).st_ino == path.stat().st_ino:
            with contextlib.suppress(OSError):  # the number of the process is only for messages
                os.truncate(lock, 0)
                os.write(lock, str(os.getpid()).encode())
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        let_go(lock)
        raise
    # Somebody holds it, or its last holder removed the file after we opened it.
    let_go(lock)
    return None


def _holder(path: Path) -> str:
    """The process that holds a lock, for messages, if its file has the number of one."""
    try:
        number = read_record(path, 1 << 10).decode()[:20]
    except (OSError, UnicodeDecodeError):
        number = ""
    return f"process {number}" if number.isdecimal() else "another process"


def stages_behind(start: Path, environment: Mapping[str, str]) -> BuildCache | None:
    """The finished stages of compile on demand, for builds to read; None: there are none.

    Arguments:
        start, environment: as of :func:`cache_folder`.
    """
    try:
        folder = cache_folder(start, environment)
        return stages_in(folder) if (folder / "stages").is_dir() else None
    except (CacheError, OSError):
        return None


def stages_in(folder: Path, limit: int = 0, writable: bool = False) -> BuildCache:
    """The finished stages in the folder of a cache; the other arguments are those of :class:`BuildCache`."""
    from ..state.cache import BuildCache

    return BuildCache(folder / "stages", limit, writable, owned=True)


class KernelStore(CachePlace):
    """A cache, with its compiled kernels. Safe to use from several threads and processes at once, and after a fork.

    Arguments:
        folder, writable: see :class:`CachePlace`.
        limit: bytes that :meth:`trim` cuts it down to.

    Raises:
        SettingsError: the folder is not empty, and is no cache of ours.
    """

    def __init__(self, folder: Path, limit: int = LIMIT, writable: bool = True) -> None:
        super().__init__(folder, writable)
        self.published = False
        self._limit = limit

    @classmethod
    def private(cls) -> KernelStore:
        """A store that has nothing of earlier processes, and is removed when this one ends."""
        store = cls(PRIVATE.make(), 1 << 50)
        store._work = store._own = store.folder
        return store

    def find(self, name: str, key: str, current: Callable[[str], str]) -> StoredAs | None:
        """A compiled kernel whose manifest and list of files are intact; None: there is none.

        Its other files are compared with the manifest by whoever loads them.

        Arguments:
            key: the key of the job.
            current: gives the present digest of a file that stages turned out to read while they ran.
        """
        found = find_kernel(self.roots, name, key, current)
        if found is not None and self.roots[0] in found.folder.parents:
            mark_used(found.folder)
        return found

    def publish(self, name: str, key: str, entry: str, scratch: Path) -> Path:
        """Put a finished folder in its place by renaming it.

        If another process was first, and its folder is intact, that one stays and is returned: both have what the key
        stands for. A damaged folder is replaced; a process that has opened its files keeps them.

        Arguments:
            key: the key of the job.
            entry: the key of the kernel, which its manifest has.
            scratch: the folder, out of :meth:`scratch`.

        Raises:
            CacheError: the folder cannot be put there.
        """
        final = kernel_folder(self.work, name, key, entry)
        self._put(scratch, final, lambda: has_key(final, entry) and not damage(final))
        return final

    def fail(self, name: str, key: str, scratch: Path, log_text: str) -> Path:
        """Keep what a failed compile has left, with its log, and nothing of an earlier one of the same key.

        Where the log names files of ``scratch``, it names them in their new place.

        Raises:
            CacheError: it cannot be kept.
        """
        final = self.work / "failed" / folder_name(name, key)
        with cache_errors(final):
            text = log_text.replace(str(scratch), str(final))
            (scratch / "log.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        self._put(scratch, final, lambda: False)
        return final

    def _put(self, scratch: Path, final: Path, stays: Callable[[], bool]) -> None:
        """Give a finished folder its place. What is there is removed first, unless ``stays`` says that it stays."""
        with cache_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            while not put(scratch, final):
                if stays():
                    return
                self.discard(final)
        self.published = True
        mark_used(final)

    def discard(self, found: Path) -> None:
        """Remove a folder of a kernel or of a failed compile, in one step for those who look for it.

        On a full disk no folder can be made that it could be moved to. There its manifest goes first.

        Raises:
            CacheError: it cannot be removed.
        """
        if self._is_full and self.folder in found.parents:
            with cache_errors(found), contextlib.suppress(FileNotFoundError):
                (found / "manifest.json").unlink(missing_ok=True)
                shutil.rmtree(found)
            return
        with (
            cache_errors(found),
            self.scratch("discarded") as scratch,
            contextlib.suppress(FileNotFoundError),
            held_folder(found.parent) as held,
        ):
            (held / found.name).rename(scratch / found.name)

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A new folder of that name on the file system of the cache; it is removed at the end, unless it was renamed.

        Raises:
            CacheError: it cannot be made.
        """
        with contextlib.ExitStack() as stack:
            folder = self.work / "scratch"
            with cache_errors(folder):
                inner = stack.enter_context(scratch_folder(folder)) / name[:LONGEST_NAME]
                inner.mkdir()
            yield inner

    def locked(
        self, key: str, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool] = lambda: False
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of a key: nobody else compiles that kernel meanwhile, in this process or in another one.

        Where nothing can be locked, as on some network file systems, no lock is taken: a kernel is then perhaps
        compiled twice, and the first result counts.

        Arguments:
            timeout_s: how long to wait for another holder.
            on_wait: called once, if the wait is longer than a second.
            given_up: asked again and again; true: the lock is no longer wanted.

        Raises:
            CacheError: another process holds it for longer, or the wait was given up.
        """
        return locked(self.work / "locks" / f"{key}.lock", timeout_s, on_wait, given_up)

    def stages(self, root: Path | None = None, cache_dir: str = BUILD_CACHE) -> BuildCache:
        """The cache of finished stages. Behind it is the build cache of a project, which is never written here.

        Arguments:
            root: the project's folder; None: there is no project.
            cache_dir: the setting of that name; empty: the project has no build cache.
        """
        from ..state.cache import BuildCache

        read_only = partial(BuildCache, limit=self._limit, writable=False, owned=True)
        behind = partial(read_only, root / cache_dir) if root and cache_dir else lambda: None
        if self.work != self.folder:
            behind = partial(read_only, self.folder / "stages", behind=behind)
        return BuildCache(self.work / "stages", self._limit, owned=True, behind=behind)

    def trim(self) -> None:
        """Remove what was used least recently if this store has added something, and there is too much altogether."""
        if self.published:
            self.published = False
            try:
                self.prune(self._limit)
            except CacheError as error:
                self.problem = error.message

    def prune(self, limit: int) -> int:
        """Remove what was used least recently until no more than so many bytes are left; how many bytes went.

        A kernel that was used in the last minute stays.
        """
        return remove_oldest(self._removable(self.thinned), limit, time.time() - IN_USE_S)

    def size(self) -> int:
        """Bytes of all stages, kernels and failed compiles."""
        return sum(item.size for item in self._removable(self.folder))

    def clear(self) -> None:
        """Remove all stages, kernels, failed compiles and records of the cache, and nothing else.

        Others may be using it: what they are making stays, and what they have loaded.

        Raises:
            CacheError: something cannot be removed.
        """
        place = self.thinned
        for item in list(self._removable(place)):
            item.remove()
        with cache_errors(place):
            for name in RECORDS:
                (place / name).unlink(missing_ok=True)
            for name in RECORD_FOLDERS:
                folder = place / name
                if folder.is_dir() and not folder.is_symlink():
                    self.discard(folder)
        remove_unlocked((place / "locks").glob("*.lock"), os.O_WRONLY, Path.unlink)

    def kernels(self) -> list[Path]:
        """The folders of the kernels in the cache, intact or not, by name."""
        return sorted(folders_in(self.folder / "kernels"))

    def requests(self, name: str) -> Iterator[Mapping[str, str]]:
        """What was asked for, part by part, for each kernel of a name in the cache."""
        for root in self.roots:
            for folder in folders_in(root / "kernels"):
                if folder.name.startswith(f"{name[:LONGEST_NAME]}-") and (request := request_of(folder)) is not None:
                    yield request

    def failures(self) -> list[Path]:
        """The folders of failed compiles, by name."""
        return sorted(folders_in(self.folder / "failed"))

    def _removable(self, root: Path) -> Iterator[Removable]:
        """All stages, kernels and failed compiles of a cache, which can be made again."""
        yield from stages_in(root, self._limit, root in (self._work, self.thinned)).removable()
        for folder in (*folders_in(root / "kernels"), *folders_in(root / "failed")):
            with contextlib.suppress(OSError):  # another process may remove it at any moment
                used = folder.stat().st_mtime
                yield Removable(folder_size(folder), used, partial(self.discard, folder))


def clear_cache(folder: Path) -> None:
    """Empty a cache folder, if there is one; what is not a cache's stays.

    Raises:
        SettingsError: the folder is no cache of ours.
        CacheError: something cannot be removed.
    """
    require_cache(folder)
    if folder.is_dir() and any(folder.iterdir()):
        store = KernelStore(folder, 0)
        store.require_removable()
        store.clear()
