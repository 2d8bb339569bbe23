"""The reader of what earlier runs wrote, and all that use it; links in the place of folders and of locks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelwright.discovery import _Cache
from kernelwright.errors import KernelwrightError
from kernelwright.files import (
    LARGEST_RECORD,
    dependency_digest,
    linked_folder,
    open_lock,
    read_record,
    sealed,
    sha256_of,
)
from kernelwright.memory import Measurements
from kernelwright.records import read_json
from kernelwright.settled import Settled, read_settled
from kernelwright.toolchain import Toolchain
from kernelwright.trace import read_trace

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


def put(path: Path, kind: str, content: bytes = b"") -> None:
    """Put what is no file that a build wrote in the place of one."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(3 << 30)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to(path.with_name("nothing"))
    else:
        path.with_name("elsewhere").write_bytes(content)
        path.symlink_to(path.with_name("elsewhere"))


KINDS = ("pipe", "folder", "sparse", "device", "dangling", "link")


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_file_of_bounded_size_is_read(tmp_path, kind):
    put(tmp_path / "x", kind, b"content")
    found = result_of(lambda: read_record(tmp_path / "x"))
    assert isinstance(found, OSError) and found.filename == str(tmp_path / "x")
    assert found.strerror in (
        "it is not a regular file",
        "it is a symbolic link",
        f"it is larger than {LARGEST_RECORD:,} bytes",
    )


def test_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_record(path) == read_record(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_record(path, 4)
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "y")


def test_file_that_says_that_it_is_empty_and_is_not_is_bounded_too():
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_record("/proc/self/stat", 3)


@pytest.mark.parametrize("kind", KINDS)
def test_json_file_is_an_error_that_names_it(tmp_path, kind):
    put(tmp_path / "x.json", kind, b"{}")
    for read in (
        lambda: read_json(tmp_path / "x.json", lambda d: d.raw, "mend it"),
        lambda: read_trace(tmp_path / "x.json"),
    ):
        found = result_of(read)
        assert isinstance(found, KernelwrightError) and str(tmp_path / "x.json") in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_settled_kernels_are_empty_then(tmp_path, kind):
    body = [2, "key", {"a.py": {}}, {}, {}, {}]
    put(tmp_path / "x.json", kind, sealed(json.dumps(body)))
    assert result_of(lambda: read_settled(tmp_path / "x.json", "key")) == Settled("key")


@pytest.mark.parametrize("kind", KINDS)
def test_probes_are_empty_then(tmp_path, kind):
    kept = {"cc /usr/bin/cc": {"stamp": "", "values": {"version": "", "identity": ""}}}
    put(tmp_path / "x.json", kind, sealed(json.dumps(kept)))
    assert result_of(lambda: Toolchain(tmp_path / "x.json", {})._kept) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_measurements_are_empty_then(tmp_path, kind):
    put(tmp_path / "x.json", kind, json.dumps({"schema": 1, "runs": {"nvcc": {"a": [1, 1.0, 1.0]}}}).encode())
    assert result_of(lambda: Measurements(tmp_path / "x.json").find("nvcc", "a")) is None


@pytest.mark.parametrize("kind", KINDS)
def test_record_of_a_definition_is_a_miss_then(tmp_path, kind):
    cache = _Cache(tmp_path, tmp_path / "records", "identity")
    source, answer = tmp_path / "a.py", {"schema": 2, "file": "a.py", "kernels": []}
    source.write_text("")
    answer["dependencies"] = {"a.py": sha256_of(source)}
    cache._store(source, {"identity": "identity", "record": answer, "later": {}})
    assert cache.read(source) is not None
    place = cache._place(source)
    content = place.read_bytes()
    place.unlink()
    put(place, kind, content)
    assert result_of(lambda: cache.read(source)) is None


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
    put(tmp_path / "lock", kind, b"precious")
    assert isinstance(result_of(lambda: open_lock(tmp_path / "lock")), OSError)
    assert not (tmp_path / "nothing").exists()
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_lock_is_made_with_its_folder(tmp_path):
    os.close(open_lock(tmp_path / "state" / "lock"))
    os.close(open_lock(tmp_path / "state" / "lock"))
    assert (tmp_path / "state" / "lock").read_bytes() == b""


def test_first_link_below_the_base_is_found(tmp_path):
    (tmp_path / "disk" / "a" / "b").mkdir(parents=True)
    (tmp_path / "build").symlink_to(tmp_path / "disk")
    base = str(tmp_path / "build")
    assert linked_folder(base, base) is None
    assert linked_folder(base, f"{base}/a/b/c") is None
    (tmp_path / "disk" / "a" / "link").symlink_to(tmp_path / "disk")
    assert linked_folder(base, f"{base}/a/link") == linked_folder(base, f"{base}/a/link/a/b") == f"{base}/a/link"
