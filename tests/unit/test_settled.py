"""Finished kernels: what their stamps tell, when a stamp is trusted, and what is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core import files
from kernelwright.core.files import COARSE_NS, sha256_of
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
from support.sealed_lines import reseal

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


@pytest.mark.parametrize(
    ("ctime", "patience"), [(5_000_000_001, FINE_NS), (5_000_000_000, COARSE_NS)], ids=["fine times", "full seconds"]
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


# --- What is read back

STAMP = [1, 2, 3, 4]


def whole() -> Settled:
    """One finished kernel, with something of each kind."""
    stamps: dict[str, Any] = {"kernels/scale.py": STAMP, "absent": None}
    products = {"_lib/scale.so": ("scale/scale.so", "digest")}
    outputs, checks = {"build/scale.so": STAMP}, {"build/check.json": STAMP}
    kernel = SettledKernel("kernels/scale.py", 7, outputs, 2, checks, ["tvm_ffi"], products, "digest of the entry")
    notes, copies = {"kernels/scale.py": ["a note"]}, {"_lib/scale.so": ((1, 2, 3, 4), "d")}
    return Settled("key", {"kernels/scale.py": stamps}, notes, {"scale": kernel}, copies)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"key": ', '{"schema": 1, "key": '),
        ('[[1, 2, 3, 4], "d"]', '[[1, 2, 3], "d"]'),
        ('[[1, 2, 3, 4], "d"]', '[1, 2, 3, 4, "d"]'),
        ('"scale": {', '"../scale": {'),
        ('"scale": {', '"größe": {'),
        ('"copies": {"_lib/', '"copies": {"../'),
        ('"copies": {"_lib/', '"copies": {"/'),
        ('"stages": 7', '"stages": "7"'),
        ('["scale/scale.so", ', '["../scale.so", '),
        ('["scale/scale.so", ', '["scale\\u0000.so", '),
        ('"products": {"_lib/scale.so"', '"products": {"a/../../b"'),
        (', "entry": "digest of the entry"', ""),
    ],
)
def test_a_document_of_another_form_is_empty(tmp_path: Path, old: str, new: str) -> None:
    write_settled(tmp_path / "x.json", whole())
    assert read_settled(tmp_path / "x.json", "key") == whole()

    def changed(body: dict[str, Any]) -> Any:
        assert json.dumps(body).count(old) == 1
        return json.loads(json.dumps(body).replace(old, new))

    reseal(tmp_path / "x.json", changed)
    assert read_settled(tmp_path / "x.json", "key") == Settled("key")


def test_what_was_written_is_read_back_under_the_same_key_only(tmp_path):
    path = tmp_path / "state" / "settled.json"
    write_settled(path, whole())
    assert read_settled(path, "key") == whole()
    assert read_settled(path, "key").of_file == {"kernels/scale.py": {"scale": whole().kernels["scale"]}}
    assert read_settled(path, "another key") == Settled("another key")
    assert read_settled(tmp_path / "absent.json", "key") == Settled("key")
    path.write_bytes(path.read_bytes().replace(b"a note", b"A note"))
    assert read_settled(path, "key") == Settled("key")
