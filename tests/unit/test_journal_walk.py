"""The journal beside a model of it: runs make outputs and are killed, and others edit, touch and damage."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kernelwright.state import journal as lines
from kernelwright.state.journal import Journal
from support.moments import rewrite
from support.walks import spoil, walk

OUTPUTS, ALIASES = ("a.bin", "b.bin"), ("alias",)
"""Names of files that a build makes, and of targets that are none."""


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="kw-walk-"))
        (self.top / "build").mkdir()
        for name in OUTPUTS:
            (self.top / "build" / name).write_bytes(b"0")
        self.run = self.started()
        self.made: dict[str, set[tuple[str, bytes]]] = {name: set() for name in OUTPUTS}
        """Signatures and contents that belong together."""
        self.latest: dict[str, str | None] = {}
        """Signature that each name has in the journal."""
        self.is_damaged = False
        """Whether a line is, so that those of targets that are no outputs do not count until it is written anew."""
        self.count = 0

    def started(self, writable: bool = True) -> Journal:
        run = Journal(self.top / "journal", self.top)
        run.writable = writable
        return run

    def teardown(self) -> None:
        self.run.close()
        shutil.rmtree(self.top)

    def path(self, name: str) -> Path:
        return self.top / "build" / name

    names = st.sampled_from(OUTPUTS)
    contents = st.sampled_from([b"1", b"2", b"333"])

    def signature(self) -> str:
        self.count += 1
        return str(self.count)

    @rule(name=names, content=contents, written=st.sampled_from([None, None, 0, 30, 100]))
    def make(self, name: str, content: bytes, written: int | None) -> None:
        """A run makes an output; perhaps it is killed, or the disk is full, when so much of the line is written."""
        signature, write = self.signature(), os.write
        rewrite(self.path(name), content)
        self.run.record([str(self.path(name))])
        stop = mock.patch.object(lines.os, "write", lambda stream, data: write(stream, data[:written]))
        with stop:
            self.run.store("build", name, {"kind": "file", "bactsig": signature})
        if written is None:
            self.made[name].add((signature, content))
            self.latest[name] = signature
        else:
            assert self.run.problem is not None
            self.lose_something()

    @rule(name=st.sampled_from([*OUTPUTS, *ALIASES]))
    def go_on_without(self, name: str) -> None:
        """A run notes a target without the output that belongs to it."""
        signature = self.signature()
        self.run.forget([str(self.path(name))])
        self.run.store("build", name, {"kind": "file", "bactsig": signature})
        self.latest[name] = signature

    @rule(name=names, times=st.sampled_from([1, 250]))
    def make_often(self, name: str, times: int) -> None:
        """A long journal is written anew when the run ends."""
        for _ in range(times):
            signature = self.signature()
            self.run.record([str(self.path(name))])
            self.run.store("build", name, {"kind": "file", "bactsig": signature})
            self.made[name].add((signature, self.path(name).read_bytes()))
            self.latest[name] = signature
        self.end(killed=False)

    @rule(killed=st.booleans())
    def end(self, killed: bool) -> None:
        """The run ends, or is killed, and another one begins; they never work at once, because they have a lock."""
        if killed and self.is_damaged:
            self.lose_something()
        if not killed:
            self.run.close()
            assert self.run.problem is None
            self.is_damaged = False
        self.run = self.started()

    @rule(name=names, content=contents)
    def show(self, name: str, content: bytes) -> None:
        """Beside it there is a run that only shows something: it writes nothing."""
        shown = self.started(writable=False)
        rewrite(self.path(name), content)
        shown.record([str(self.path(name))])
        shown.store("build", name, {"kind": "file", "bactsig": "shown"})
        shown.close()

    @rule(name=names, content=contents)
    def edit(self, name: str, content: bytes) -> None:
        """Somebody changes an output, and sets its time back."""
        status = self.path(name).stat()
        rewrite(self.path(name), content, (status.st_atime_ns, status.st_mtime_ns))

    @rule(name=names, when=st.integers(1, 9))
    def touch(self, name: str, when: int) -> None:
        os.utime(self.path(name), ns=(when, when))

    @rule(which=st.integers(0, 9), place=st.integers(0, 10_000), cut=st.booleans())
    def damage(self, which: int, place: int, cut: bool) -> None:
        self.end(killed=False)
        spoil(self.top.glob("journal/*"), which, place, cut)
        self.lose_something()

    def lose_something(self) -> None:
        """A run goes on with what is there: older lines of outputs do no harm, and those of other targets do."""
        self.run, self.is_damaged = self.started(), True
        self.require_true(self.run)
        self.latest = self.found(self.run)

    def require_true(self, run: Journal) -> None:
        """What a journal with damage says is what was written last, or belongs to the content of an output."""
        found = self.found(run)
        assert all(found.get(name) in (None, self.latest.get(name)) for name in ALIASES)
        assert all((found[name], content) in self.made[name] for name, content in self.intact(run).items())

    @rule()
    def remove(self) -> None:
        self.end(killed=False)
        shutil.rmtree(self.top / "journal", ignore_errors=True)
        self.latest, self.run = {}, self.started()

    def found(self, run: Journal) -> dict[str, str]:
        return {name: body["bactsig"] for name, body in run.entries("build").items()}

    def intact(self, run: Journal) -> dict[str, bytes]:
        """The outputs that count for what the journal says, with their contents."""
        return {name: self.path(name).read_bytes() for name in OUTPUTS if run.intact(str(self.path(name)))}

    @invariant()
    def each_output_counts_for_what_it_was_made_of(self) -> None:
        reader = self.started(writable=False)
        if self.is_damaged:
            self.require_true(reader)
            return
        assert self.found(reader) == self.latest
        there = {name: self.path(name).read_bytes() for name in OUTPUTS}
        expected = {name: text for name, text in there.items() if (self.latest.get(name, ""), text) in self.made[name]}
        assert self.intact(reader) == expected


def test_no_output_counts_for_what_it_was_not_made_of_whatever_happens_to_the_journal() -> None:
    walk(Walk, examples=12, steps=20)
