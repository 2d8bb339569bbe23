"""Small file operations that several stages share: atomic writes, digests, canonical JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def pretty_json(value: Any) -> str:
    """JSON text for people and for diffs: in the given key order, one item per line, with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(files: Iterable[Path]) -> str:
    """One digest of the names and contents of some files, wherever they are."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that no reader, and no crash, ever sees a part of it."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


def remove_stale_scratch(parent: Path) -> None:
    """Remove the scratch folders of processes that were killed."""
    for folder in parent.glob(".scratch-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new hidden folder in ``parent``, so that renaming out of it stays on one file system; removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".scratch-{os.getpid()}-") as name:
        yield Path(name)
