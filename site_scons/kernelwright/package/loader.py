"""Finds, verifies and loads the kernels of this package when they are first used.

Only the standard library is imported here; tvm-ffi comes in with the first kernel.
"""

from __future__ import annotations

import os
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing and pathlib would take most of this module's time
    from pathlib import Path
    from typing import Any

    from .kernel import Kernel

SCHEMA = 2
"""Revision of the manifest's format."""

DIGEST_LINE = '\n "digest": '
"""Begins the last line of a manifest; the digest is that of all that comes before the comma in front of it."""


class Loader:
    """The kernels of one package: thread-safe, and usable after a fork.

    Arguments:
        module: path of the package's ``__init__.py``.
        names: the kernels' names.
    """

    def __init__(self, module: str, names: tuple[str, ...]) -> None:
        self._module = module
        self._names = names
        self._kernels: dict[str, Kernel] = {}
        self._manifest: dict[str, Any] | None = None
        self._lock = threading.RLock()
        # A child of fork() has only the forking thread, so a lock that another thread holds would never be released.
        os.register_at_fork(after_in_child=self._renew_lock)

    @property
    def _folder(self) -> Path:
        """The package's folder."""
        from pathlib import Path

        return Path(self._module).resolve().parent

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
        kernels = self.manifest().get("kernels")
        entry = kernels.get(name) if isinstance(kernels, dict) else None
        if entry is None or not _is_entry(entry):
            place = self._folder / "manifest.json"
            raise ImportError(f"{place}: has no kernel {name!r} in the form of schema {SCHEMA}")
        path = self._verified(entry["library"])
        self._verified("_runtime/kernel.py")
        # Imported here: tvm-ffi takes tens of milliseconds, and a second where PyTorch is installed.
        from .kernel import load_kernel

        kernel = load_kernel(name, entry, path)
        if "device_code" in self.manifest() and "cuda" in kernel.devices:
            self._verified("_runtime/provider.py")
            from .provider import Provider

            kernel.find_device_code(Provider(self._folder, self.manifest(), name).find)
        return kernel

    def _verified(self, relative: str) -> Path:
        import hashlib

        files = self.manifest().get("files")
        listed = files.get(relative) if isinstance(files, dict) else None
        expected = listed.get("sha256") if isinstance(listed, dict) else None
        # A digest finds damage and no malice, but a manifest should not reach for what is outside of its package.
        if expected is None or "\0" in relative or relative.startswith("/") or ".." in relative.split("/"):
            raise ImportError(f"{self._folder / 'manifest.json'}: does not list {relative!r} as a file of the package")
        path = self._folder / relative
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ImportError(f"{path}: cannot be read ({error.strerror}); install the package again") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise ImportError(
                f"{path}: was altered, its content is not what manifest.json lists; install the package again"
            )
        return path


def _is_entry(entry: Any) -> bool:
    """Whether a kernel's part of the manifest has all that is used of it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("variants"), list):
        return False
    texts = all(isinstance(entry.get(key), str) for key in ("doc", "library"))
    return texts and bool(entry["variants"]) and all(_is_variant(variant) for variant in entry["variants"])


def _is_variant(variant: Any) -> bool:
    if not isinstance(variant, dict) or not isinstance(variant.get("units"), list):
        return False
    units = all(isinstance(unit, dict) and isinstance(unit.get("target"), str) for unit in variant["units"])
    return units and isinstance(variant.get("slug"), str) and isinstance(variant.get("config"), dict)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify a manifest.

    Raises:
        ImportError: the file is missing, altered, or of another schema.
    """
    import hashlib
    import json

    try:
        content = path.read_bytes()
        manifest = json.loads(content)
    except OSError as error:
        raise ImportError(f"{path}: cannot be read ({error.strerror}); install the package again") from error
    except (ValueError, RecursionError) as error:
        raise ImportError(f"{path}: is not valid JSON ({error}); install the package again") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise ImportError(f"{path}: has another schema than {SCHEMA}; install the package again")
    covered, line, rest = content.rpartition(b"," + DIGEST_LINE.encode())
    if not line or rest != f'"{hashlib.sha256(covered).hexdigest()}"\n}}\n'.encode():
        raise ImportError(f"{path}: was altered, its content does not fit its digest; install the package again")
    return manifest
