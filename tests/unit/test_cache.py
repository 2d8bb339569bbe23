"""The build cache."""

from __future__ import annotations

import os
import threading

import pytest
from kernelwright.cache import BuildCache, key_of

KEY = key_of("signature", [("a.py", "digest")])


@pytest.fixture
def made(tmp_path):
    """A folder with the outputs of a stage."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a.cubin").write_bytes(bytes(range(256)))
    (folder / "empty").write_bytes(b"")
    return folder


def cache(tmp_path, limit=1 << 20, writable=True):
    return BuildCache(tmp_path / "cache", limit, writable)


def fetched(tmp_path, key=KEY, current=lambda name: ""):
    """What a fetch gives, and the files that it wrote."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    later = cache(tmp_path).fetch(key, out, current)
    return later, {path.name: path.read_bytes() for path in out.iterdir()}


def store(tmp_path, made, later=None):
    cache(tmp_path).store(KEY, made, ["a.cubin", "empty"], later or {})
    return tmp_path / "cache" / KEY[:2] / KEY


def test_what_was_stored_comes_back(tmp_path, made):
    store(tmp_path, made)
    assert fetched(tmp_path) == ({}, {"a.cubin": bytes(range(256)), "empty": b""})


def test_another_key_is_a_miss(tmp_path, made):
    store(tmp_path, made)
    assert fetched(tmp_path, key_of("signature", [("a.py", "other")])) == (None, {})
    assert key_of("s", [("a", "1")]) != key_of("s", [("a", "1"), ("b", "2")])


def test_entry_counts_only_if_what_the_stage_found_out_to_read_is_the_same(tmp_path, made):
    store(tmp_path, made, {"table.json": "then"})
    assert fetched(tmp_path, current=lambda name: "now")[0] is None
    assert fetched(tmp_path, current=lambda name: "then")[0] == {"table.json": "then"}


def test_every_flipped_bit_and_every_truncation_is_a_miss(tmp_path, made):
    entry = store(tmp_path, made)
    whole = entry.read_bytes()
    for position in range(len(whole)):
        entry.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << position % 8)]) + whole[position + 1 :])
        assert fetched(tmp_path) == (None, {})
        entry.write_bytes(whole[:position])
        assert fetched(tmp_path) == (None, {})
        assert not entry.exists(), "a damaged entry is removed"
    entry.write_bytes(whole)
    assert fetched(tmp_path)[0] == {}


def test_entry_under_the_key_of_another_stage_is_a_miss(tmp_path, made):
    entry = store(tmp_path, made)
    other = key_of("other", [])
    entry.parent.with_name(other[:2]).mkdir(exist_ok=True)
    entry.rename(entry.parent.with_name(other[:2]) / other)
    assert fetched(tmp_path, other) == (None, {})


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/b", "..", ""])
def test_entry_with_a_path_in_it_writes_nothing(tmp_path, made, name):
    import hashlib
    import json

    entry = store(tmp_path, made)
    content = json.dumps({"key": KEY, "later": {}, "files": [[name, 1]]}).encode() + b"\nx"
    entry.write_bytes(content + hashlib.sha256(content).digest())
    assert fetched(tmp_path) == (None, {})
    assert not (tmp_path / "escaped").exists()


def test_entries_used_least_recently_go_first(tmp_path, made):
    for number in range(4):
        (made / "a.cubin").write_bytes(bytes(10_000))
        cache(tmp_path).store(key_of(str(number), []), made, ["a.cubin"], {})
        place = tmp_path / "cache" / key_of(str(number), [])[:2] / key_of(str(number), [])
        os.utime(place, (number, number))
    fetched(tmp_path, key_of("0", []))
    small = cache(tmp_path, limit=25_000)
    small.store(key_of("new", []), made, ["a.cubin"], {})
    small.trim()
    kept = [fetched(tmp_path, key_of(name, []))[0] is not None for name in ("0", "1", "2", "3", "new")]
    assert kept == [True, False, False, False, True]


def test_read_only_cache_changes_nothing(tmp_path, made):
    entry = store(tmp_path, made)
    entry.write_bytes(b"damaged")
    reader = cache(tmp_path, limit=1, writable=False)
    assert reader.fetch(KEY, tmp_path, lambda name: "") is None
    reader.store(key_of("other", []), made, ["a.cubin"], {})
    reader.trim()
    assert entry.read_bytes() == b"damaged"
    assert len(list((tmp_path / "cache").glob("??/*"))) == 1


def test_cache_that_cannot_be_written_says_so_and_does_not_fail(tmp_path, made):
    (tmp_path / "cache").write_text("a file where the folder should be")
    broken = cache(tmp_path)
    broken.store(KEY, made, ["a.cubin"], {})
    assert broken.problem is not None
    assert "cache" in broken.problem


def test_many_writers_and_readers_at_once(tmp_path, made):
    wrong: list[object] = []

    def work() -> None:
        mine = cache(tmp_path)
        out = tmp_path / f"out-{threading.get_ident()}"
        out.mkdir()
        for _ in range(50):
            mine.store(KEY, made, ["a.cubin", "empty"], {})
            if mine.fetch(KEY, out, lambda name: "") is None or (out / "a.cubin").read_bytes() != bytes(range(256)):
                wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
