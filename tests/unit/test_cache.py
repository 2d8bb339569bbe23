"""The build cache: lists of files, what is removed, links, the cache behind it, and answers.

What it has in common with other caches is in ``contracts/test_caches.py``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelwright.core.files import LARGEST_RECORD, write_atomically
from kernelwright.core.sealed import form_of
from kernelwright.state import entries as entries_module
from kernelwright.state import remote_entries
from kernelwright.state.cache import BuildCache
from kernelwright.state.entries import STALE_S
from kernelwright.state.entry import AN_ANSWER, LARGEST_OUTPUTS, MOST_LISTS, Header, key_of
from support.sealed_lines import line_with

KEY = key_of("signature", [("a.py", "digest")])
FILES = ["a.cubin", "empty"]
CONTENTS = {"a.cubin": bytes(range(256)), "empty": b""}


@pytest.fixture
def made(tmp_path):
    """A folder with the outputs of a stage."""
    folder = tmp_path / "made"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    return folder


def cache(tmp_path, limit=1 << 20, writable=True):
    return BuildCache(tmp_path / "cache", limit, writable)


def fetched(tmp_path, key=KEY, current=lambda name: "", files=FILES, source=None):
    """What a fetch gives, and the files that it wrote."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    later = (source or cache(tmp_path)).fetch(key, out, files, current)
    return later, {path.name: path.read_bytes() for path in out.iterdir()}


def entries(tmp_path):
    """The files in the cache."""
    return sorted((tmp_path / "cache").glob("??/*"))


def store(tmp_path, made, later=None):
    """Store a stage; the entry that has its outputs."""
    before = set(entries(tmp_path))
    cache(tmp_path).store(KEY, made, FILES, later or {})
    (entry,) = [path for path in set(entries(tmp_path)) - before if b'"files"' in path.read_bytes()]
    return entry


def trim(tmp_path, limit):
    """Cut the cache down as a run does that has stored something."""
    trimmed = cache(tmp_path, limit)
    trimmed._stored = True
    trimmed.trim()


def sealed(entry, line, data=b""):
    """Give an entry another line with a digest that fits. Files are listed by their names and sizes."""
    if "files" in line:
        files, rest = [], data
        for name, size in line["files"]:
            content, rest = (rest[:size], rest[size:]) if size >= 0 else (b"", rest)
            files.append({"name": name, "size": size, "sha256": hashlib.sha256(content).hexdigest()})
        line = {"files": files}
    entry.write_bytes(line_with(form_of(Header), {"key": entry.name, **line}) + data)


@pytest.mark.parametrize(
    ("listed", "data", "asked"),
    [
        *(([[name, 1]], b"x", [name]) for name in ("../escaped", "/tmp/escaped", "a/b", "..", "")),
        *(([[name, 0] for name in names], b"", FILES) for names in (["a.cubin"], [*FILES, "more"], ["b", "empty"], [])),
        *(([["a.cubin", one], ["empty", two]], b"xyz", FILES) for one, two in ((2, 0), (4, 0), (2, 2), (-1, 3))),
    ],
)
def test_an_entry_of_other_names_files_or_sizes_is_a_miss_and_goes(tmp_path, made, listed, data, asked):
    entry = store(tmp_path, made)
    sealed(entry, {"files": listed}, data)
    assert fetched(tmp_path, files=asked) == (None, {})
    assert not entry.exists() and not (tmp_path / "escaped").exists()
    sealed(entry, {"files": [["a.cubin", 2], ["empty", 1]]}, b"xyz")
    assert fetched(tmp_path) == ({}, {"a.cubin": b"xy", "empty": b"z"})


