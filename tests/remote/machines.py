"""Machines that share a remote cache: each has a build cache of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kernelwright.define.settings import Settings
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import key_of
from kernelwright.state.remote_client import RemoteCache
from kernelwright.state.remote_opening import open_remote

KEY = key_of("a stage", [("device.cu", "0" * 64)])
OTHER = key_of("another stage", [])
FILES = {"a.cubin": bytes(range(256)) * 16, "b.json": b"{}", "empty": b""}
"""What a stage makes."""


class Machine:
    """A machine with a build cache of its own, and the remote cache of all."""

    def __init__(self, folder: Path, address: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.said = folder, list[str]()
        self.environment = {name: settings.pop(name) for name in list(settings) if name.isupper()}
        self.settings = Settings(**{"remote_cache": address, "remote_mode": "read-write", **settings})
        self.remote = self.open()
        self.cache = BuildCache(folder / "cache", 1 << 30, owned=True, remote=lambda: self.remote)

    def open(self) -> RemoteCache:
        opened = open_remote(self.settings, self.folder, self.environment, self.said.append)
        assert opened is not None, self.said
        return opened

    def store(self, files: Mapping[str, bytes] = FILES, key: str = KEY, later: Mapping[str, str] | None = None) -> None:
        """Keep the outputs of a stage, as a build does."""
        self.cache.store(key, self.written(files), list(files), later or {})

    def written(self, files: Mapping[str, bytes] = FILES) -> Path:
        """A folder with what a stage has made."""
        folder = self.folder / "made"
        folder.mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return folder

    def fetched(self, key: str = KEY, current: Callable[[str], str] = lambda name: "") -> dict[str, bytes] | None:
        """The outputs of a stage, as a build gets them."""
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        if self.cache.fetch(key, out, list(FILES), current) is None:
            return None
        return {name: (out / name).read_bytes() for name in FILES}


@contextlib.contextmanager
def machine(folder: Path, address: str, **settings: str) -> Iterator[Machine]:
    made = Machine(folder, address, **settings)
    try:
        yield made
    finally:
        made.remote.close(10)


def fill(
    folder: Path,
    address: str,
    later: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] = FILES,
    key: str = KEY,
    **settings: str,
) -> None:
    """Have another machine make what the tests ask for."""
    with machine(folder, address, **settings) as writer:
        writer.store(files, key, later)
