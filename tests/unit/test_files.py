"""The reader of what earlier runs wrote, files that are written whole, and links in the place of folders and locks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core import files
from kernelwright.core.files import (
    LARGEST_RECORD,
    canonical_json,
    dependency_digest,
    digest_of,
    file_stamp,
    folder_names,
    lasting_stamp,
    linked_folder,
    make_way,
    open_lock,
    pretty_json,
    read_record,
    remove_stale_scratch,
    scratch_folder,
    sha256_of,
    write_atomically,
)
from kernelwright.core.locks import hold, let_go
from support.disks import put_in_place

PATIENCE_S = 120
"""After so long a reader is taken to wait for ever; it is no limit that a slow machine comes near to."""


def result_of(function: Callable[[], Any]) -> Any:
    """What a function returns or raises; a failure if it waits for ever."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found, "it waits for ever"
    return found[0]


KINDS = ("pipe", "folder", "sparse", "device", "dangling", "link")


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_file_of_bounded_size_is_read(tmp_path, kind):
    put_in_place(tmp_path / "x", kind, b"content")
    found = result_of(lambda: read_record(tmp_path / "x"))
    assert isinstance(found, OSError) and found.filename == str(tmp_path / "x")
    assert found.strerror in (
        "it is not a regular file",
        "it is a symbolic link",
        f"it is larger than {LARGEST_RECORD:,} bytes",
    )


