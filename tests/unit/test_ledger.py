"""The journal of outputs."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("SCons")

from kernelwright.scons.ledger import Ledger


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "build" / "out.bin"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def ledger(tmp_path):
    return Ledger(tmp_path / "journal.jsonl", tmp_path)


def test_recorded_output_is_intact_also_after_a_restart(tmp_path, output):
    ledger(tmp_path).record([output])
    assert ledger(tmp_path).intact(output)


def test_unknown_output_is_not_intact(tmp_path, output):
    assert not ledger(tmp_path).intact(output)


def test_edit_of_the_same_size_and_mtime_is_found(tmp_path, output):
    ledger(tmp_path).record([output])
    status = output.stat()
    output.write_bytes(b"CONTENT")
    os.utime(output, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not ledger(tmp_path).intact(output)


def test_touched_output_with_equal_content_is_intact(tmp_path, output):
    ledger(tmp_path).record([output])
    os.utime(output, ns=(1, 1))
    assert ledger(tmp_path).intact(output)


@pytest.mark.parametrize("damage", [b"", b"{", b'["x"]\n', b"\xff\xff\n", b'["a", "b", 1, 2, 3]\n'])
def test_damaged_journal_forgets_and_never_fails(tmp_path, output, damage):
    first = ledger(tmp_path)
    first.record([output])
    (tmp_path / "journal.jsonl").write_bytes(damage)
    assert not ledger(tmp_path).intact(output)


def test_truncated_last_line_loses_only_that_line(tmp_path, output):
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    first = ledger(tmp_path)
    first.record([output])
    first.record([other])
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-10])
    assert ledger(tmp_path).intact(output)
    assert not ledger(tmp_path).intact(other)


def test_compaction_keeps_the_last_state(tmp_path, output):
    first = ledger(tmp_path)
    for _ in range(150):
        first.record([output])
    first.compact()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1
    assert ledger(tmp_path).intact(output)


def test_tree_can_move(tmp_path):
    first = tmp_path / "first"
    (first / "build").mkdir(parents=True)
    (first / "build/out").write_bytes(b"1")
    Ledger(first / "journal", first).record([first / "build/out"])
    second = first.rename(tmp_path / "second")
    assert Ledger(second / "journal", second).intact(second / "build/out")