def test_outputs_of_just_the_largest_size_are_kept(tmp_path, made, monkeypatch):
    assert LARGEST_OUTPUTS < LARGEST_RECORD, "what is kept can be read back"
    monkeypatch.setattr("kernelwright.state.cache.LARGEST_OUTPUTS", 256)
    monkeypatch.setattr("kernelwright.state.entries.LARGEST_OUTPUTS", 256)
    store(tmp_path, made)
    (made / "empty").write_bytes(b"1")
    writer = cache(tmp_path)
    writer.store(key_of("larger", []), made, FILES, {})
    assert writer.problem is None and len(entries(tmp_path)) == 1 and fetched(tmp_path)[0] == {}


def test_a_file_is_looked_at_once_however_many_lists_it_is_in(tmp_path, made):
    for number in range(4):
        cache(tmp_path).store(KEY, made, FILES, {"helper.py": "then", f"{number}.py": ""})
    asked = []
    fetched(tmp_path, current=lambda name: asked.append(name) or "now")
    assert sorted(asked) == ["0.py", "1.py", "2.py", "3.py", "helper.py"]


def test_lists_of_a_stage_are_bounded_and_the_newest_stay(tmp_path, made):
    stored = [{f"{number}.py": "there"} for number in range(MOST_LISTS + 3)]
    for later in stored:
        cache(tmp_path).store(KEY, made, FILES, later)
    found = [fetched(tmp_path, current=lambda name, later=later: later.get(name, ""))[0] for later in stored]
    assert found == [None] * 3 + stored[3:]


@pytest.mark.parametrize("later", [{}, {"table.json": "then"}])
def test_what_the_cache_behind_has_is_used_and_kept_and_damage_there_stays(tmp_path, made, later):
    entry = store(tmp_path, made, later)
    os.utime(entry, (1, 1))

    def front(writable=True):
        return BuildCache(tmp_path / "front", 1 << 20, writable, behind=lambda: cache(tmp_path, writable=False))

    assert fetched(tmp_path, current=lambda name: "then", source=front(writable=False)) == (later, CONTENTS)
    assert not (tmp_path / "front").exists()
    assert fetched(tmp_path, current=lambda name: "then", source=front()) == (later, CONTENTS)
    assert entry.stat().st_mtime == 1, "the cache behind is left alone"
    (tmp_path / "cache").rename(tmp_path / "away")
    assert fetched(tmp_path, current=lambda name: "then", source=front()) == (later, CONTENTS)
    assert fetched(tmp_path, current=lambda name: "now", source=front())[0] == (None if later else {})
    (tmp_path / "away").rename(tmp_path / "cache")
    shutil.rmtree(tmp_path / "front")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert front().fetch(KEY, tmp_path, FILES, lambda name: "then") is None
    assert entry.exists() and not (tmp_path / "front").exists()


def test_the_cache_behind_is_asked_only_for_what_is_missing(tmp_path, made):
    front = BuildCache(tmp_path / "cache", 1 << 20, behind=pytest.fail)
    front.store(KEY, made, FILES, {})
    assert fetched(tmp_path, source=front) == ({}, CONTENTS)


def test_trimming_counts_lists_and_removes_none_before_the_entries_that_it_leads_to(tmp_path, made, monkeypatch):
    store(tmp_path, made, {"a" * 1000: "there"})
    (made / "a.cubin").write_bytes(b"")
    store(tmp_path, made, {"b" * 1000: "there"})
    total = sum(path.stat().st_size for path in entries(tmp_path))
    outputs = [path for path in entries(tmp_path) if b'"files"' in path.read_bytes()]
    (listed,) = set(entries(tmp_path)) - set(outputs)
    assert len(outputs) == 2
    touch, used = os.utime, []

    def note(path, times=None, **named):
        """Give each file that is used a time of its own."""
        used.append(path.resolve())
        touch(path, times or (len(used), len(used)), **named)

    for path in (listed, *outputs):
        touch(path, (0, 0))
    monkeypatch.setattr(os, "utime", note)
    fetched(tmp_path, current=lambda name: "there" if name[0] == "a" else "")
    assert len(used) == 2 and used[0] in outputs and used[1] == listed
    trim(tmp_path, total)
    assert len(entries(tmp_path)) == 3, "nothing is removed as long as everything fits"
    trim(tmp_path, total - 1)
    assert len(entries(tmp_path)) == 2 and listed in entries(tmp_path)


