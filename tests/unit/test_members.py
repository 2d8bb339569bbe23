"""The archive of a wheel: its files as the directory has them, and names and sizes at their limits."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.package import members
from kernelwright.package.members import (
    DEFLATED,
    EXPANSION,
    FREE,
    LARGEST_TEXT,
    LONGEST,
    STORED,
    Member,
    list_members,
    member_problems,
    open_regular,
    read_member,
)


def archive_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream


FILES = {"demo/a.so": b"a" * 1000, "demo/größe": b"", "b": b"content"}


@pytest.mark.parametrize(("method", "number"), [(zipfile.ZIP_DEFLATED, DEFLATED), (zipfile.ZIP_STORED, STORED)])
def test_files_are_listed_in_their_order_and_read(method: int, number: int) -> None:
    stream = archive_of(FILES, method)
    listed = list_members(stream)
    assert [member.name for member in listed] == list(FILES)
    assert [member.size for member in listed] == [1000, 0, 7]
    assert {member.method for member in listed} == {number}
    assert [member.crc for member in listed] == [zlib.crc32(content) for content in FILES.values()]
    assert [(member.mode, member.attributes) for member in listed] == [(0o600, 0)] * 3
    assert [read_member(stream, member) for member in listed] == list(FILES.values())
    assert list(member_problems(listed, len(stream.getvalue()))) == []
    assert list_members(archive_of({})) == []


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"x" * 100])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is no zip archive"):
        list_members(io.BytesIO(content))


def test_names_archives_and_packed_data_end_where_they_have_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list_members(archive_of({"x" * LONGEST: b""}))) == 1
    with pytest.raises(ValueError, match=f"it has a name of {LONGEST + 1} bytes, and {LONGEST} are the most"):
        list_members(archive_of({"x" * (LONGEST + 1): b""}))
    content = b"a" * 1000
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    whole = Member("a", DEFLATED, zlib.crc32(content), len(packed), len(content), 0, 0, 0)
    stream = io.BytesIO(packed + b"more")
    assert read_member(stream, whole) == content
    with pytest.raises(ValueError, match="it has another size than the directory says"):
        read_member(stream, replace(whole, packed=len(packed) + 4))
    stream = archive_of(FILES)
    length = len(stream.getvalue())
    monkeypatch.setattr(members, "LARGEST", length)
    assert len(list_members(stream)) == 3
    monkeypatch.setattr(members, "LARGEST", length - 1)
    with pytest.raises(ValueError, match=f"it has {length} bytes, and a wheel has {length - 1} at most"):
        list_members(stream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crc": 1}, "its checksum does not fit"),
        ({"size": 999}, "it has another size than the directory says"),
        ({"size": 1001}, "it has another size than the directory says"),
        ({"packed": 3}, "it has another size than the directory says"),
        ({"method": STORED}, "it has another size than the directory says"),
        ({"start": 0}, "it cannot be unpacked: "),
    ],
)
def test_content_that_is_not_as_the_directory_says_is_refused(change: dict[str, int], message: str) -> None:
    stream = archive_of(FILES)
    first = list_members(stream)[0]
    with pytest.raises(ValueError, match=message):
        read_member(stream, replace(first, **change))


def member(name: str, size: int = 0, mode: int = 0, attributes: int = 0) -> Member:
    return Member(name, DEFLATED, 0, 0, size, mode, attributes, 0)


def problems(*listed: Member, length: int = 0) -> list[str]:
    return list(member_problems(listed, length))


def test_files_may_be_a_hundred_times_as_large_as_the_archive_and_always_a_megabyte() -> None:
    assert problems(member("a", FREE - 1), member("b", 1), length=1) == []
    (said,) = problems(member("a", FREE), member("b", 1), length=1)
    assert "its files have 1,048,577 bytes when unpacked, and 1,048,576 are the most for an archive of 1;" in said
    assert said.endswith("the largest is a")
    assert problems(member("a", EXPANSION * FREE), length=FREE) == []
    assert len(problems(member("a", EXPANSION * FREE + 1), length=FREE)) == 1


@pytest.mark.parametrize(
    "name",
    ["demo/manifest.json", *(f"x.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt"))],
)
def test_files_that_are_parsed_are_small(name: str) -> None:
    assert problems(member(name, LARGEST_TEXT), length=FREE) == []
    (said,) = problems(member(name, LARGEST_TEXT + 1), length=FREE)
    assert said == f"{name} has 33,554,433 bytes, and 33,554,432 are the most for it"
    assert problems(member(f"{name}.so", LARGEST_TEXT + 1), length=FREE) == []


@pytest.mark.parametrize(
    "fine",
    [
        *(member("a", mode=mode) for mode in (0, 0o644, 0o100644, 0o100755, 0o100775, 0o100000)),
        *map(member, ("a", "a/b.c/d", "größe", "-", "a b", ".hidden", "a..b")),
    ],
    ids=str,
)
def test_modes_and_names_that_a_file_may_have(fine: Member) -> None:
    assert problems(fine, member("ab/c")) == []


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([member("a", attributes=16)], "a is no regular file"),
        ([member("a", mode=0o101644)], "a has the permissions 1644"),
        ([member("a\u200bb")], "has characters in its name"),
        ([member("a./b")], "a./b has a part in its path"),
        ([member("")], "has a part in its path"),
        ([member("Straße"), member("STRASSE")], "STRASSE is there twice, or differs from Straße in a way"),
        ([member("A"), member("a/b/c")], "a/b/c is in a, which is a file"),
    ],
)
def test_a_file_that_an_installer_could_take_for_another_one_is_refused(listed: list[Member], said: str) -> None:
    """More are in ``support/hostile_wheels.py``."""
    (problem,) = problems(*listed)
    assert said in problem


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with open_regular(tmp_path / "a") as stream:
        assert stream.read() == b"x"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="it is no regular file"):
            open_regular(path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")
