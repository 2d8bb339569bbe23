"""One tuner of a user at a time measures on a device of this machine: a second one waits, or ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.errors import SettingsError, Where
from ..core.files import open_lock

POLL_S = 0.2


def place_of(device: str) -> Path:
    """The file of a device's lock: the same one for all projects and checkouts of this user on this machine.

    It is in the folder for temporary files, which is the machine's own, where a home folder may be that of several.

    Arguments:
        device: ``cpu`` or ``cuda:0``.

    Raises:
        SettingsError: the folder is another user's, who could keep us waiting for ever.
    """
    folder = Path(tempfile.gettempdir(), f"kernelwright-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise SettingsError(f"{folder} is another user's", Where(stage="tune"), "set TMPDIR to a folder of your own")
    return folder / f"tune-{device.replace(':', '-')}.lock"


@contextlib.contextmanager
def locked(path: Path, what: str, waits: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a device. It ends with the process that holds it, however that ends.

    Arguments:
        path: its file.
        what: what is done meanwhile, for others to read.
        waits: whether to wait for another process.
        note: shows a line.

    Raises:
        SettingsError: another process has it, and is not waited for.
    """
    lock = open_lock(path)
    try:
        if not _taken(lock):
            message = f"another process tunes on this device: {_holder(path)}"
            if not waits:
                raise SettingsError(message, Where(stage="tune"), "wait for it, or leave --no-wait out")
            note(f"{message}; waiting for it")
            while not _taken(lock):
                time.sleep(POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"process": os.getpid(), "what": what, "since": time.ctime()}).encode(), 0)
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']}, {holder['what']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "one that has just begun"