def test_nothing_is_removed_by_a_run_that_stored_nothing(tmp_path, made):
    entry = store(tmp_path, made)
    cache(tmp_path, limit=0).trim()
    assert entry.exists()


def test_trimming_removes_entries_only(tmp_path, made):
    ours = {store(tmp_path, made, {"helper.py": "there"}), *entries(tmp_path)}
    folder, hexadecimal = tmp_path / "cache", "ab" + "0" * 62
    others = [
        *("py/precious.txt", "ab/precious.txt", f"cd/{hexadecimal}", f"AB/{hexadecimal.upper()}"),
        *(f"ab/{hexadecimal}.bak", hexadecimal, f"ab/{'ab' + 'g' * 62}"),
    ]
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(1000))
    (folder / "ab" / hexadecimal).mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in (hexadecimal, "ef" + "0" * 62):
        (outside / name).write_text("mine")
    (folder / "ef").symlink_to(outside)
    (folder / "ab" / ("ab" + "1" * 62)).symlink_to(outside / hexadecimal)
    trim(tmp_path, sum(path.stat().st_size for path in ours))
    assert len(ours) == 2 and all(path.exists() for path in ours), "what others have does not count"
    trim(tmp_path, 0)
    assert not any(path.exists() for path in ours)
    assert all((folder / name).read_bytes() == bytes(1000) for name in others)
    assert [path.read_text() for path in outside.iterdir()] == ["mine"] * 2
    assert (folder / "ab" / ("ab" + "1" * 62)).is_symlink()


def test_half_written_files_of_killed_processes_go_after_a_day(tmp_path, made, monkeypatch):
    entry = store(tmp_path, made)
    old, new = (entry.with_name(f".scratch-{number}-abcdefgh") for number in (1, 2))
    now = 1_000_000_000.0
    for path, age in ((old, STALE_S + 1), (new, STALE_S - 1)):
        path.write_bytes(b"half")
        os.utime(path, (now - age, now - age))
    monkeypatch.setattr(time, "time", lambda: now)
    trim(tmp_path, 1 << 20)
    assert not old.exists() and new.exists() and entry.exists()


def test_folder_of_the_build_itself_needs_no_tag_and_gets_one(tmp_path, made):
    store(tmp_path, made)
    (tmp_path / "cache" / "CACHEDIR.TAG").write_text("damaged")
    (tmp_path / "cache" / "notes").touch()
    BuildCache(tmp_path / "cache", 1 << 20, owned=True).store(KEY, made, FILES, {})
    assert fetched(tmp_path)[0] == {}


def test_cache_that_another_process_makes_at_this_moment_is_taken(tmp_path, made, monkeypatch):
    listed = Path.iterdir

    def making(folder):
        store(tmp_path, made)  # just before this process looks at what is in the folder
        return listed(folder)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", lambda folder: (patched.undo(), making(folder))[1])
        late = cache(tmp_path)
    assert fetched(tmp_path, source=late)[0] == {}


def test_nothing_is_written_through_a_link_in_the_cache(tmp_path, made):
    entry = store(tmp_path, made)
    outside = tmp_path / "outside"
    entry.parent.rename(outside)
    entry.parent.symlink_to(outside)
    damaged = outside / entry.name
    damaged.write_bytes(b"somebody's")
    writer = cache(tmp_path)
    assert writer.fetch(KEY, tmp_path, FILES, lambda name: "") is None
    writer.store(KEY, made, FILES, {})
    assert damaged.read_bytes() == b"somebody's" and "symbolic link" in str(writer.problem)


