"""The journal beside a model of it: runs make outputs and are killed, and others edit, touch and damage."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kernelwright.core.files import sha256_of
from kernelwright.core.sealed import unsealed
from kernelwright.state import journal as lines
from kernelwright.state.journal import Journal
from support.moments import rewrite
from support.walks import walk

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
    contents = st.sampled_from([b"1", b"2"])

    def signature(self) -> str:
        self.count += 1
        return str(self.count)

    @rule(name=names, content=contents)
    def make(self, name: str, content: bytes) -> None:
        signature = self.signature()
        rewrite(self.path(name), content)
        self.note(name, signature)
        self.made[name].add((signature, content))
        self.latest[name] = signature

    @rule(name=names, content=contents, written=st.sampled_from([0, 30, 100]), killed=st.booleans())
    def make_in_vain(self, name: str, content: bytes, written: int, killed: bool) -> None:
        """A run is killed, or the disk is full, when so much of a line is written."""
        write = os.write
        rewrite(self.path(name), content)
        with mock.patch.object(lines.os, "write", lambda stream, data: write(stream, data[:written])):
            self.note(name, self.signature())
        assert self.run.problem is not None
        self.run.problem = None
        if killed:
            self.end(killed=True)

    def note(self, name: str, signature: str) -> None:
        self.run.record([str(self.path(name))])
        self.run.store("build", name, {"kind": "file", "bactsig": signature})

    @rule(name=st.sampled_from([*OUTPUTS, *ALIASES]), times=st.integers(1, 2))
    def go_on_without(self, name: str, times: int) -> None:
        """A run notes a target without the output that belongs to it."""
        for _ in range(times):
            signature = self.signature()
            self.run.forget([str(self.path(name))])
            self.run.store("build", name, {"kind": "file", "bactsig": signature})
            self.latest[name] = signature

    @rule(name=names, times=st.sampled_from([1, 250]))
    def make_often(self, name: str, times: int) -> None:
        """A long journal is written anew when the run ends."""
        for _ in range(times):
            signature = self.signature()
            self.note(name, signature)
            self.made[name].add((signature, self.path(name).read_bytes()))
            self.latest[name] = signature
        self.end(killed=False)

    @rule(killed=st.booleans())
    def end(self, killed: bool) -> None:
        """The run ends, or is killed, and another one begins; they never work at once, because they have a lock."""
        if not killed:
            self.run.close()
            assert self.run.problem is None
        self.run = self.started()
        if self.is_damaged():
            self.take_what_is_left(self.with_output())

    @rule(name=names, content=contents)
    def show(self, name: str, content: bytes) -> None:
        """Beside it there is a run that only shows something: it writes nothing."""
        before = {path: path.read_bytes() for path in self.top.glob("journal/*")}
        shown = self.started(writable=False)
        os.utime(self.path(name), ns=(1, 1))
        shown.intact(str(self.path(name)))
        rewrite(self.path(name), content)
        shown.record([str(self.path(name))])
        shown.store("build", name, {"kind": "file", "bactsig": "shown"})
        shown.close()
        assert {path: path.read_bytes() for path in self.top.glob("journal/*")} == before

    @rule(name=names, content=contents)
    def edit(self, name: str, content: bytes) -> None:
        """Somebody changes an output, and sets its time back."""
        status = self.path(name).stat()
        rewrite(self.path(name), content, (status.st_atime_ns, status.st_mtime_ns))

    @rule(name=names, when=st.integers(1, 9), seen=st.booleans())
    def touch(self, name: str, when: int, seen: bool) -> None:
        """Somebody changes the times of an output; the run notes them if it looks at it."""
        os.utime(self.path(name), ns=(when, when))
        if seen and self.run.intact(str(self.path(name))):
            assert self.run.digest(str(self.path(name))) == sha256_of(self.path(name))

    @rule(from_end=st.integers(0, 2), place=st.integers(0, 300), cut=st.booleans(), noted=st.booleans())
    def damage(self, from_end: int, place: int, cut: bool, noted: bool) -> None:
        """One of the last lines is damaged, perhaps that of a target that was noted twice, or the end is cut off."""
        if noted:
            self.go_on_without("alias", 2)
        self.end(killed=False)
        for path in self.top.glob("journal/*"):
            content = path.read_bytes()
            begins = [0] + [at + 1 for at, byte in enumerate(content[:-1]) if byte == ord("\n")]
            # In the middle of a line: one that is lost as a whole leaves no trace.
            place = min(begins[max(-1 - from_end, -len(begins))] + 1 + place, len(content) - 2)
            flipped = bytes([content[place] ^ 1]) + content[place + 1 :]
            path.write_bytes(content[:place] + (b"" if cut else flipped))
        self.run = self.started()
        self.take_what_is_left({})

    def is_damaged(self) -> bool:
        """Whether a line of the journal is, so that those of targets that are no outputs do not count."""
        paths = list(self.top.glob("journal/*"))
        all_lines = [
            line for path in paths for line in path.read_bytes().splitlines(keepends=True)[1:] if line != b"\n"
        ]
        try:
            return not all(map(unsealed, all_lines))
        except ValueError:
            return True

    def with_output(self) -> dict[str, str]:
        """What was written last of those whose lines have an output, which other damage does not concern."""
        made = {signature for pairs in self.made.values() for signature, _ in pairs}
        return {name: signature for name, signature in self.latest.items() if signature in made}

    def take_what_is_left(self, certain: dict[str, str]) -> None:
        """A run goes on: older lines of outputs do no harm, and those of other targets do."""
        found = self.found(self.run)
        assert found.items() >= certain.items()
        assert all(found.get(name) in (None, self.latest.get(name)) for name in ALIASES)
        assert all((found[name], content) in self.made[name] for name, content in self.intact(self.run).items())
        self.latest = found

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
        found = self.found(reader)
        if self.is_damaged():
            assert found.items() >= self.with_output().items() and found.items() <= self.latest.items()
        else:
            assert found == self.latest
        there = {name: self.path(name).read_bytes() for name in OUTPUTS}
        expected = {name: text for name, text in there.items() if (self.latest.get(name, ""), text) in self.made[name]}
        assert self.intact(reader) == expected


def test_no_output_counts_for_what_it_was_not_made_of_whatever_happens_to_the_journal() -> None:
    walk(Walk, examples=35, steps=20)
