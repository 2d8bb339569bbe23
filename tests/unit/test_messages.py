"""What is given away has no path of the machine in it; and what a build shows."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("SCons")

from kernelwright.core.private import private_folders, private_pattern
from kernelwright.scons.progress import Progress

# --- Paths of the machine


def test_folders_of_the_project_of_python_and_of_the_user_are_private_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/ada")
    monkeypatch.setattr(sys, "prefix", "/opt/venvs/build")
    pattern = private_pattern(private_folders(Path("/data/project+1")))
    for path in ("/data/project+1/a.h", "/srv/people/ada/b.h", "/opt/venvs/build/lib/c.h", "/home/ada/d.h", "/tmp/x/e"):
        assert pattern.search(os.fsencode(f'#line 1 "{path}"')), path
    for text in ("/usr/include/a.h", "/data/projectt1", "kernels/a.h", "/data/project", "/home/", "a/tmp"):
        assert not pattern.search(os.fsencode(text)), text
    assert not private_pattern(["/", ""]).search(b"/usr/lib")
    assert private_pattern(["/data/x/"]).search(b"/data/x")


# --- The progress of a build


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_silent_build_shows_failures_and_one_without_a_terminal_a_line_for_each_action(capsys):
    stream = io.StringIO()
    progress = Progress(True, stream)
    progress.started("[ LINK ] gemm")
    progress.note("a note")
    progress.summary({"built": 0, "cached": 0, "reused": 0, "failed": 1}, ["[ LINK ] gemm: no"])
    assert stream.getvalue() == ""
    assert capsys.readouterr().err == "kernelwright: 1 failed:\n  [ LINK ] gemm: no\n"
    stream = io.StringIO()
    progress = Progress(False, stream)
    with progress.ahead("looking at the tools"):
        progress.started("[ CUBIN ] a")
    progress.finished("[ CUBIN ] a")
    progress.note("a note")
    assert stream.getvalue() == "[ CUBIN ] a\na note\n"


def test_the_live_line_has_what_runs_longest_and_gives_way_to_notes():
    stream = Terminal()
    progress = Progress(False, stream)
    progress.expect(lambda: (3, 10))
    progress.started("[ CUBIN ] a")
    progress.started("[ CUBIN ] b")
    assert stream.getvalue().endswith("\r\x1b[K3/10 [ CUBIN ] a (+1)")
    progress.finished("[ CUBIN ] a")
    assert stream.getvalue().endswith("\r\x1b[K3/10 [ CUBIN ] b")
    with progress.ahead("looking at the tools"):
        assert stream.getvalue().endswith("\r\x1b[Klooking at the tools")
    for _ in range(2):
        progress.note_once("a note")
    assert stream.getvalue().endswith("\r\x1b[Klooking at the tools\r\x1b[K\r\x1b[Ka note\n")