def test_a_link_that_comes_between_look_and_write_leads_nothing_elsewhere(tmp_path, made, monkeypatch):
    shelf, outside = store(tmp_path, made).parent, tmp_path / "outside"
    outside.mkdir()

    def swapped(act):
        """Put a link in the place of the folder of entries, at the last moment."""

        def then(*arguments, **named):
            shelf.rename(tmp_path / "away")
            shelf.symlink_to(outside)
            try:
                return act(*arguments, **named)
            finally:
                os.unlink(shelf)  # noqa: PTH108
                (tmp_path / "away").rename(shelf)

        return then

    entry = next(shelf.iterdir())
    (outside / entry.name).write_bytes(b"somebody's")
    os.utime(outside / entry.name, (1, 1))
    monkeypatch.setattr(entries_module, "write_atomically", swapped(write_atomically))
    monkeypatch.setattr(os, "utime", swapped(os.utime))
    monkeypatch.setattr(Path, "unlink", lambda path, remove=Path.unlink: swapped(remove)(path))
    writer = cache(tmp_path)
    entry.write_bytes(b"damaged")
    assert writer.fetch(KEY, tmp_path, FILES, lambda name: "") is None
    assert not entry.exists(), "removed where it was"
    writer.store(KEY, made, FILES, {})
    assert writer.fetch(KEY, tmp_path, FILES, lambda name: "") == {}
    assert [(path.read_bytes(), path.stat().st_mtime) for path in outside.iterdir()] == [(b"somebody's", 1)]


QUESTION = ["tool", "nvcc", {"of": "13.0"}]


def test_an_answer_comes_back_as_it_was_for_what_it_depends_on_and_is_no_stage(tmp_path):
    answer = {"z": [1, "two"], "a": {"y": None, "x": 0.5}}
    cache(tmp_path).remember(QUESTION, answer, {"a.py": "1", "b.py": ""})
    cache(tmp_path).remember(QUESTION, {"is": 2}, {"a.py": "2"})

    def known(question=QUESTION, **current):
        return cache(tmp_path).recall(question, lambda name: current[name[0]])

    assert known(a="1", b="") == answer and known(a="2", b="9") == {"is": 2}
    assert [*known(a="1", b=""), *known(a="1", b="")["a"]] == ["z", "a", "y", "x"], "the order of parameters counts"
    assert known(a="1", b="9") is None and known(a="3", b="") is None
    assert known([*QUESTION, "another"], a="1", b="") is None
    cache(tmp_path).remember([], {"is": 1}, {})
    assert fetched(tmp_path, key_of("answer.json", []), files=["answer.json"]) == (None, {})


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 9000])
def test_an_answer_that_is_no_json_is_none(tmp_path, text):
    cache(tmp_path).remember(QUESTION, {"is": 1}, {})
    (entry,) = entries(tmp_path)
    sealed(entry, {"files": [("answer.json", 8)]}, b'{"is":2}')
    assert cache(tmp_path).recall(QUESTION, lambda name: "") == {"is": 2}
    sealed(entry, {"files": [("answer.json", len(text))]}, text)
    assert cache(tmp_path).recall(QUESTION, lambda name: "") is None


def test_so_many_names_of_others_are_looked_at_and_no_more_and_none_that_may_not_be_asked_for(monkeypatch):
    lists = iter([["a", "b"], ["a", "/home/x"], ["c", "d"], ["e"]])
    monkeypatch.setattr(remote_entries, "MOST_NAMES", 4)
    monkeypatch.setattr(
        remote_entries, "fetched", lambda *asked: (b"", found) if (found := next(lists, None)) else None
    )
    remote = SimpleNamespace(may_ask=lambda name: not name.startswith("/"))
    looked_at = [later for later, _ in remote_entries.slots(remote, "key", AN_ANSWER, str.upper)]
    assert looked_at == [{"a": "A", "b": "B"}]
    lists = iter([["a", "b"], ["c", "d"], ["e"]])
    looked_at = [later for later, _ in remote_entries.slots(remote, "key", AN_ANSWER, str.upper)]
    assert looked_at == [{"a": "A", "b": "B"}, {"c": "C", "d": "D"}]
