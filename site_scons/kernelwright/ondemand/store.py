"""The cache folder of compile on demand: compiled kernels, finished stages, and what failed compiles have left.

    CACHEDIR.TAG             says that the folder is a cache, and ours
    stages/ab/abcd...        entries of ``state/cache.py``, one for each finished stage
    kernels/<name>-<a>-<b>/  one compiled kernel: a manifest, and the files that it lists; made elsewhere, and renamed
    failed/<name>-<key>/     the sources of a failed compile, and log.txt
    locks/<key>.lock         who holds it compiles the kernel of that key; a lock ends with its process
    scratch/                 what is being made

Some files that decide a kernel are known only when its stages have run, as with the headers of a CUDA compiler. So it
is looked up in two steps, as in ``state/cache.py``: ``a`` is the begin of the key of what was asked for. The kernels of
that key tell which files their stages have read (``later.json``). The key, those names and the present digests of the
files give the key of the kernel itself, whose begin is ``b``. What is published stays until it is removed, and only a
damaged kernel is replaced. So a folder never has anything but what its name stands for.

Nothing in the folder is believed: a manifest has its own digest, and the digests of all files of its kernel. So the
folder can be deleted, mounted read-only, or baked into an image. If it cannot be written, work goes to a folder of the
process's own, and what others have put into the cache is still used.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import KernelwrightError, Where
from ..core.files import SCRATCH, held_folder, open_lock, read_record, write_atomically
from ..runtime.loader import DamageError, read_manifest, read_regular
from ..state.entry import MOST_LISTS, entry_key
from ..state.own_folder import mark_own, require_own
from .machine import REMEMBERED

if TYPE_CHECKING:
    from ..state.cache import BuildCache

FOLDER_VARIABLE = "KERNELWRIGHT_CACHE_DIR"

BUILD_CACHE = "build/.kernelwright/cache"
"""Where builds keep finished stages, if their settings do not say otherwise."""

LIMIT = 2 << 30
"""Bytes that a cache may have, if nothing else is said."""

KEY_SHOWN = 16
"""Digits of a key that are in names of folders; the whole key is in the manifest, under ``key``."""

LONGEST_NAME = 200
"""Characters of a kernel's name, or of a kernel and a variant, that are in the name of a folder."""

IN_USE_S = 60.0
"""A kernel that was used so recently is not removed to make room: somebody may be loading it."""

SHOW_WAIT_S = 1.0
"""After so long a wait for another process is worth a line."""

YOUNG_S = 10.0
"""A scratch folder that is younger may not be locked yet by the process that has made it."""

ROOM = 16 << 20
"""Bytes that a compile may need on a disk."""

PROBE_BYTES = 4096
"""Written to find out whether the disk has room at all."""

PLACE = Where(stage="cache")

AGAIN = "compile it again"
"""The remedy for a kernel whose files are damaged."""


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


def stages_behind(start: Path, environment: Mapping[str, str]) -> BuildCache | None:
    """The finished stages of compile on demand, for builds to read; None: there are none.

    Arguments:
        start, environment: as of :func:`cache_folder`.
    """
    from ..state.cache import BuildCache

    try:
        folder = cache_folder(start, environment) / "stages"
        is_there = folder.is_dir()
    except (CacheError, OSError):
        return None
    return BuildCache(folder, 0, writable=False, owned=True) if is_there else None


class PrivateFolders:
    """Folders of this process that are removed when it ends; not when a child of it does."""

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
"""Those of this process. It is made with the module, so that it ends after what writes into the folders at its end."""


class StoredAs(NamedTuple):
    """A compiled kernel in the cache: its folder, its whole key, and what its stages turned out to read."""

    folder: Path
    key: str
    later: Mapping[str, str]


