"""File systems of a test's own."""

from __future__ import annotations

import contextlib
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
