"""What is shown to people and given away: errors with their place, escapes, and no path of the machine."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from kernelwright.errors import (
    LONGEST_SHOWN,
    KernelwrightError,
    ToolError,
    Where,
    escaped,
    is_text,
    printable,
    refused,
    shown,
)
from kernelwright.private import private_folders, private_pattern
from kernelwright.records import LARGEST, Record, is_file_name


def test_an_error_has_its_place_its_cause_its_detail_and_its_remedy_in_this_order():
    where = Where("gemm", "m-1", "nvcc", "kernels/gemm.py:4")
    error = KernelwrightError("it is wrong", where, "mend it", "first\nsecond\n")
    assert str(error).split("\n") == [
        *("kernels/gemm.py:4 gemm/m-1 [nvcc]: it is wrong", "    first", "    second", "  remedy: mend it")
    ]
    assert str(KernelwrightError("it is wrong")) == "it is wrong"
    assert str(Where("gemm", stage="link")) == "gemm [link]" and str(Where()) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc\u00e4\u4e2d", "a\tb\nc\u00e4\u4e2d"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a\\rb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
        ("a\u2028b", "a\\u2028b"),
        ("a\udcffb", "a\\udcffb"),
        ("a\x7f\x00", "a\\x7f\\x00"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_with_escapes(text, expected):
    assert escaped(text) == expected
    error = KernelwrightError(text, None, text, text)
    assert (error.message, error.remedy, error.detail) == (expected, expected, expected)


def test_a_name_with_a_line_break_stays_one_line():
    assert printable("a\nb\x1b") == "a\\nb\\x1b" and printable("\u00e4 b") == "\u00e4 b"
    assert "\n" not in str(Where(location="a\nb.py:1"))


def test_a_value_is_shown_up_to_a_length_and_is_never_an_error():
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert shown(Broken()) == "<Broken that cannot be shown>"
    assert shown("x" * (LONGEST_SHOWN - 2)) == repr("x" * (LONGEST_SHOWN - 2))
    assert shown("x" * LONGEST_SHOWN) == repr("x" * LONGEST_SHOWN)[:LONGEST_SHOWN] + "..."


def test_what_can_be_written_and_given_to_a_program_is_a_text():
    assert is_text("\u00e4\n") and not is_text("a\0b") and not is_text("a\udcffb")


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (1, "an error\n", "nvcc ended with exit status 1\n    $ /cuda/bin/nvcc '-DA=b c'\n    an error"),
        (-9, "", "nvcc was ended by signal 9\n    $ /cuda/bin/nvcc '-DA=b c'\n    (no output)"),
    ],
)
def test_a_failed_program_is_shown_with_its_command_how_it_ended_and_what_it_printed(status, output, expected):
    error = ToolError(["/cuda/bin/nvcc", "-DA=b c"], status, output, Where())
    assert str(error) == expected and (error.status, error.command) == (status, ("/cuda/bin/nvcc", "-DA=b c"))


def test_what_the_system_did_not_do_names_the_file():
    error = OSError(28, "No space left on device")
    assert "No space left on device (/build/x)" in str(refused(error, place="/build/x"))
    error.filename = "/other"
    assert "No space left on device (/other)" in str(refused(error, place="/build/x"))


# --- Paths of the machine


def test_folders_of_the_project_of_python_and_of_the_user_are_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/ada")
    monkeypatch.setattr(sys, "prefix", "/opt/venvs/build")
    pattern = private_pattern(private_folders(Path("/data/project+1")))
    for path in ("/data/project+1/a.h", "/srv/people/ada/b.h", "/opt/venvs/build/lib/c.h", "/home/ada/d.h", "/tmp/x/e"):
        assert pattern.search(os.fsencode(f'#line 1 "{path}"')), path
    for text in ("/usr/include/a.h", "/data/projectt1", "kernels/a.h", "/data/project", "/home/", "a/tmp"):
        assert not pattern.search(os.fsencode(text)), text


def test_the_root_folder_and_a_slash_at_the_end_make_nothing_else_private():
    assert not private_pattern(["/", ""]).search(b"/usr/lib")
    assert private_pattern(["/data/x/"]).search(b"/data/x")


# --- Names and numbers that are read back


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        *((name, False) for name in ("", ".", "..", "a/b", "/", "a\0", "a\n", "a\u202e")),
        *((name, True) for name in ("a", "...", ".a", "a b", "\u00e4")),
        ("a" * 255, True),
        ("a" * 256, False),
        ("\u00e4" * 127, True),
        ("\u00e4" * 128, False),
    ],
)
def test_a_name_of_a_file_is_one_that_the_system_takes_and_that_leads_nowhere_else(text, fits):
    assert is_file_name(text) == fits


@pytest.mark.parametrize(
    ("value", "fits"), [(0, True), (LARGEST, True), (LARGEST + 1, False), (-1, False), (True, False)]
)
def test_numbers_are_those_that_every_reader_has_exactly(value, fits):
    record = Record({"x": value}, "")
    for read in (record.count, record.number):
        if fits:
            assert read("x") == value
        else:
            with pytest.raises(ValueError, match=r"^x is .* from 0 to"):
                read("x")


# --- The progress of a build


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_silent_build_shows_failures_only(capsys):
    pytest.importorskip("SCons")
    from kernelwright.scons.progress import Progress

    stream = io.StringIO()
    progress = Progress(True, stream)
    progress.started("[ LINK ] gemm")
    progress.note("a note")
    progress.summary({"built": 0, "cached": 0, "reused": 0, "failed": 1}, ["[ LINK ] gemm: no"])
    assert stream.getvalue() == ""
    assert capsys.readouterr().err == "kernelwright: 1 failed:\n  [ LINK ] gemm: no\n"


def test_the_live_line_has_what_runs_longest_and_gives_way_to_notes():
    pytest.importorskip("SCons")
    from kernelwright.scons.progress import Progress

    stream = Terminal()
    progress = Progress(False, stream)
    progress.expect(lambda: (3, 10))
    progress.started("[ CUBIN ] a")
    progress.started("[ CUBIN ] b")
    assert stream.getvalue().endswith("\r\x1b[K3/10 [ CUBIN ] a (+1)")
    progress.finished("[ CUBIN ] a")
    assert stream.getvalue().endswith("\r\x1b[K3/10 [ CUBIN ] b")
    for _ in range(2):
        progress.note_once("a note")
    assert stream.getvalue().endswith("\r\x1b[K3/10 [ CUBIN ] b\r\x1b[Ka note\n")


def test_without_a_terminal_each_action_has_a_line_of_its_own():
    pytest.importorskip("SCons")
    from kernelwright.scons.progress import Progress

    stream = io.StringIO()
    progress = Progress(False, stream)
    progress.started("[ CUBIN ] a")
    progress.finished("[ CUBIN ] a")
    progress.note("a note")
    assert stream.getvalue() == "[ CUBIN ] a\na note\n"
