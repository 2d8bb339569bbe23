"""File systems of a test's own, and files that may not be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in a new folder, which is full soon; the test is skipped where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a file system that is full soon")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Let nothing be written any more in the folder of :func:`small_disk`."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def obedient() -> tuple[str, ...]:
    """A command prefix under which files' permissions count for root too."""
    if os.geteuid() != 0:
        return ()
    drop = "-dac_override,-dac_read_search"
    prefix = ("setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}")
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], check=False).returncode != 0:
        pytest.skip("root's right to ignore permissions cannot be dropped")
    return prefix


def allow_writing(top: Path, allowed: bool) -> None:
    for path in [top, *top.rglob("*")]:
        path.chmod((0o755 if path.is_dir() else 0o644) if allowed else (0o555 if path.is_dir() else 0o444))


def put_in_place(path: Path, kind: str, content: bytes = b"") -> None:
    """Put what is no file that a build wrote in the place of one."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(3 << 30)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to(path.with_name("nothing"))
    else:
        path.with_name("elsewhere").write_bytes(content)
        path.symlink_to(path.with_name("elsewhere"))
