"""SCons's CacheDir with a digest in each entry, so that a damaged entry is a miss and never an output."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import SCons.CacheDir

DIGEST_SIZE = hashlib.sha256().digest_size


class VerifiedCacheDir(SCons.CacheDir.CacheDir):  # type: ignore[misc]
    """An entry is the file's content followed by its SHA-256; one that does not fit is removed and made again."""

    def retrieve(self, node: Any) -> bool:
        """Retrieve a node, or say that it is not in the cache."""
        if not self.is_enabled():
            return False
        entry = Path(self.cachepath(node)[1])
        if entry.exists() and content_of(entry) is None:
            with contextlib.suppress(OSError):
                entry.unlink()
            return False
        return bool(super().retrieve(node))

    @classmethod
    def copy_to_cache(cls, env: Any, src: str, dst: str) -> str:
        """Write an entry; SCons renames it into place."""
        content = Path(src).read_bytes()
        Path(dst).write_bytes(content + hashlib.sha256(content).digest())
        return dst

    @classmethod
    def copy_from_cache(cls, env: Any, src: str, dst: str) -> str:
        """Write the content of an entry.

        Raises:
            OSError: the entry was damaged since it was looked at.
        """
        content = content_of(Path(src))
        if content is None:
            raise OSError(f"{src}: the entry is damaged; remove it")
        Path(dst).write_bytes(content)
        return dst


def content_of(entry: Path) -> bytes | None:
    """The content of an entry, or None if it cannot be read or does not fit its digest."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    content, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
    return content if hashlib.sha256(content).digest() == digest else None
