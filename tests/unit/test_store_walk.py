"""The cache folder of compile on demand beside a model of it: checkouts share it, and things happen to it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kernelwright.ondemand.kernel_folders import LATER, damage
from kernelwright.ondemand.store import KernelStore
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.state.entry import entry_key
from support.walks import walk

KEYS = [digit * 64 for digit in "abb"]
"""Keys of what is asked for; the second one is asked for more often."""

NAMES = ("early/k.h", "late/k.h")
VALUES = ("", "1", "2")
"""Contents of a file; empty: it is not there."""


def read_by(key: str, files: dict[str, str]) -> dict[str, str]:
    """The files that the stages of a key read: which these are depends on the key, and on what they read before."""
    if key == KEYS[0]:
        return {}
    return files if not files["early/k.h"] else {"early/k.h": files["early/k.h"]}


def content(key: str, read: dict[str, str]) -> bytes:
    """What is made of that."""
    return json.dumps([key, read]).encode()


class CacheWalk(RuleBasedStateMachine):
    """Two processes, each in a checkout of its own, compile what they need; others damage and remove it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kw-walk-"))
        self.stores = [KernelStore(self.folder / "cache", 1 << 20) for _ in range(2)]
        self.files = [dict.fromkeys(NAMES, "1") for _ in range(2)]
        self.there: set[tuple[str, str]] = set()  # key and entry of what must be found
        self.held: dict[Path, bytes] = {}
        self.damaged: set[Path] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    who = st.integers(0, 1)
    keys = st.sampled_from(KEYS)

    @initialize(key=keys)
    def first(self, key: str) -> None:
        self.compile(0, key)

    @rule(who=who, name=st.sampled_from(NAMES), value=st.sampled_from(VALUES))
    def edit(self, who: int, name: str, value: str) -> None:
        self.files[who][name] = value

    @rule(who=who, key=keys)
    def compile(self, who: int, key: str) -> None:
        """A process needs a kernel: it looks for it, and compiles it if it is not there, or damaged."""
        store, files = self.stores[who], self.files[who]
        read = dict(read_by(key, files))
        found = store.find("scale", key, files.__getitem__)
        expected = entry_key(key, read)
        assert ((key, expected) in self.there) <= (found is not None), "what was kept is found again"
        assert found is None or found.key == expected
        folder = found.folder if found and not damage(found.folder) else self.publish(who, key)
        assert (folder / "library").read_bytes() == content(key, read)
        self.held[folder] = content(key, read)

    @rule(who=who, key=keys)
    def compile_at_once(self, who: int, key: str) -> None:
        """A process has not seen that there is one by now."""
        self.publish(who, key)

    def publish(self, who: int, key: str) -> Path:
        read = dict(read_by(key, self.files[who]))
        entry = entry_key(key, read)
        with self.stores[who].scratch("scale") as scratch:
            texts = {"library": content(key, read), LATER: json.dumps(read).encode()}
            listed = {name: {"sha256": sha256(text).hexdigest(), "size": len(text)} for name, text in texts.items()}
            texts["manifest.json"] = sealed_document({"schema": SCHEMA, "key": entry, "files": listed}).encode()
            for name, text in texts.items():
                (scratch / name).write_bytes(text)
            folder = self.stores[who].publish("scale", key, entry, scratch)
        assert damage(folder) == []
        self.there.add((key, entry))
        self.held[folder] = content(key, read)
        self.damaged.discard(folder)
        return folder

    @rule(data=st.data(), name=st.sampled_from(["library", LATER, "manifest.json"]), gone=st.booleans())
    def damage(self, data: st.DataObject, name: str, gone: bool) -> None:
        if kernels := self.stores[0].kernels():
            folder = data.draw(st.sampled_from(kernels))
            if gone:
                (folder / name).unlink(missing_ok=True)
            else:
                (folder / name).write_bytes(b"[]")
            self.damaged.add(folder)
            self.forget(folder)

    @rule(data=st.data(), who=who)
    def discard(self, data: st.DataObject, who: int) -> None:
        if kernels := self.stores[0].kernels():
            folder = data.draw(st.sampled_from(kernels))
            self.stores[who].discard(folder)
            self.forget(folder)

    @rule(who=who)
    def prune(self, who: int) -> None:
        """All that was used is old; a part of it goes."""
        store = self.stores[who]
        for number, folder in enumerate(store.kernels()):
            os.utime(folder, (number, number))
        store.prune(store.size() // 2)
        for folder in set(self.held) - set(store.kernels()):
            self.forget(folder)

    @rule(who=who)
    def clear(self, who: int) -> None:
        self.stores[who].clear()
        self.there.clear()

    def forget(self, folder: Path) -> None:
        """What is not there as it was need not be found."""
        self.there = {(key, entry) for key, entry in self.there if not folder.name.endswith(f"-{entry[:16]}")}

    @invariant()
    def nothing_has_the_content_of_another(self) -> None:
        for folder, was in self.held.items():
            library = folder / "library"
            assert folder in self.damaged or not library.exists() or library.read_bytes() == was


def test_each_kernel_is_found_by_what_it_was_made_of_whatever_happens_to_the_cache() -> None:
    walk(CacheWalk, examples=30, steps=30)
