"""Small file operations that several stages share: atomic writes, digests, canonical JSON."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .locks import hold, is_held, let_go

Stamp = tuple[int, int, int, int]
"""Size in bytes, times of the last change of the content and of the inode in ns, and inode number of a file."""


SCRATCH = ".scratch-"
"""What names of scratch files and folders begin with; the number of their process follows."""

COARSE_NS = 2_000_000_000
"""How long after a change a file's time may not have moved on, on a file system that counts seconds."""


def file_stamp(path: str | Path) -> Stamp:
    """What tells, without reading a file, that it may have changed. Raises OSError if it cannot be looked at.

    A program can set the modification time back, but not the inode's.
    """
    status = os.stat(path)  # noqa: PTH116 (called for every output, and pathlib is twice as slow)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def lasting_stamp(path: str | Path) -> Stamp:
    """The stamp of an output, to compare with in later runs. Raises OSError if it cannot be looked at.

    Where a file system counts times in seconds, a file that was just written may be changed without another stamp. Then
    the inode is 0, which no file has: the next run compares the content.
    """
    stamp = file_stamp(path)
    if stamp[2] % 1_000_000_000 or stamp[2] + COARSE_NS < time.time_ns():
        return stamp
    return (*stamp[:3], 0)


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no blanks. ASCII, so that it can always be encoded."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def pretty_json(value: Any) -> str:
    """JSON text for people and for diffs: in the given key order, one item per line, with a final newline."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    # A lone surrogate cannot be encoded; what takes its place is how JSON writes it.
    return text.encode("utf-8", "backslashreplace").decode()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. A link is followed. Raises OSError if it is no file with content."""
    digest = hashlib.sha256()
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        # Python gets memory for all that may be read. Most files are small.
        size = min(max(os.fstat(descriptor).st_size + 1, 1 << 12), 1 << 20)
        while block := os.read(descriptor, size):
            digest.update(block)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


LARGEST_RECORD = 256 << 20
"""Bytes that a file which a build reads back may have; what is larger is damage, and would fill the memory."""


def read_record(path: str | Path, limit: int = LARGEST_RECORD) -> bytes:
    """The content of a file that an earlier run wrote, into which anything may have been put since.

    Arguments:
        limit: bytes that it may have.

    Raises:
        OSError: it cannot be read, it is larger, or it is no file: a link, a pipe (which would keep the reader waiting
            for ever), a device or a folder.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(size + 1) if size <= limit else None
        # Only now up to the limit: Python gets memory for all that may be read.
        if content is not None and len(content) > size:
            content += stream.read(limit + 1 - len(content))
    if content is None or len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return content


def open_regular(path: str | Path, flags: int) -> int:
    """Open a file without waiting for anybody; its descriptor.

    Arguments:
        flags: as of ``os.open``; with ``O_NOFOLLOW`` a link is refused.

    Raises:
        OSError: it cannot be opened, or it is no regular file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a symbolic link"
        elif error.errno == errno.ENXIO:
            error.strerror = "it is not a regular file"
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def open_lock(path: Path) -> int:
    """The descriptor of a file for ``flock``, which is made if need be. Raises OSError if it is a link, or no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    make_way(path)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)


def linked_folder(base: str, folder: str) -> str | None:
    """The first symbolic link on the way from one folder to another one in it; None: there is none.

    ``base`` itself may be one: people put it on another disk. What is below it is made by builds, which make no links.
    But git does: it puts a link of a branch in the place of a folder that it ignores.
    """
    place = base
    for part in Path(folder).relative_to(base).parts:
        place = f"{place}{os.sep}{part}"
        if os.path.islink(place):  # noqa: PTH114
            return place
    return None


OUTPUT_FOLDERS = frozenset({"build", "dist"})
"""Folders in the project root that hold what a build makes."""


def folder_names(root: Path, name: str) -> list[str] | None:
    """The names in a folder that count for a definition that lists it, sorted; None if it cannot be listed.

    Names that begin with a dot (an editor's files among them), ``__pycache__`` and the build's own folders do not.

    Arguments:
        root: the project root.
        name: path relative to it, with a slash at the end; ``./`` is the root.
    """
    left_out = OUTPUT_FOLDERS if name == "./" else frozenset()
    try:
        names = os.listdir(root / name)  # noqa: PTH208
    except (OSError, ValueError):  # ValueError: there is a NUL in the name
        return None
    return sorted(n for n in names if not n.startswith(".") and n != "__pycache__" and n not in left_out)


def dependency_digest(root: Path, name: str) -> str:
    """SHA-256 of what a definition depends on, in hexadecimal; empty if it is absent or cannot be read.

    Arguments:
        root: the project root.
        name: path relative to it: of a file, whose content counts; or with a slash at the end, of a folder, whose names
            count as far as ``folder_names`` gives them.
    """
    if name.endswith("/"):
        names = folder_names(root, name)
        return "" if names is None else hashlib.sha256(os.fsencode("\n".join(names))).hexdigest()
    try:
        return sha256_of(root / name)
    except (OSError, ValueError):  # ValueError: there is a NUL in the name
        return ""


def digest_of(files: Iterable[Path]) -> str:
    """One digest of the names and contents of some files, wherever they are."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def make_way(path: str | Path) -> None:
    """Remove an empty folder that stands where a file is to be. One with content is somebody's, and stays."""
    with contextlib.suppress(OSError):
        os.rmdir(path)  # noqa: PTH106


def make_folder(path: str) -> None:
    """Make a folder and those that it is in, if they do not exist yet: ``os.makedirs`` with a third of its calls."""
    try:
        os.mkdir(path)  # noqa: PTH102
    except FileExistsError:
        if not os.path.isdir(path):  # noqa: PTH112
            raise
    except FileNotFoundError:
        make_folder(os.path.dirname(path))  # noqa: PTH120
        make_folder(path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that no reader, and no crash, ever sees a part of it."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    make_way(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{SCRATCH}{os.getpid()}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes files private; outputs are as readable as those of any compiler.
        os.chmod(name, 0o644)  # noqa: PTH101
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


@contextlib.contextmanager
def held_folder(folder: Path) -> Iterator[Path]:
    """A path that leads to a folder as it is now, whatever takes its place meanwhile, such as a link to elsewhere.

    Raises:
        OSError: there is no folder, or a link is in its place.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(folder)) from error
        raise
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def remove_stale_scratch(parent: Path) -> None:
    """Remove the scratch files and folders that processes have left behind in a folder when they were killed."""
    for path in parent.glob(f"{SCRATCH}*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new hidden folder in ``parent``, so that renaming out of it stays on one file system; removed at the end.

    It is locked meanwhile, as far as the file system can do that. So other processes can tell that it is in use, also
    those of another container, where process numbers say nothing.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{SCRATCH}{os.getpid()}-"))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            hold(lock)
        yield folder
    finally:
        if is_held(lock):  # not in a child that was forked meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            let_go(lock)
