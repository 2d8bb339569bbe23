"""What headers leave is kept for later builds, as long as their files are the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernelwright.toolchain.kept_headers import TICK_NS, KeptHeaders
from kernelwright.toolchain.trimming import Headers, read_headers
from support.moments import wait_for

KEY = ("compute_80", "-O3", "#include <a.h>")
SECOND = (*KEY[:2], "#include <a.h>\n#include <b.h>")


class Folder:
    """A folder with a header, and what is kept of it."""

    def __init__(self, top: Path) -> None:
        self.header, self.kept, self.reads = top / "a.h", top / "headers", 0
        self.header.write_text("#define A 1\nnamespace std { int f(int); }\n")
        old = self.header.stat().st_ctime_ns + TICK_NS  # what has just changed is not kept
        wait_for(lambda: time.time_ns() > old, "the clock stands still")

    def preprocessed(self) -> str:
        source = '# 2 "headers.cu" 2\nint g(float);\nint operator+(one);\n'
        return f'# 1 "headers.cu"\n# 1 "{self.header}" 1\n{self.header.read_text()}{source}'

    def read(self) -> Headers:
        self.reads += 1
        return read_headers(self.preprocessed())

    def headers(self, key: tuple[str, ...] = KEY, identity: str = "nvcc 13.0") -> Headers:
        return KeptHeaders(self.kept, (identity,)).of(key, None, self.read)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_what_is_kept_is_what_was_read(folder: Folder) -> None:
    read, kept = folder.headers(), folder.headers()
    assert folder.reads == 1
    assert kept.declarations.own == read.declarations.own and len(read.declarations.own) == 5
    assert kept.macros == read.macros == {"A": "#define A 1\n"}
    assert kept.files == read.files == {str(folder.header)}
    assert kept.doubtful == read.doubtful == {"one"}
    for name in ("f", "g"):
        assert kept.declarations.needed([name]) == read.declarations.needed([name])


def test_a_part_is_kept_without_those_before_it(folder: Folder) -> None:
    before = folder.headers()

    def read() -> Headers:
        return read_headers("#define A 1\n#undef A\n#define B 2\nint g(int);\n", before)

    keeper = KeptHeaders(folder.kept, ("nvcc 13.0",))
    read_part, kept = keeper.of(SECOND, before, read), keeper.of(SECOND, before, folder.read)
    assert folder.reads == 1
    assert kept.files == read_part.files == {str(folder.header)} and kept.doubtful == read_part.doubtful == {"one"}
    assert kept.macros == read_part.macros == {"A": "#undef A\n", "B": "#define B 2\n"}
    assert kept.declarations.needed(["g"]) == read_part.declarations.needed(["g"])
    assert [one.text.strip() for one in kept.declarations.own] == ["int g(int);"]


CHANGES: dict[str, Callable[[Folder], object]] = {
    "content": lambda folder: folder.header.write_text("#define A 2\n"),
    "time": lambda folder: os.utime(folder.header, ns=(1, 1)),
    "gone": lambda folder: folder.header.rename(folder.header.with_name("b.h")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_header_is_read_again(folder: Folder, change: Callable[[Folder], object]) -> None:
    text = folder.preprocessed()
    folder.headers()
    change(folder)
    reads: list[int] = []
    KeptHeaders(folder.kept, ("nvcc 13.0",)).of(KEY, None, lambda: reads.append(1) or read_headers(text))
    assert reads == [1]


def test_a_part_is_read_again_if_a_file_of_a_part_before_it_has_changed(folder: Folder) -> None:
    """Its content depends on the macros that those leave."""

    def read() -> Headers:
        return read_headers("#define B A\n" if "A 1" in folder.header.read_text() else "", folder.headers())

    keeper = KeptHeaders(folder.kept, ("nvcc 13.0",))
    assert "B" in keeper.of(SECOND, folder.headers(), read).macros
    folder.header.write_text("#define A 2\n")
    assert "B" not in keeper.of(SECOND, folder.headers(), read).macros


def test_files_that_change_while_they_are_read_are_not_kept(folder: Folder) -> None:
    def read() -> Headers:
        headers = folder.read()
        folder.header.write_text("#define A 2\n")
        return headers

    keeper = KeptHeaders(folder.kept, ("nvcc 13.0",))
    assert keeper.of(KEY, None, read).macros == {"A": "#define A 1\n"}
    assert keeper.of(KEY, None, folder.read).macros == {"A": "#define A 2\n"}


def test_files_that_changed_their_places_are_read_again(folder: Folder) -> None:
    folder.headers()
    folder.headers(("compute_90a", *KEY[1:]))
    first, second = sorted(folder.kept.iterdir())
    first.write_bytes(second.read_bytes())
    folder.headers()
    folder.headers(("compute_90a", *KEY[1:]))
    assert folder.reads == 3


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        (("compute_90a", *KEY[1:]), "nvcc 13.0"),
        ((KEY[0], KEY[2]), "nvcc 13.0"),
        ((*KEY[:2], "#include <b.h>"), "nvcc 13.0"),
        (KEY, "nvcc 13.1"),
    ],
)
def test_other_compilers_archs_flags_and_texts_have_headers_of_their_own(folder, key, identity):
    folder.headers()
    folder.headers(key, identity)
    assert folder.reads == 2


def test_where_nothing_can_be_kept_headers_are_read_each_time(folder: Folder) -> None:
    folder.kept.write_text("a file where the folder should be")
    assert folder.headers().macros == folder.headers().macros
    assert folder.reads == 2