def test_file_is_read_up_to_its_limit_whatever_size_it_says(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_record(path) == read_record(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_record(path, 4)
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "y")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_record("/proc/self/stat", 3)


def test_digest_follows_links_and_waits_for_nobody(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert sha256_of(tmp_path / "link") == sha256_of(tmp_path / "file") == dependency_digest(tmp_path, "link")
    assert isinstance(result_of(lambda: sha256_of(tmp_path / "pipe")), OSError)
    assert result_of(lambda: dependency_digest(tmp_path, "pipe")) == ""
    assert dependency_digest(tmp_path, "a\0b") == dependency_digest(tmp_path, "absent") == ""


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling", "link"])
def test_lock_is_no_way_to_the_file_of_somebody_else(tmp_path, kind):
    put_in_place(tmp_path / "lock", kind, b"precious")
    assert isinstance(result_of(lambda: open_lock(tmp_path / "lock")), OSError)
    assert not (tmp_path / "nothing").exists()
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_lock_ends_although_a_child_that_was_forked_meanwhile_has_its_descriptor(tmp_path):
    lock = open_lock(tmp_path / "lock")
    hold(lock)
    childs = os.dup(lock)
    let_go(lock)
    fcntl.flock(other := open_lock(tmp_path / "lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in (childs, other):
        os.close(descriptor)


def test_a_reader_of_the_old_file_reads_it_to_its_end_while_a_new_one_takes_its_place(tmp_path):
    path = tmp_path / "folder" / "x"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, b"new and longer")
        assert reader.read() == "old"
    assert path.read_bytes() == b"new and longer"
    assert [p.name for p in path.parent.iterdir()] == ["x"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_a_file_is_as_readable_as_those_of_a_compiler_whatever_the_umask(tmp_path, umask):
    path, before = tmp_path / "a" / "b" / "x", os.umask(umask)
    try:
        write_atomically(path, "größe")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644 and path.read_bytes() == "größe".encode()
    assert names_in(path.parent) == ["x"]


def test_the_digest_of_a_file_is_that_of_all_of_it(tmp_path):
    content = bytes(3 << 20)
    (tmp_path / "x").write_bytes(content + b"end")
    assert sha256_of(tmp_path / "x") == hashlib.sha256(content + b"end").hexdigest()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_stamp_is_size_times_and_inode(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    os.utime(path, ns=(1, 10**18 + 1))
    status = path.stat()
    assert file_stamp(path) == (5, 10**18 + 1, status.st_ctime_ns, status.st_ino)
    with pytest.raises(FileNotFoundError):
        file_stamp(tmp_path / "y")


@pytest.mark.parametrize(
    ("changed", "after", "lasts"),
    [(10**18, 2_000_000_000, False), (10**18, 2_000_000_001, True), (10**18 + 1, 0, True), (10**18, -5, False)],
)
def test_a_stamp_lasts_if_the_next_change_will_give_another_one(monkeypatch, changed, after, lasts):
    stamp = (5, 1, changed, 7)
    monkeypatch.setattr(files, "file_stamp", lambda path: stamp)
    monkeypatch.setattr("time.time_ns", lambda: changed + after)
    assert lasting_stamp("x") == (stamp if lasts else (5, 1, changed, 0))


def test_json_is_equal_for_equal_values_or_in_the_given_order():
    value = {"b": [1, None], "a": "größe \ud800"}
    assert canonical_json(value) == '{"a":"gr\\u00f6\\u00dfe \\ud800","b":[1,null]}'
    assert pretty_json(value) == '{\n "b": [\n  1,\n  null\n ],\n "a": "größe \\ud800"\n}\n'
    assert json.loads(pretty_json(value)) == json.loads(canonical_json(value)) == value


def test_names_that_count_for_whoever_lists_a_folder_in_any_order(tmp_path, monkeypatch):
    for name in ("b.py", "a", ".hidden", "__pycache__", "build", "dist", "sub/build", "sub/.x", "sub/dist"):
        (tmp_path / name).mkdir(parents=True)
    assert folder_names(tmp_path, "./") == ["a", "b.py", "sub"]
    assert folder_names(tmp_path, "sub/") == ["build", "dist"]
    assert folder_names(tmp_path, "absent/") is folder_names(tmp_path, "a\0b/") is None
    listed = hashlib.sha256(b"a\nb.py\nsub").hexdigest()
    assert dependency_digest(tmp_path, "./") == listed != dependency_digest(tmp_path, "sub/")
    assert dependency_digest(tmp_path, "absent/") == ""
    names = ["b.txt", ".hidden", "a.txt", "__pycache__", "build"]
    monkeypatch.setattr(os, "listdir", lambda path: names)
    first, of_root = dependency_digest(tmp_path, "tables/"), dependency_digest(tmp_path, "./")
    names.reverse()
    assert (dependency_digest(tmp_path, "tables/"), dependency_digest(tmp_path, "./")) == (first, of_root)
    assert first != of_root, "the folder of builds is left out in the root only"
    names.remove(".hidden")
    assert dependency_digest(tmp_path, "tables/") == first
    names.append("c.txt")
    assert dependency_digest(tmp_path, "tables/") != first


def test_the_digest_of_some_files_has_their_names_and_contents_and_not_their_places(tmp_path):
    def made(folder: str, **content: str) -> list[Path]:
        (tmp_path / folder).mkdir()
        for name, text in content.items():
            (tmp_path / folder / name).write_text(text)
        return [tmp_path / folder / name for name in content]

    first = digest_of(made("1", a="x", b="y"))
    assert first == digest_of(made("2", b="y", a="x"))
    assert len({first, digest_of(made("3", a="x", c="y")), digest_of(made("4", a="x", b="z")), digest_of([])}) == 4
    assert digest_of(made("5", a="x")) == hashlib.sha256(b"a\0" + hashlib.sha256(b"x").digest()).hexdigest()


def test_an_empty_folder_makes_way_for_a_file_and_a_lock_and_one_with_content_stays(tmp_path):
    (tmp_path / "empty").mkdir()
    write_atomically(tmp_path / "empty", "x")
    assert (tmp_path / "empty").read_text() == "x"
    (tmp_path / "full" / "precious").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomically(tmp_path / "full", "x")
    assert names_in(tmp_path) == ["empty", "full"], "nothing half-written stays"
    assert (tmp_path / "full" / "precious").is_dir()
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        make_way(tmp_path / name)
    assert (tmp_path / "file").exists()
    (tmp_path / "lock").mkdir()
    os.close(open_lock(tmp_path / "lock"))
    assert (tmp_path / "lock").is_file()
    os.close(open_lock(tmp_path / "state" / "lock"))
    os.close(open_lock(tmp_path / "state" / "lock"))
    assert (tmp_path / "state" / "lock").read_bytes() == b""


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    write_atomically(tmp_path / "x", "old")

    def full(scratch: str, path: Path) -> None:
        assert Path(scratch).parent == tmp_path and Path(scratch).name.startswith(f".scratch-{os.getpid()}-")
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "x", "new")
    assert names_in(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"


def test_a_scratch_folder_lasts_as_long_as_its_use_and_that_of_a_dead_process_goes(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    with scratch_folder(tmp_path) as alive:
        (alive / "half").touch()
        (tmp_path / f".scratch-{dead.pid}-folder" / "in").mkdir(parents=True)
        (tmp_path / f".scratch-{dead.pid}-file").touch()
        (tmp_path / f"scratch-{dead.pid}-mine").touch()
        (tmp_path / ".scratch-mine").touch()
        remove_stale_scratch(tmp_path)
        assert {p.name for p in tmp_path.iterdir()} == {alive.name, f"scratch-{dead.pid}-mine", ".scratch-mine"}
    assert not alive.exists()
    with pytest.raises(KeyError), scratch_folder(tmp_path / "new") as folder:
        (folder / "x").write_text("x")
        assert folder.parent == tmp_path / "new" and folder.name.startswith(f".scratch-{os.getpid()}-")
        raise KeyError
    assert names_in(tmp_path / "new") == []


def test_first_link_below_the_base_is_found(tmp_path):
    (tmp_path / "disk" / "a" / "b").mkdir(parents=True)
    (tmp_path / "build").symlink_to(tmp_path / "disk")
    base = str(tmp_path / "build")
    assert linked_folder(base, base) is None
    assert linked_folder(base, f"{base}/a/b/c") is None
    (tmp_path / "disk" / "a" / "link").symlink_to(tmp_path / "disk")
    assert linked_folder(base, f"{base}/a/link") == linked_folder(base, f"{base}/a/link/a/b") == f"{base}/a/link"
