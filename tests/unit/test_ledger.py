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


def recorded(tmp_path, *paths):
    """A journal of a run that recorded some outputs and ended."""
    run = ledger(tmp_path)
    for path in paths:
        run.record([path])
    run.seal()


def test_recorded_output_is_intact_also_after_a_restart(tmp_path, output):
    recorded(tmp_path, output)
    assert ledger(tmp_path).intact(output)


def test_unknown_output_is_not_intact(tmp_path, output):
    assert not ledger(tmp_path).intact(output)


def test_edit_of_the_same_size_and_mtime_is_found(tmp_path, output):
    recorded(tmp_path, output)
    status = output.stat()
    output.write_bytes(b"CONTENT")
    os.utime(output, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not ledger(tmp_path).intact(output)


def test_touched_output_with_equal_content_is_intact(tmp_path, output):
    recorded(tmp_path, output)
    os.utime(output, ns=(1, 1))
    assert ledger(tmp_path).intact(output)


@pytest.mark.parametrize("damage", [b"", b"{", b'["x"]\n', b"\xff\xff\n", b'["a", "b", 1, 2, 3]\n'])
def test_damaged_journal_forgets_and_never_fails(tmp_path, output, damage):
    recorded(tmp_path, output)
    (tmp_path / "journal.jsonl").write_bytes(damage)
    assert not ledger(tmp_path).intact(output)


def test_entries_of_a_run_that_was_killed_do_not_count(tmp_path, output):
    recorded(tmp_path, output)
    output.write_bytes(b"made by a run that is killed")
    ledger(tmp_path).record([output])
    assert not ledger(tmp_path).intact(output)
    output.write_bytes(b"content")
    assert not ledger(tmp_path).intact(output), "nor does what was known before that run"


def test_killed_entries_are_not_sealed_by_the_next_run(tmp_path, output):
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    recorded(tmp_path, other)
    ledger(tmp_path).record([output])
    recorded(tmp_path, other)
    assert not ledger(tmp_path).intact(output)
    assert ledger(tmp_path).intact(other)


def test_unfinished_outputs_do_not_count(tmp_path, output):
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    run = ledger(tmp_path)
    run.record([output, other])
    run.seal([output])
    assert not ledger(tmp_path).intact(output)
    assert ledger(tmp_path).intact(other)


def test_truncated_journal_loses_no_more_than_its_last_run(tmp_path, output):
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    recorded(tmp_path, output)
    recorded(tmp_path, other)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-10])
    assert ledger(tmp_path).intact(output)
    assert not ledger(tmp_path).intact(other)


def test_long_journal_is_written_anew(tmp_path, output):
    recorded(tmp_path, *[output] * 150)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2
    assert ledger(tmp_path).intact(output)


def test_tree_can_move(tmp_path):
    first = tmp_path / "first"
    (first / "build").mkdir(parents=True)
    (first / "build/out").write_bytes(b"1")
    run = Ledger(first / "journal", first)
    run.record([first / "build/out"])
    run.seal()
    second = first.rename(tmp_path / "second")
    assert Ledger(second / "journal", second).intact(second / "build/out")
