"""Finished kernels on a simulated disk: no edit is overlooked, however coarse its clock is."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kernelwright.core import files
from kernelwright.core.files import Stamp
from kernelwright.state import settled
from kernelwright.state.settled import Settled, is_current, read_settled, trusted_stamps, write_settled
from support.walks import spoil, walk

NAMES = ("a.py", "b.h")
START = 10**18 + 1
TICKS = {"ns": 1, "4 ms": 4_000_000, "s": 10**9, "2 s": 2 * 10**9}
"""How coarse the clocks of file systems are, in ns."""


class Walk(RuleBasedStateMachine):
    """Files whose contents are on the real disk, and whose times are those of a disk that is simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="kw-walk-"))
        self.now, self.key, self.tick = START, "key", 1
        self.stamps: dict[str, Stamp] = {}
        self.built: dict[str, dict[str, str]] = {}
        """Key -> contents of all files that its kernels were made of; only what was trusted."""
        fake = SimpleNamespace(stat=self.stat, path=os.path, sep=os.sep)
        clock = SimpleNamespace(time_ns=lambda: self.now)
        self.patches = [
            mock.patch.object(settled, "os", fake),
            mock.patch.object(settled, "time", clock),
            mock.patch.object(settled, "file_stamp", lambda path: self.stamp(str(path))),
            mock.patch.object(files, "time", clock),
        ]
        for patch in self.patches:
            patch.start()
        for name in NAMES:
            self.write(name, "1")

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        shutil.rmtree(self.top)

    def stamp(self, path: str) -> Stamp:
        name = path.rpartition("/")[2]
        if name not in self.stamps:
            raise FileNotFoundError(path)
        return self.stamps[name]

    def stat(self, path: str) -> SimpleNamespace:
        size, mtime, ctime, inode = self.stamp(path)
        return SimpleNamespace(st_size=size, st_mtime_ns=mtime, st_ctime_ns=ctime, st_ino=inode)

    def write(self, name: str, text: str) -> None:
        (self.top / name).write_text(text)
        now = self.now // self.tick * self.tick
        self.stamps[name] = (len(text), now, now, 1)

    def contents(self) -> dict[str, str]:
        return {name: (self.top / name).read_text() if name in self.stamps else "" for name in NAMES}

    names, texts = st.sampled_from(NAMES), st.sampled_from(["1", "2", "22"])

    @initialize(tick=st.sampled_from([*TICKS]))
    def on_a_disk(self, tick: str) -> None:
        self.tick = TICKS[tick]

    @rule(name=names, text=texts, set_back=st.booleans())
    def edit(self, name: str, text: str, set_back: bool) -> None:
        before = self.stamps.get(name)
        self.write(name, text)
        if set_back and before is not None:
            size, _, changed, inode = self.stamps[name]
            self.stamps[name] = (size, before[1], changed, inode)

    @rule(name=names)
    def remove(self, name: str) -> None:
        (self.top / name).unlink(missing_ok=True)
        self.stamps.pop(name, None)

    waits = st.sampled_from([0, 1, 3_000_000, 21_000_000, 10**9, 2_100_000_000])

    @rule(name=names, first=texts, second=texts, set_back=st.booleans(), waits=st.tuples(waits, waits, waits))
    def edit_build_edit(self, name: str, first: str, second: str, set_back: bool, waits: tuple[int, int, int]) -> None:
        """Twice in a short time, and between them a build."""
        self.wait(waits[0])
        self.edit(name, first, set_back)
        self.wait(waits[1])
        self.build("key", name, "")
        self.wait(waits[2])
        self.edit(name, second, set_back)

    @rule(later=waits)
    def wait(self, later: int) -> None:
        self.now += later

    @rule(key=st.sampled_from(["key", "other"]), name=names, text=st.sampled_from(["", "1", "2"]))
    def build(self, key: str, name: str, text: str) -> None:
        """A run finishes a kernel; perhaps a file is edited while it works, after it was read."""
        self.key, contents = key, self.contents()
        digests = {name: files.sha256_of(self.top / name) if name in self.stamps else "" for name in NAMES}
        if text:
            self.write(name, text)
            self.wait(2_100_000_000)
        stamps = trusted_stamps(str(self.top), digests)
        if stamps is not None:
            write_settled(self.top / "settled.json", Settled(key, {"a.py": stamps}))
            self.built = {key: contents}

    @rule(place=st.integers(0, 10_000), cut=st.booleans())
    def damage(self, place: int, cut: bool) -> None:
        spoil(self.top.glob("settled.json"), 0, place, cut)

    @invariant()
    def what_is_current_was_made_of_these_contents(self) -> None:
        for key in ("key", "other"):
            known = read_settled(self.top / "settled.json", key)
            assert known.files.keys() <= ({"a.py"} if key in self.built else set())
            if known.files and is_current(str(self.top), known.files["a.py"]):
                assert self.contents() == self.built[key]


def test_no_kernel_is_left_out_whose_files_are_not_what_it_was_made_of() -> None:
    walk(Walk, examples=40, steps=20)
