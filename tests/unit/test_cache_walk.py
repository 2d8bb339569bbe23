"""The build cache with a remote cache beside a model of both: machines share it, and things happen to it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from kernelwright.state.cache import BuildCache
from remote.machines import FILES, Machine
from support.walks import spoil, walk

KEYS = [digit * 64 for digit in "abb"]
NAMES = ("early.h", "late.h")
VALUES = ("", "1", "2")
"""Contents of a file; empty: it is not there."""

Read = dict[str, str]


def read_by(key: str, files: Read) -> Read:
    """The files that a stage of a key reads: which these are depends on the key, and on what it read before."""
    if key == KEYS[0]:
        return {}
    return dict(files) if not files["early.h"] else {"early.h": files["early.h"]}


def outputs(key: str, read: Read) -> dict[str, bytes]:
    """What is made of that."""
    return {name: f"{name} {key} {sorted(read.items())}".encode() for name in FILES}


class Walk(RuleBasedStateMachine):
    """Two machines build what they need, and others damage and remove it. The second only reads the remote cache."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kw-walk-"))
        self.files = [dict.fromkeys(NAMES, "1") for _ in range(2)]
        self.here: list[set[tuple[str, str]]] = [set(), set()]
        """What each must find in its own cache: keys, with what was read."""
        self.far: set[tuple[str, str]] = set()
        """What all must find in the remote one."""
        self.sent: set[tuple[str, str]] = set()
        """What is there when the process of the first machine has ended."""
        self.is_damaged = False
        """Whether the remote cache is: its objects are never replaced, so nothing needs to be found from then on."""
        self.machines = [self.started(0), self.started(1)]

    def started(self, who: int) -> Machine:
        (self.folder / "far").mkdir(exist_ok=True)
        return Machine(self.folder / str(who), str(self.folder / "far"), remote_mode="read" if who else "read-write")

    def teardown(self) -> None:
        for machine in self.machines:
            machine.remote.close(10)
        shutil.rmtree(self.folder)

    who, keys, places = st.integers(0, 1), st.sampled_from(KEYS), st.integers(0, 10_000)

    @rule(who=who, key=keys, name=st.sampled_from(NAMES), value=st.sampled_from(VALUES), ahead=st.booleans())
    def edit(self, who: int, key: str, name: str, value: str, ahead: bool) -> None:
        """A file changes, perhaps after it was asked ahead for what was made of the old one."""
        if ahead:
            files = dict(self.files[who])
            self.machines[who].cache.fetch_ahead(key, [*FILES], files.__getitem__, lambda found: None)
        self.files[who][name] = value
        self.need(who, key, asked=ahead)
        self.answer(who, key, ahead)

    @rule(who=who, key=keys)
    def build(self, who: int, key: str) -> None:
        self.need(who, key)

    def need(self, who: int, key: str, asked: bool = False) -> None:
        """A stage is needed: it is fetched, or runs and is stored. The remote cache is asked for a key once."""
        machine, read = self.machines[who], read_by(key, self.files[who])
        known = (key, str(read))
        found = machine.fetched(key, self.files[who].__getitem__)
        assert found in (None, outputs(key, read))
        assert found is not None or known not in self.here[who] | (
            set() if asked or machine.remote.is_off else self.far
        )
        if found is None:
            machine.store(outputs(key, read), key, read)
            self.sent |= set() if who else {known}
        self.here[who].add(known)

    @rule(who=who, key=keys, elsewhere=st.booleans())
    def answer(self, who: int, key: str, elsewhere: bool) -> None:
        """The same with an answer, which comes ahead and may be unpacked by another process."""
        cache, files, read = self.machines[who].cache, self.files[who], read_by(key, self.files[who])
        cache.recall_compressed_ahead([key], files.__getitem__)
        if elsewhere and (compressed := cache.take_compressed(key)):
            try:
                BuildCache(cache.folder, 0, owned=True).receive(compressed)
            except ValueError:
                cache.give_back(compressed)
        found = cache.recall(key, files.__getitem__)
        known = (f"answer {key}", str(read))
        assert found is None or found == {"of": str(read)}
        assert found is not None or known not in self.here[who]
        if found is None:
            cache.remember(key, {"of": str(read)}, read)
        self.here[who].add(known)

    def end(self, who: int) -> None:
        """The process ends, and another one goes on."""
        self.machines[who].remote.close(60)
        assert self.machines[who].cache.problem is None
        if not who:
            self.far, self.sent = set() if self.is_damaged else self.far | self.sent, set()
        self.machines[who] = self.started(who)

    @rule(who=who, key=keys)
    def lose(self, who: int, key: str) -> None:
        """Somebody removes the folder of builds between two of them."""
        self.end(0)
        self.end(who)
        shutil.rmtree(self.folder / str(who) / "cache", ignore_errors=True)
        self.here[who].clear()
        self.need(who, key)

    @rule(who=who, which=places, place=places, cut=st.booleans())
    def damage(self, who: int, which: int, place: int, cut: bool) -> None:
        self.end(who)
        spoil((self.folder / str(who) / "cache").glob("??/*"), which, place, cut)
        self.here[who].clear()
        for key in KEYS:
            self.need(who, key)

    @rule(who=who, key=keys, which=places, place=places, cut=st.booleans())
    def damage_far(self, who: int, key: str, which: int, place: int, cut: bool) -> None:
        self.end(0)
        spoil(self.folder.glob("far/v1/*/*"), which, place, cut)
        self.is_damaged = True
        self.lose(who, key)

    @rule(push=st.booleans())
    def remove_far(self, push: bool) -> None:
        """The server makes room, and somebody pushes all again."""
        self.end(0)
        shutil.rmtree(self.folder / "far")
        (self.folder / "far").mkdir()
        self.far, self.is_damaged = set(), False
        if push:
            self.machines[0].cache.push(self.machines[0].remote)
            self.sent |= {known for known in self.here[0] if known[0] in KEYS}


def test_no_stage_gets_what_was_made_of_something_else_whatever_happens_to_the_caches() -> None:
    walk(Walk, examples=25, steps=20)
