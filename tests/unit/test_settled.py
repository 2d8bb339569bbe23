"""Finished kernels: what their stamps tell, when a stamp is trusted, and what is read back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelwright.core import files
from kernelwright.core.files import COARSE_NS, lasting_stamp, sha256_of
from kernelwright.core.sealed import unsealed_object, write_sealed
from kernelwright.state import settled
from kernelwright.state.settled import (
    FINE_NS,
    Settled,
    SettledKernel,
    is_current,
    read_settled,
    stamps_of,
    trusted_stamps,
    write_settled,
)

OLD_S = 978_307_200
"""The year 2001."""

LATER_NS = 1 << 62
"""So late that a stamp of today is certain on every kind of disk."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text("first")
    return path


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets what time it is, in ns."""

    def set_time(now: int) -> None:
        for module in (settled, files):
            monkeypatch.setattr(module, "time", SimpleNamespace(time_ns=lambda: now))

    return set_time


def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtime: int, ctime: int) -> None:
    """Have every file have these times, which a test cannot choose on the disk."""
    status = (tmp_path / "a.py").stat()
    monkeypatch.setattr(settled, "file_stamp", lambda path: (status.st_size, mtime, ctime, status.st_ino))


def trusted(tmp_path: Path) -> bool:
    return trusted_stamps(str(tmp_path), {"a.py": sha256_of(tmp_path / "a.py")}) is not None


# --- What a stamp tells


def test_an_edit_of_equal_size_whose_time_was_set_back_is_seen(tmp_path, file, at):
    at(LATER_NS)
    os.utime(file, (OLD_S, OLD_S))
    stamps = stamps_of(str(tmp_path), [str(file)])
    assert list(stamps) == ["a.py"] and is_current(str(tmp_path), stamps)
    other = tmp_path / "other.py"
    other.write_text("other")
    os.utime(other, (OLD_S, OLD_S))
    other.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == tuple(stamps["a.py"][:2])
    assert not is_current(str(tmp_path), stamps)


@pytest.mark.parametrize("part", ["size", "time of the content", "time of the inode", "inode"])
def test_every_part_of_a_stamp_counts(tmp_path, file, at, part):
    at(LATER_NS)
    stamps = stamps_of(str(tmp_path), [str(file)])
    stamps["a.py"][["size", "time of the content", "time of the inode", "inode"].index(part)] += 1
    assert not is_current(str(tmp_path), stamps)


def test_a_file_that_is_gone_or_appears_is_seen(tmp_path, file, at):
    at(LATER_NS)
    top = str(tmp_path)
    assert is_current(top, {"absent.py": None}) and is_current(top, {"a\0b": None})
    assert not is_current(top, {"a.py": None})
    assert not is_current(top, {**stamps_of(top, [str(file)]), "absent.py": [1, 2, 3, 4]})


# --- Which stamps are trusted


def test_an_edit_outside_of_the_project_is_seen(tmp_path, at):
    (tmp_path / "project").mkdir()
    header = tmp_path / "a.h"
    header.write_text("first")
    at(LATER_NS)
    stamps = trusted_stamps(str(tmp_path / "project"), {str(header): sha256_of(header)})
    assert stamps is not None and stamps[str(header)] is not None
    assert is_current(str(tmp_path / "project"), stamps)
    header.write_text("another")
    assert not is_current(str(tmp_path / "project"), stamps)


def test_a_fresh_file_with_an_old_time_is_not_trusted(tmp_path, file, at):
    os.utime(file, (OLD_S, OLD_S))
    changed = file.stat().st_ctime_ns
    at(changed + 1)
    assert not trusted(tmp_path)
    at(changed + 2 * COARSE_NS)
    assert trusted(tmp_path)


@pytest.mark.parametrize(
    ("ctime", "patience"),
    [(5_000_000_001, FINE_NS), (5_000_000_000, COARSE_NS)],
    ids=["fine times", "full seconds"],
)
def test_a_file_is_trusted_when_its_next_change_must_have_another_time(
    tmp_path, file, at, monkeypatch, ctime, patience
):
    stamped(tmp_path, monkeypatch, OLD_S, ctime)
    for now, expected in ((ctime, False), (ctime + patience, False), (ctime + patience + 1, True)):
        at(now)
        assert trusted(tmp_path) == expected


def test_a_file_from_the_future_is_not_trusted(tmp_path, file, at, monkeypatch):
    now = file.stat().st_mtime_ns
    stamped(tmp_path, monkeypatch, now + 10**15, now - 10**15)
    at(now)
    assert not trusted(tmp_path)


def test_stamps_of_another_content_than_the_one_that_was_built_are_not_trusted(tmp_path, file, at):
    at(file.stat().st_ctime_ns + 2 * COARSE_NS)
    top, digest = str(tmp_path), sha256_of(file)
    assert trusted_stamps(top, {"a.py": digest, "absent.py": ""}) == {**stamps_of(top, [str(file)]), "absent.py": None}
    assert trusted_stamps(top, {"a.py": "0" * 64}) is None
    assert trusted_stamps(top, {"a.py": ""}) is None and trusted_stamps(top, {"absent.py": digest}) is None


def test_a_file_that_is_changed_while_it_is_looked_at_is_not_current(tmp_path, file, at, monkeypatch):
    at(file.stat().st_ctime_ns + 2 * COARSE_NS)
    digest, top = sha256_of(file), str(tmp_path)

    def then_changed(*_):
        file.write_text("another, just after the first was read")
        at(LATER_NS)
        return digest

    monkeypatch.setattr(settled, "present_digest", then_changed)
    stamps = trusted_stamps(top, {"a.py": digest})
    assert stamps is None or not is_current(top, stamps)


def test_the_stamp_of_an_output_written_in_the_same_full_second_fits_nothing(tmp_path, file, at, monkeypatch):
    size, mtime, ctime, inode = files.file_stamp(file)
    for now, stamp in (
        (ctime, (size, mtime, ctime - ctime % 10**9, inode)),
        (ctime, (size, mtime, ctime - ctime % 10**9 + 1, inode)),
        (ctime + 2 * COARSE_NS, (size, mtime, ctime - ctime % 10**9, inode)),
    ):
        at(now)
        monkeypatch.setattr(files, "file_stamp", lambda path, stamp=stamp: stamp)
        may_change_unseen = stamp[2] % 10**9 == 0 and now == ctime
        assert lasting_stamp(file) == ((*stamp[:3], 0) if may_change_unseen else stamp)


# --- What is read back

KERNEL = SettledKernel(
    file="a.py",
    stages=7,
    outputs={"build/kernels/demo/gemm/gemm.so": [1, 2, 3, 4]},
    checks=1,
    check_outputs={},
    backends=["tvm_ffi"],
    products={"_lib/gemm.so": ["gemm/gemm.so", "0" * 64]},
    entry="1" * 64,
)


def whole() -> Settled:
    found = Settled("key", {"a.py": {"a.py": [1, 2, 3, 4], "b.py": None}}, {"a.py": ["a note"]}, {"gemm": KERNEL})
    found.copies = {"_lib/gemm.so": ((1, 2, 3, 4), "0" * 64)}
    return found


def test_what_was_written_is_read_back_under_the_same_key_only(tmp_path):
    path = tmp_path / "state" / "settled.json"
    write_settled(path, whole())
    assert read_settled(path, "key") == whole()
    assert read_settled(path, "another key") == Settled("another key")
    assert read_settled(tmp_path / "absent.json", "key") == Settled("key")
    assert read_settled(path, "key").of_file == {"a.py": {"gemm": KERNEL}}


def test_another_schema_or_a_changed_letter_is_empty(tmp_path):
    path = tmp_path / "settled.json"
    write_settled(path, whole())
    content = path.read_bytes()
    body = unsealed_object(content, settled.SCHEMA).raw
    path.write_bytes(content.replace(b"a note", b"A note"))
    assert read_settled(path, "key") == Settled("key")
    write_sealed(path, "settled 2", body)
    assert read_settled(path, "key") == Settled("key")
    write_sealed(path, settled.SCHEMA, body)
    assert read_settled(path, "key") == whole()


@pytest.mark.parametrize("name", ["../evil.so", "/evil.so", "_lib/../../evil.so", "a\0b"])
@pytest.mark.parametrize("place", ["copy", "product", "source"])
def test_a_path_that_leads_out_of_the_package_or_the_builds_is_damage(tmp_path, name, place):
    found = whole()
    if place == "copy":
        found.copies[name] = found.copies.pop("_lib/gemm.so")
    else:
        products = {name: ["gemm/gemm.so", "0" * 64]} if place == "product" else {"_lib/gemm.so": [name, "0" * 64]}
        found.kernels["gemm"] = replace(KERNEL, products=products)
    write_settled(tmp_path / "settled.json", found)
    assert read_settled(tmp_path / "settled.json", "key") == Settled("key")


@pytest.mark.parametrize("name", ["..", "a/b", "", "k\u00e4fer"])
def test_a_name_that_no_kernel_can_have_is_damage(tmp_path, name):
    found = whole()
    found.kernels = {name: KERNEL}
    write_settled(tmp_path / "settled.json", found)
    assert read_settled(tmp_path / "settled.json", "key") == Settled("key")
