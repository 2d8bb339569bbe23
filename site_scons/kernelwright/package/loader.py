"""Finds, verifies and loads the kernels of this package when they are first used.

Only the standard library is imported here; tvm-ffi comes in with the first kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kernel import Kernel

SCHEMA = 1


class Loader:
    """The kernels of one package: thread-safe, and usable after a fork.

    Arguments:
        folder: the package's folder.
        names: the kernels' names.
    """

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder = folder
        self._names = names
        self._kernels: dict[str, Kernel] = {}
        self._manifest: dict[str, Any] | None = None
        self._lock = threading.RLock()
        # A child of fork() has only the forking thread, so a lock that another thread holds would never be released.
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name, loaded once.

        Raises:
            AttributeError: the package has no such kernel.
            ImportError: a file is missing or was altered.
        """
        if name not in self._names:
            raise AttributeError(
                f"package {self._folder.name!r} has no kernel {name!r}; it has {', '.join(self._names)}"
            )
        with self._lock:
            if name not in self._kernels:
                self._kernels[name] = self._load(name)
            return self._kernels[name]

    def manifest(self) -> dict[str, Any]:
        """The content of manifest.json, read and verified once."""
        with self._lock:
            if self._manifest is None:
                self._manifest = read_manifest(self._folder / "manifest.json")
            return self._manifest

    def preload(self, device: Any = "cpu") -> None:
        """Load every kernel that is built for a kind of device, with its device code, ahead of the first call.

        Arguments:
            device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or an object whose ``str()`` is one of these.

        Raises:
            RuntimeError: the device, or its driver, cannot run a kernel; the message says why.
            ValueError: no kernel is built for devices of that kind.
        """
        kernels = [self.kernel(name) for name in self._names]
        kind = str(device).partition(":")[0]
        built = [kernel for kernel in kernels if kind in kernel.devices]
        for kernel in built or kernels[:1]:
            kernel.preload(device)

    def set_num_threads(self, count: int) -> None:
        """Set how many threads a parallel loop of a CPU kernel uses, for the whole process.

        Raises:
            ValueError: count is not a positive integer.
        """
        self.kernel(self._names[0]).set_num_threads(count)

    def num_threads(self) -> int:
        """How many threads a parallel loop of a CPU kernel uses."""
        return self.kernel(self._names[0]).num_threads()

    def _load(self, name: str) -> Kernel:
        entry = self.manifest()["kernels"][name]
        path = self._verified(entry["library"])
        self._verified("_runtime/kernel.py")
        # Imported here: tvm-ffi takes tens of milliseconds, and a second where PyTorch is installed.
        from .kernel import load_kernel

        return load_kernel(name, entry, path)

    def _verified(self, relative: str) -> Path:
        path = self._folder / relative
        expected = self.manifest()["files"][relative]["sha256"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ImportError(f"{path}: cannot be read ({error.strerror}); install the package again") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise ImportError(
                f"{path}: was altered, its content is not what manifest.json lists; install the package again"
            )
        return path


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify a manifest.

    Raises:
        ImportError: the file is missing, altered, or of another schema.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportError(f"{path}: cannot be read ({error.strerror}); install the package again") from error
    except ValueError as error:
        raise ImportError(f"{path}: is not valid JSON ({error}); install the package again") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise ImportError(f"{path}: has another schema than {SCHEMA}; install the package again")
    if manifest.get("digest") != manifest_digest(manifest):
        raise ImportError(f"{path}: was altered, its content does not fit its digest; install the package again")
    return manifest


def manifest_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's canonical JSON without its own ``digest``."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