class KernelStore:
    """The cache folder. Safe to use from several threads and processes at once, and after a fork.

    Arguments:
        folder: the cache; made when something is written first.
        limit: bytes that :meth:`trim` cuts it down to.
        writable: whether it may be written; if not, work goes to a folder of this process.

    Raises:
        SettingsError: there is something in the folder, and it is no cache of ours.
    """

    def __init__(self, folder: Path, limit: int = LIMIT, writable: bool = True) -> None:
        self.folder = folder
        self.problem: str | None = None
        self._told: str | None = None
        self.published = False
        self._limit = limit
        self._work: Path | None = None
        self._own: Path | None = None
        self._making = threading.Lock()
        self._held: set[int] = set()
        require_own(folder, "on-demand cache", FOLDER_VARIABLE, _is_cache)
        if not writable:
            self._become_private(None)
        os.register_at_fork(after_in_child=self._after_fork)

    @classmethod
    def private(cls) -> KernelStore:
        """A store that reads nothing of earlier runs, and of which nothing stays."""
        store = cls(PRIVATE.make(), 1 << 50)
        store._work = store._own = store.folder
        return store

    @property
    def work(self) -> Path:
        """Where this process writes: the cache, or a folder of its own that goes when it ends; see :attr:`problem`."""
        if self._work is None:
            with self._making:
                if self._work is None:
                    self._prepare()
        assert self._work is not None
        return self._work

    def gives_way(self, error: BaseException) -> bool:
        """Whether work has failed because the disk of the cache is full. Then a folder of this process takes its place.

        What a compiler says of a full disk is words, so the room that is left is looked at.
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
        """Why the cache cannot be written, for the user: the first time that somebody asks, if there is a reason."""
        self._told, told = self.problem, self._told
        return self.problem if self.problem != told else None

    @property
    def lasting(self) -> bool:
        """Whether what is written stays when this process ends."""
        return self.work == self.folder and self._own is None

    def find(self, name: str, key: str, current: Callable[[str], str]) -> StoredAs | None:
        """A compiled kernel whose manifest and list of files are intact; None: there is none.

        Its other files are compared with the manifest by whoever loads them.

        Arguments:
            key: that of what is asked for.
            current: gives the present digest of a file that stages turned out to read while they ran.
        """
        digest, roots = functools.cache(current), dict.fromkeys((self._work or self.folder, self.folder))
        for names in _sets_read(roots, name, key):
            later = {read: digest(read) for read in names}
            entry = entry_key(key, later)
            for root in roots:
                found = kernel_folder(root, name, key, entry)
                if later_of(found) == later and _has_key(found, entry):
                    with contextlib.suppress(OSError):
                        os.utime(found)
                    return StoredAs(found, entry, later)
        return None

    def publish(self, name: str, key: str, entry: str, scratch: Path) -> Path:
        """Put a finished folder in its place by renaming it.

        If another process was first with one that is intact, that one stays and is returned; both have what the key
        stands for. A damaged one makes way; who has opened its files keeps them.

        Arguments:
            key: that of what was asked for.
            entry: that of the kernel, which its manifest has.
            scratch: the folder, out of :meth:`scratch`.

        Raises:
            CacheError: the folder cannot be put there.
        """
        final = kernel_folder(self.work, name, key, entry)
        with self._refusing(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    _put(scratch, final)
                    break
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                        raise
                if _has_key(final, entry) and not damage(final):
                    return final
                self.discard(final)
            self.published = True
            os.utime(final)
        return final

    def fail(self, name: str, key: str, scratch: Path, log_text: str) -> Path:
        """Keep what a failed compile has left, with its log, and nothing of an earlier one of the same key.

        Where the log names files of ``scratch``, it names them in their new place.

        Raises:
            CacheError: it cannot be kept.
        """
        final = self.work / "failed" / folder_name(name, key)
        with self._refusing(final):
            text = log_text.replace(str(scratch), str(final))
            (scratch / "log.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
            final.parent.mkdir(parents=True, exist_ok=True)
            while True:
                self.discard(final)
                try:
                    _put(scratch, final)
                    break
                except OSError as error:  # another process was faster
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
            self.published = True
        return final

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A new folder of that name on the file system of the cache; it is removed at the end, unless it was renamed.

        Raises:
            CacheError: it cannot be made.
        """
        with self._refusing(self.work / "scratch"):
            outer, lock = self._scratch_folder()
        try:
            inner = outer / name[:LONGEST_NAME]
            with self._refusing(inner):
                inner.mkdir()
            yield inner
        finally:
            if lock in self._held:  # not in a child that was forked meanwhile
                shutil.rmtree(outer, ignore_errors=True)
                self._let_go(lock)

    @contextlib.contextmanager
    def locked(
        self, key: str, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Hold the lock of a key: nobody else compiles that kernel meanwhile, in this process or in another one.

        Where nothing can be locked, as on some network file systems, no lock is taken: a kernel is then perhaps
        compiled twice, and the first result counts.

        Arguments:
            timeout_s: how long to wait for another holder.
            on_wait: called once, if the wait is longer than a second.
            given_up: asked again and again whether the lock is wanted no longer.

        Raises:
            CacheError: another process holds it for longer, or the wait was given up.
        """
        path = self.work / "locks" / f"{key}.lock"
        lock = self._lock(path, timeout_s, on_wait, given_up)
        try:
            yield
        finally:
            if lock in self._held:  # not in a child that was forked meanwhile
                # Those who wait for this file see that it is gone, and take the lock of the next one.
                with contextlib.suppress(OSError):
                    if os.fstat(lock).st_ino == path.stat().st_ino:
                        path.unlink()
                self._let_go(lock)

    def stages(self, root: Path | None = None, cache_dir: str = BUILD_CACHE) -> BuildCache:
        """The cache of finished stages. Behind it is the build cache of a project, which is never written here.

        Arguments:
            root: the project's folder; None: there is no project.
            cache_dir: the setting of that name; empty: the project has no build cache.
        """
        from ..state.cache import BuildCache

        of_builds, ours, working = (root or self.folder) / cache_dir, self.folder / "stages", self.work / "stages"
        read_only = partial(BuildCache, limit=self._limit, writable=False, owned=True)
        behind = (lambda: read_only(of_builds)) if root and cache_dir else (lambda: None)
        if working == ours:
            return BuildCache(working, self._limit, owned=True, behind=behind)
        return BuildCache(working, self._limit, owned=True, behind=lambda: read_only(ours, behind=behind))

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
        items = sorted(self._items(self.work), key=lambda item: item[1])
        excess = sum(size for size, _, _ in items) - limit
        recent = time.time() - IN_USE_S
        removed = 0
        for size, used, remove in items:
            if removed >= excess:
                break
            if used < recent:
                remove()
                removed += size
        return removed

    def size(self) -> int:
        """Bytes of all stages, kernels and failed compiles."""
        return sum(size for size, _, _ in self._items(self.folder))

    def discard(self, found: Path) -> None:
        """Remove a folder of a kernel or of a failed compile, in one step for those who look for it.

        Raises:
            CacheError: it cannot be removed.
        """
        with (
            self._refusing(found),
            self.scratch("discarded") as scratch,
            contextlib.suppress(FileNotFoundError),
            held_folder(found.parent) as held,
        ):
            (held / found.name).rename(scratch / found.name)

    def clear(self) -> None:
        """Remove all that a cache can have been given, and nothing else.

        Others may be using it: what they are making stays, and what they have loaded.

        Raises:
            CacheError: something cannot be removed.
        """
        for _, _, remove in list(self._items(self.work)):
            remove()
        with self._refusing(self.work):
            for name in RECORDS:
                with contextlib.suppress(FileNotFoundError):
                    (self.work / name).unlink()
            for name in RECORD_FOLDERS:
                folder = self.work / name
                if folder.is_dir() and not folder.is_symlink():
                    self.discard(folder)
        self._remove_stale_locks()

    def kernels(self) -> list[Path]:
        """The folders of the kernels in the cache, intact or not, by name."""
        return sorted(_folders(self.folder / "kernels"))

    def failures(self) -> list[Path]:
        """The folders of failed compiles, by name."""
        return sorted(_folders(self.folder / "failed"))

    def error(self, reason: OSError, place: Path) -> CacheError:
        """The error for what the operating system did not do in the cache."""
        text = f"the cache folder cannot be used: {reason.strerror or reason} ({reason.filename or place})"
        return CacheError(text, PLACE, _remedy(reason))

    def _items(self, root: Path) -> Iterator[tuple[int, float, Callable[[], None]]]:
        """Size, time of the last use in seconds, and what removes it, of all that can be made again in a cache."""
        from ..state.cache import BuildCache

        stages = BuildCache(root / "stages", self._limit, root == self._work, owned=True)
        for size, used_ns, path in stages.entries():
            yield size, used_ns / 1e9, partial(stages.remove, path)
        for folder in (*_folders(root / "kernels"), *_folders(root / "failed")):
            with contextlib.suppress(OSError):  # another process may remove it at any moment
                yield folder_size(folder), folder.stat().st_mtime, partial(self.discard, folder)

    def _prepare(self) -> None:
        """Make the cache, or find out why it cannot be written."""
        try:
            mark_own(self.folder)
            if not (self.folder / IGNORE).exists():
                write_atomically(self.folder / IGNORE, "*\n")
            for name in MADE_FIRST:
                (self.folder / name).mkdir(exist_ok=True)
            linked = next((name for name in FOLDERS if (self.folder / name).is_symlink()), None)
            if linked is not None:
                raise OSError(errno.ELOOP, "it is a symbolic link", str(self.folder / linked))
            with tempfile.TemporaryFile(dir=self.folder / "scratch", buffering=0) as probe:
                # An incomplete write is no error of its own; the next one is.
                while (written := probe.tell()) < PROBE_BYTES:
                    probe.write(bytes(PROBE_BYTES - written))
            self._remove_stale_scratch()
            self._work = self.folder
        except OSError as error:
            self._become_private(error)

    def _become_private(self, error: OSError | None) -> None:
        """Work in a folder of this process's own from now on, which begins with what was found out earlier."""
        self._own = PRIVATE.make()
        for name in RECORDS:
            with contextlib.suppress(OSError):
                (self._own / name).write_bytes(read_record(self.folder / name))
        for name in RECORD_FOLDERS:
            with contextlib.suppress(OSError):
                shutil.copytree(self.folder / name, self._own / name, symlinks=True)
        # A folder that may not be written was copied with that.
        for path in (self._own, *self._own.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)

        self._work = self._own
        if error is not None:
            self.problem = (
                f"the cache folder {self.folder} cannot be written: {error.strerror or error}; what is compiled now is "
                f"compiled again by the next process. {_remedy(error)}"
            )

    def _scratch_folder(self) -> tuple[Path, int]:
        """A new scratch folder, and the descriptor that locks it: whose lock is free was left by a dead process."""
        folder = self.work / "scratch"
        folder.mkdir(parents=True, exist_ok=True)
        outer = Path(tempfile.mkdtemp(dir=folder, prefix=f"{SCRATCH}{os.getpid()}-"))
        lock = os.open(outer, os.O_RDONLY | os.O_DIRECTORY)
        self._held.add(lock)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return outer, lock

    def _remove_stale_scratch(self) -> None:
        """Remove what killed processes have left. Their numbers say nothing: they may be those of another container."""
        for path in (self.folder / "scratch").glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):
                if path.is_symlink() or path.stat().st_mtime > time.time() - YOUNG_S:
                    continue
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)

    def _remove_stale_locks(self) -> None:
        """Remove the files of locks that nobody holds."""
        for path in (self.work / "locks").glob("*.lock"):
            with contextlib.suppress(OSError):
                lock = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(lock)

    def _lock(self, path: Path, timeout_s: float, on_wait: Callable[[], None], given_up: Callable[[], bool]) -> int:
        """The descriptor of a lock that is held now; -1: nothing can be locked there."""
        begin = time.monotonic()
        pause, told = 0.005, False
        while True:
            if given_up():
                raise CacheError("the compile was ended before it began", PLACE)
            try:
                lock = self._try_lock(path)
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

    def _try_lock(self, path: Path) -> int | None:
        """The descriptor of a lock if it is free; None if it is not. Raises OSError if nothing can be locked there."""
        lock = open_lock(path)
        self._held.add(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == path.stat().st_ino:
                with contextlib.suppress(OSError):  # who it is, is only for messages
                    os.truncate(lock, 0)
                    os.write(lock, str(os.getpid()).encode())
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            self._let_go(lock)
            raise
        # Somebody holds it, or its last holder removed the file after we opened it.
        self._let_go(lock)
        return None

    def _let_go(self, lock: int) -> None:
        self._held.discard(lock)
        # Closing is not enough: a child that was forked meanwhile may have the descriptor, too.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

    def _after_fork(self) -> None:
        """In a child: let go of the parent's locks, which would otherwise outlive the parent; the parent keeps them."""
        for lock in self._held:
            with contextlib.suppress(OSError):
                os.close(lock)
        self._held = set()
        self._making = threading.Lock()

    @contextlib.contextmanager
    def _refusing(self, place: Path) -> Iterator[None]:
        """Make a CacheError of what the operating system refuses."""
        try:
            yield
        except OSError as error:
            raise self.error(error, place) from error


FOLDERS = ("stages", "kernels", "failed", "locks", "scratch", "discovery")
"""The folders in a cache."""

MADE_FIRST = ("kernels", "locks", "scratch")
"""Those that each cache has."""

IGNORE = ".gitignore"
"""The cache is in a git tree as a rule; with this file in it, it is no news there."""

RECORDS = ("toolchain.json", "measurements.json", REMEMBERED)
"""Files in it that are found out again when they are missing."""

RECORD_FOLDERS = ("discovery",)


LATER = "later.json"
"""The file of a kernel's folder that lists which files its stages turned out to read, with their digests."""


def kernel_folder(root: Path, name: str, key: str, entry: str) -> Path:
    """Where a compiled kernel is in a cache, by the key of what was asked for and by its own."""
    return root / "kernels" / f"{folder_name(name, key)}-{entry[:KEY_SHOWN]}"


def folder_name(name: str, key: str) -> str:
    """The name of a folder for a kernel, readable and different for each key."""
    return f"{name[:LONGEST_NAME]}-{key[:KEY_SHOWN]}"


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or what it was made of, is that of the operating system for a disk without room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def _has_key(folder: Path, key: str) -> bool:
    """Whether a folder has an intact manifest with that key."""
    try:
        return bool(read_manifest(folder / "manifest.json").get("key") == key)
    except ImportError:
        return False


def _put(made: Path, place: Path) -> None:
    """Give a folder its place. Raises OSError if that is not free, or if a link is where it would be."""
    with held_folder(place.parent) as held:
        made.rename(held / place.name)


def _sets_read(roots: Iterable[Path], name: str, key: str) -> Iterator[tuple[str, ...]]:
    """The sets of files that stages turned out to read for a key: none at all, and then those used last first."""
    yield ()
    begin, found = f"{folder_name(name, key)}-", list[tuple[float, Path]]()
    for root in roots:
        with contextlib.suppress(OSError), os.scandir(root / "kernels") as items:
            found += [(item.stat().st_mtime, Path(item.path)) for item in items if item.name.startswith(begin)]
    sets = (tuple(sorted(later_of(folder) or ())) for _, folder in sorted(found, reverse=True))
    yield from list(dict.fromkeys(filter(None, sets)))[:MOST_LISTS]


def later_of(folder: Path) -> dict[str, str] | None:
    """The files that the stages of a compiled kernel turned out to read, and their digests; None: that is not there."""
    try:
        listed = json.loads(read_regular(folder / LATER))
        return {str(name): str(digest) for name, digest in listed.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def damage(folder: Path) -> list[str]:
    """What is wrong with a kernel's folder: a line for each file that is missing or altered; empty: it is intact."""
    from ..core.files import sha256_of

    try:
        manifest = read_manifest(folder / "manifest.json")
    except DamageError as error:
        return [error.problem]
    files: Any = manifest.get("files")
    if not isinstance(files, dict):
        return [f"{folder / 'manifest.json'}: lists no files"]
    problems = []
    for relative, described in files.items():
        if relative.startswith("/") or ".." in relative.split("/"):
            problems.append(f"{folder / 'manifest.json'}: lists {relative!r}, which is outside of the folder")
            continue
        try:
            found = sha256_of(folder / relative)
        except (OSError, ValueError) as error:
            problems.append(f"{folder / relative}: cannot be read ({getattr(error, 'strerror', None) or error})")
            continue
        if not isinstance(described, dict) or found != described.get("sha256"):
            problems.append(f"{folder / relative}: was altered")
    return problems


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder and in those below it. Raises OSError if one disappears meanwhile."""
    return sum(_file_sizes(folder).values())


def _file_sizes(folder: Path) -> dict[int, int]:
    """Inode -> bytes: the library of a kernel is in two places, and takes room once."""
    sizes: dict[int, int] = {}
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                sizes |= _file_sizes(Path(item.path))
            else:
                sizes[item.inode()] = item.stat(follow_symlinks=False).st_size
    return sizes


def clear_cache(folder: Path) -> None:
    """Empty a cache folder, if there is one; what is not a cache's stays.

    Raises:
        SettingsError: the folder is no cache of ours.
        CacheError: something cannot be removed.
    """
    require_own(folder, "on-demand cache", FOLDER_VARIABLE, _is_cache)
    if folder.is_dir() and any(folder.iterdir()):
        store = KernelStore(folder, 0)
        if not store.lasting:
            raise CacheError(store.problem or f"{folder} cannot be written", PLACE)
        store.clear()


def _is_cache(names: Collection[str]) -> bool:
    """Whether these are the names in a cache of ours, and of nothing else."""
    return {*names} >= {*MADE_FIRST} and {*names} <= {*FOLDERS, *RECORDS, IGNORE}


def _folders(parent: Path) -> Iterator[Path]:
    """The folders that a store has made in one of its own: no links, and nothing of another form."""
    if parent.is_symlink():
        return
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            tail = path.name.rpartition("-")[2]
            made_here = len(tail) == KEY_SHOWN and not set(tail) - set("0123456789abcdef")
            if made_here and path.is_dir() and not path.is_symlink():
                yield path


def _holder(path: Path) -> str:
    """Who holds a lock, as far as its file tells."""
    try:
        number = read_record(path, 1 << 10).decode()[:20]
    except (OSError, UnicodeDecodeError):
        number = ""
    return f"process {number}" if number.isdecimal() else "another process"


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"make room on the disk (kernelwright cache prune), or set {FOLDER_VARIABLE} to a folder on another one"
    return f"set {FOLDER_VARIABLE} to a folder that can be written"
