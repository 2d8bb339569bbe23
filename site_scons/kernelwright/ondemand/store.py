"""TEMPORARY."""

from __future__ import annotations
import contextlib, fcntl, os, shutil, tempfile
from collections.abc import Iterator
from pathlib import Path
from ..core.files import open_lock
from ..state.cache import BuildCache


class KernelStore:
    def __init__(self, folder: Path, limit: int = 2 << 30, writable: bool = True) -> None:
        self.folder = self.work = folder
        self.limit = limit

    def stages(self, root: Path) -> BuildCache | None:
        return BuildCache(self.folder / "stages", self.limit)

    def find(self, name: str, key: str) -> Path | None:
        path = self.folder / "kernels" / f"{name}-{key[:16]}"
        return path if (path / "manifest.json").exists() else None

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        (self.folder / "scratch").mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=f".scratch-{os.getpid()}-", dir=self.folder / "scratch"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, name: str, key: str, scratch: Path) -> Path:
        path = self.folder / "kernels" / f"{name}-{key[:16]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(scratch, path)
        return path

    @contextlib.contextmanager
    def locked(self, key: str, timeout_s: float, on_wait=lambda: None) -> Iterator[None]:
        with os.fdopen(open_lock(self.folder / "locks" / f"{key}.lock"), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
