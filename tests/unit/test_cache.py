"""The build cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.core.files import LARGEST_RECORD, write_atomically
from kernelwright.core.sealed import sealed_object
from kernelwright.state import cache as cache_module
from kernelwright.state.cache import STALE_S, BuildCache
from kernelwright.state.entry import LARGEST_OUTPUTS, MOST_LISTS, SCHEMA, key_of

KEY = key_of("signature", [("a.py", "digest")])
FILES = ["a.cubin", "empty"]


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


def fetched(tmp_path, key=KEY, current=lambda name: "", files=FILES):
    """What a fetch gives, and the files that it wrote."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    later = cache(tmp_path).fetch(key, out, files, current)
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


def sealed(entry, line, data=b""):
    """Give an entry other contents, with digests that fit. Files are listed by their names and sizes."""
    if "files" in line:
        line = {"files": [*described(line["files"], data)]}
    entry.write_bytes(sealed_object(SCHEMA, {"key": entry.name, **line}) + data)


def described(files, data):
    """Files as the line of an entry has them."""
    for name, size in files:
        content, data = (data[:size], data[size:]) if size >= 0 else (b"", data)
        yield {"name": name, "size": size, "sha256": hashlib.sha256(content).hexdigest()}


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
    cache(tmp_path).store(other, made, FILES, {})
    (place,) = set(entries(tmp_path)) - {entry}
    entry.replace(place)
    assert fetched(tmp_path, other) == (None, {})
    assert not place.exists(), "it is removed"


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/b", "..", ""])
def test_entry_with_a_path_in_it_writes_nothing(tmp_path, made, name):
    entry = store(tmp_path, made)
    sealed(entry, {"files": [[name, 1]]}, b"x")
    assert fetched(tmp_path, files=[name]) == (None, {})
    assert not (tmp_path / "escaped").exists()


def behind(tmp_path, writable=True):
    """A cache with the one of the other tests behind it."""
    return BuildCache(tmp_path / "front", 1 << 20, writable, behind=lambda: cache(tmp_path, writable=False))


def fetched_through(tmp_path, store, current=lambda name: ""):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return store.fetch(KEY, out, FILES, current), {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize("later", [{}, {"table.json": "then"}])
def test_what_the_cache_behind_has_is_used_and_kept(tmp_path, made, later):
    entry = store(tmp_path, made, later)
    os.utime(entry, (1, 1))
    contents = {"a.cubin": bytes(range(256)), "empty": b""}
    assert fetched_through(tmp_path, behind(tmp_path, writable=False), lambda name: "then") == (later, contents)
    assert not (tmp_path / "front").exists()
    assert fetched_through(tmp_path, behind(tmp_path), lambda name: "then") == (later, contents)
    assert entry.stat().st_mtime == 1, "the cache behind is left alone"
    shutil.rmtree(tmp_path / "cache")
    assert fetched_through(tmp_path, behind(tmp_path), lambda name: "then") == (later, contents)
    assert fetched_through(tmp_path, behind(tmp_path), lambda name: "now")[0] == (None if later else {})


def test_the_cache_behind_is_asked_only_for_what_is_missing(tmp_path, made):
    store(tmp_path, made)

    def refuse():
        raise AssertionError("nothing is missing")

    front = BuildCache(tmp_path / "cache", 1 << 20, behind=refuse)
    front.store(KEY, made, FILES, {})
    assert fetched_through(tmp_path, front)[0] == {}


def test_damage_in_the_cache_behind_is_a_miss_and_stays(tmp_path, made):
    entry = store(tmp_path, made)
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert fetched_through(tmp_path, behind(tmp_path)) == (None, {})
    assert entry.exists() and not (tmp_path / "front").exists()


def test_entries_used_least_recently_go_first(tmp_path, made):
    for number in range(4):
        (made / "a.cubin").write_bytes(bytes(10_000))
        before = set(entries(tmp_path))
        cache(tmp_path).store(key_of(str(number), []), made, ["a.cubin"], {})
        (place,) = set(entries(tmp_path)) - before
        os.utime(place, (number, number))
    fetched(tmp_path, key_of("0", []), files=["a.cubin"])
    small = cache(tmp_path, limit=25_000)
    small.store(key_of("new", []), made, ["a.cubin"], {})
    small.trim()
    names = ("0", "1", "2", "3", "new")
    kept = [fetched(tmp_path, key_of(name, []), files=["a.cubin"])[0] is not None for name in names]
    assert kept == [True, False, False, False, True]


def test_read_only_cache_changes_nothing(tmp_path, made):
    damaged = store(tmp_path, made)
    good = store(tmp_path, made, {"table.json": "then"})
    damaged.write_bytes(b"damaged")
    for path in entries(tmp_path):
        os.utime(path, (1, 1))
    before = {path: path.read_bytes() for path in entries(tmp_path)}
    reader = cache(tmp_path, limit=1, writable=False)
    assert reader.fetch(KEY, tmp_path, FILES, lambda name: "now") is None
    assert reader.fetch(KEY, tmp_path, FILES, lambda name: "then") == {"table.json": "then"}
    reader.store(key_of("other", []), made, ["a.cubin"], {})
    reader.store(KEY, made, FILES, {"another.json": ""})
    reader.trim()
    assert {path: path.read_bytes() for path in entries(tmp_path)} == before
    assert {path.stat().st_mtime for path in entries(tmp_path)} == {1}
    assert good in before


def test_cache_that_cannot_be_written_says_so_and_does_not_fail(tmp_path, made):
    broken = cache(tmp_path)
    (tmp_path / "cache").write_text("a file that takes the place of the folder during the build")
    broken.store(KEY, made, ["a.cubin"], {})
    assert broken.problem is not None
    assert "cache" in broken.problem


def test_many_writers_and_readers_at_once(tmp_path, made):
    wrong: list[object] = []

    def work(number: int) -> None:
        mine = cache(tmp_path)
        out = tmp_path / f"out-{number}"
        out.mkdir()
        for _ in range(50):
            mine.store(KEY, made, ["a.cubin", "empty"], {})
            if mine.fetch(KEY, out, FILES, lambda name: "") is None or (out / "a.cubin").read_bytes() != bytes(
                range(256)
            ):
                wrong.append(out)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- What a stage turned out to depend on


def branch(made, content):
    """The outputs of a stage on a branch."""
    (made / "a.cubin").write_bytes(content)
    return made


def test_branches_whose_stages_read_other_files_do_not_evict_each_other(tmp_path, made):
    first = {"helper.py": "helper of a", "only_a.py": "1"}
    second = {"helper.py": "helper of b", "only_b.py": "2"}
    third = {"helper.py": "helper of b", "only_b.py": "3"}
    branches = [first, second, third]
    for number, later in enumerate(branches):
        assert fetched(tmp_path, current=lambda name, later=later: later.get(name, ""))[0] is None
        cache(tmp_path).store(KEY, branch(made, b"%d" % number), FILES, later)
    for _ in range(2):
        for number, later in enumerate(branches):
            found = fetched(tmp_path, current=lambda name, later=later: later.get(name, ""))
            assert found == (later, {"a.cubin": b"%d" % number, "empty": b""})


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
    full = cache(tmp_path, limit=total)
    full._stored = True
    full.trim()
    assert len(entries(tmp_path)) == 3, "nothing is removed as long as everything fits"
    small = cache(tmp_path, limit=total - 1)
    small._stored = True
    small.trim()
    assert len(entries(tmp_path)) == 2 and listed in entries(tmp_path)


@pytest.mark.parametrize("lists", [None, 1, [1], [[1]], [["x"], {}], {"a": 1}, [[None]]])
def test_list_of_another_form_is_a_miss(tmp_path, made, lists):
    outputs = store(tmp_path, made, {"helper.py": "there"})
    (listed,) = set(entries(tmp_path)) - {outputs}
    sealed(listed, {"lists": lists})
    assert fetched(tmp_path, current=lambda name: "there") == (None, {})
    store_again = cache(tmp_path)
    store_again.store(KEY, made, FILES, {"helper.py": "there"})
    assert fetched(tmp_path, current=lambda name: "there")[0] == {"helper.py": "there"}


def test_damaged_list_is_a_miss_and_goes(tmp_path, made):
    outputs = store(tmp_path, made, {"helper.py": "there"})
    (listed,) = set(entries(tmp_path)) - {outputs}
    whole = listed.read_bytes()
    for position in range(len(whole)):
        listed.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert fetched(tmp_path, current=lambda name: "there") == (None, {})
        assert not listed.exists()


def test_many_branches_at_once_never_get_the_outputs_of_another(tmp_path, made):
    wrong: list[object] = []

    def work(number: int) -> None:
        mine = cache(tmp_path)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.cubin").write_bytes(b"%d" % number)
        (folder / "empty").write_bytes(b"")
        later = {f"{number % 4}.py": str(number)}
        for _ in range(40):
            mine.store(KEY, folder, FILES, later)
            got = mine.fetch(KEY, folder, FILES, lambda name: later.get(name, ""))
            if got not in (None, later) or (folder / "a.cubin").read_bytes() != b"%d" % number:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for number in range(8):  # what was lost when two wrote at once is there after the next store
        later = {f"{number % 4}.py": str(number)}
        cache(tmp_path).store(KEY, tmp_path / str(number), FILES, later)
    for number in range(8):
        later = {f"{number % 4}.py": str(number)}
        found = fetched(tmp_path, current=lambda name, later=later: later.get(name, ""))
        assert found == (later, {"a.cubin": b"%d" % number, "empty": b""})


# --- Folders that are not ours


def test_folder_with_other_things_in_it_is_refused_and_stays(tmp_path, made):
    folder = tmp_path / "cache"
    (folder / "py").mkdir(parents=True)
    (folder / "py" / "precious.txt").write_text("mine")
    for writable in (True, False):
        with pytest.raises(SettingsError, match="has other things in it") as caught:
            cache(tmp_path, writable=writable)
        assert str(folder) in str(caught.value) and "cache_dir" in (caught.value.remedy or "")
        assert caught.value.where.stage == "settings"
    assert [path.name for path in folder.rglob("*")] == ["py", "precious.txt"]


@pytest.mark.parametrize(
    "text", ["", "Signature: 8a477f597d28d172789f06886806bc55\n# pip's", "# A build cache of Kernelwright"]
)
def test_cache_of_another_program_is_refused(tmp_path, text):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "CACHEDIR.TAG").write_text(text)
    with pytest.raises(SettingsError):
        cache(tmp_path)


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_folder_cannot_have_a_cache(tmp_path, link):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "cache").symlink_to("nothing" if link else "file")
    with pytest.raises(SettingsError, match="cache: that is no folder") as caught:
        cache(tmp_path)
    assert caught.value.where.stage == "settings" and caught.value.remedy == "set cache_dir to a folder"
    assert (tmp_path / "file").read_text() == "mine"


def test_empty_folder_and_one_that_a_killed_process_left_without_a_tag_are_taken(tmp_path, made):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".scratch-1-x").touch()
    store(tmp_path, made)
    tag = (tmp_path / "cache" / "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert fetched(tmp_path)[0] == {}


def test_a_folder_with_nothing_but_entries_is_a_cache_whose_tag_is_written_again(tmp_path, made):
    store(tmp_path, made)
    tag = tmp_path / "cache" / "CACHEDIR.TAG"
    for damage in (tag.unlink, lambda: tag.write_text("damaged"), lambda: tag.write_bytes(b"")):
        damage()
        assert fetched(tmp_path)[0] == {}
        cache(tmp_path).store(key_of("other", []), made, FILES, {})
        assert tag.read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    tag.write_text("damaged")
    (tmp_path / "cache" / "notes").touch()
    with pytest.raises(SettingsError):
        cache(tmp_path)


def test_folder_of_the_build_itself_needs_no_tag_and_gets_one(tmp_path, made):
    store(tmp_path, made)
    (tmp_path / "cache" / "CACHEDIR.TAG").write_text("damaged")
    (tmp_path / "cache" / "notes").touch()
    owner = BuildCache(tmp_path / "cache", 1 << 20, owned=True)
    owner.store(KEY, made, FILES, {})
    assert fetched(tmp_path)[0] == {}


def test_trimming_removes_entries_only(tmp_path, made):
    store(tmp_path, made, {"helper.py": "there"})
    folder = tmp_path / "cache"
    hexadecimal = "ab" + "0" * 62
    others = [
        "py/precious.txt",
        "ab/precious.txt",
        f"cd/{hexadecimal}",
        f"AB/{hexadecimal.upper()}",
        f"ab/{hexadecimal}.bak",
        f"{hexadecimal}",
        f"ab/{'ab' + 'g' * 62}",
    ]
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(1000))
    (folder / "ab" / hexadecimal).mkdir()
    outside = tmp_path / "outside" / hexadecimal
    outside.parent.mkdir()
    outside.write_text("mine")
    (folder / "ef").symlink_to(outside.parent)
    (outside.parent / ("ef" + "0" * 62)).write_text("mine")
    (folder / "ab" / ("ab" + "1" * 62)).symlink_to(outside)
    ours = {path for path in entries(tmp_path) if path.name[:2] == path.parent.name and b'"key"' in _content(path)}
    trimmed = cache(tmp_path, limit=0)
    trimmed._stored = True
    trimmed.trim()
    assert len(ours) == 2 and not any(path.exists() for path in ours)
    assert all((folder / name).read_bytes() == bytes(1000) for name in others)
    assert outside.read_text() == "mine" and (outside.parent / ("ef" + "0" * 62)).read_text() == "mine"
    assert (folder / "ab" / ("ab" + "1" * 62)).is_symlink()


def _content(path):
    return path.read_bytes() if path.is_file() else b""


def test_files_of_others_do_not_count(tmp_path, made):
    entry = store(tmp_path, made)
    (entry.parent / "large").write_bytes(bytes(5000))
    kept = cache(tmp_path, limit=entry.stat().st_size)
    kept._stored = True
    kept.trim()
    assert entry.exists()


def test_half_written_files_of_killed_processes_go_after_a_day(tmp_path, made, monkeypatch):
    entry = store(tmp_path, made)
    old, new = (entry.with_name(f".scratch-{number}-abcdefgh") for number in (1, 2))
    for path in (old, new):
        path.write_bytes(b"half")
    now = 1_000_000_000.0
    os.utime(old, (now - STALE_S - 1, now - STALE_S - 1))
    os.utime(new, (now - STALE_S + 1, now - STALE_S + 1))
    monkeypatch.setattr(time, "time", lambda: now)
    trimmed = cache(tmp_path)
    trimmed._stored = True
    trimmed.trim()
    assert not old.exists() and new.exists() and entry.exists()


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
    assert damaged.read_bytes() == b"somebody's"
    assert "symbolic link" in str(writer.problem)


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
    monkeypatch.setattr(cache_module, "write_atomically", swapped(write_atomically))
    monkeypatch.setattr(os, "utime", swapped(os.utime))
    monkeypatch.setattr(Path, "unlink", lambda path, remove=Path.unlink: swapped(remove)(path))
    writer = cache(tmp_path)
    entry.write_bytes(b"damaged")
    assert writer.fetch(KEY, tmp_path, FILES, lambda name: "") is None
    assert not entry.exists(), "removed where it was"
    writer.store(KEY, made, FILES, {})
    assert writer.fetch(KEY, tmp_path, FILES, lambda name: "") == {}
    assert [(path.read_bytes(), path.stat().st_mtime) for path in outside.iterdir()] == [(b"somebody's", 1)]


# --- What stands in the place of an entry


@pytest.mark.parametrize("names", [["a.cubin"], ["a.cubin", "empty", "more"], ["b.cubin", "empty"], []])
def test_entry_with_other_files_than_the_stage_is_a_miss_and_goes(tmp_path, made, names):
    entry = store(tmp_path, made)
    sealed(entry, {"files": [[name, 0] for name in names]})
    assert fetched(tmp_path) == (None, {})
    assert not entry.exists()


@pytest.mark.parametrize(
    ("listed", "data"),
    [
        ([["a.cubin", 2], ["empty", 0]], b"xyz"),
        ([["a.cubin", 4], ["empty", 0]], b"xyz"),
        ([["a.cubin", 2], ["empty", 2]], b"xyz"),
        ([["a.cubin", -1], ["empty", 3]], b"xyz"),
    ],
)
def test_entry_whose_sizes_are_not_those_of_its_contents_is_a_miss_and_goes(tmp_path, made, listed, data):
    entry = store(tmp_path, made)
    sealed(entry, {"files": listed}, data)
    assert fetched(tmp_path) == (None, {})
    assert not entry.exists()
    sealed(entry, {"files": [["a.cubin", 2], ["empty", 1]]}, b"xyz")
    assert fetched(tmp_path) == ({}, {"a.cubin": b"xy", "empty": b"z"})


def test_outputs_of_just_the_largest_size_are_kept(tmp_path, made, monkeypatch):
    monkeypatch.setattr("kernelwright.state.cache.LARGEST_OUTPUTS", 256)
    store(tmp_path, made)
    assert fetched(tmp_path)[0] == {}
    (made / "empty").write_bytes(b"1")
    cache(tmp_path).store(key_of("larger", []), made, FILES, {})
    assert fetched(tmp_path, key_of("larger", []))[0] is None


def test_nothing_is_removed_by_a_run_that_stored_nothing(tmp_path, made):
    entry = store(tmp_path, made)
    reader = cache(tmp_path, limit=0)
    reader.trim()
    assert entry.exists()


def pipe(path):
    os.mkfifo(path)


def sparse(path):
    with path.open("wb") as stream:
        stream.truncate(3 << 30)


def device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, sparse, device, folder])
@pytest.mark.parametrize("which", ["files", "lists"])
def test_what_is_no_entry_is_a_miss_and_replaced(tmp_path, made, make, which):
    store(tmp_path, made, {"helper.py": "there"})
    (place,) = [path for path in entries(tmp_path) if f'"{which}"'.encode() in path.read_bytes()]
    place.unlink()
    make(place)
    assert fetched(tmp_path, current=lambda name: "there") == (None, {})
    cache(tmp_path).store(KEY, made, FILES, {"helper.py": "there"})
    assert fetched(tmp_path, current=lambda name: "there")[0] == {"helper.py": "there"}


def test_outputs_that_are_too_large_to_be_read_back_are_not_kept(tmp_path, made):
    assert LARGEST_OUTPUTS < LARGEST_RECORD
    with (made / "a.cubin").open("wb") as stream:
        stream.truncate(LARGEST_OUTPUTS + 1)
    writer = cache(tmp_path)
    writer.store(KEY, made, FILES, {})
    assert writer.problem is None and entries(tmp_path) == []


def test_cache_that_another_process_makes_at_this_moment_is_taken(tmp_path, made, monkeypatch):
    listed = Path.iterdir

    def making(folder):
        store(tmp_path, made)  # just before this process looks at what is in the folder
        return listed(folder)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", lambda folder: (patched.undo(), making(folder))[1])
        late = cache(tmp_path)
    assert late.fetch(KEY, tmp_path, FILES, lambda name: "") == {}


QUESTION = ["tool", "nvcc", {"of": "13.0"}]


def test_an_answer_comes_back_as_it_was(tmp_path):
    answer = {"z": [1, "two"], "a": {"y": None, "x": 0.5}}
    cache(tmp_path).remember(QUESTION, answer, {})
    known = cache(tmp_path).recall(QUESTION, lambda name: "")
    assert known is not None and known.raw == answer
    assert [*known.raw, *known.raw["a"]] == ["z", "a", "y", "x"], "the order of a config's parameters counts"
    assert cache(tmp_path).recall([*QUESTION, "another"], lambda name: "") is None


def test_an_answer_counts_only_for_what_it_depends_on(tmp_path):
    cache(tmp_path).remember(QUESTION, {"is": 1}, {"a.py": "1", "b.py": ""})
    cache(tmp_path).remember(QUESTION, {"is": 2}, {"a.py": "2"})

    def known(**current):
        found = cache(tmp_path).recall(QUESTION, lambda name: current[name[0]])
        return found and found.raw["is"]

    assert known(a="1", b="") == 1 and known(a="2", b="9") == 2
    assert known(a="1", b="9") is None and known(a="3", b="") is None


def test_a_damaged_answer_is_none(tmp_path):
    cache(tmp_path).remember(QUESTION, {"is": 1}, {})
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    for data in (b"", whole[:-3], whole + b"x", whole.replace(b'"is"', b'"it"')):
        entry.write_bytes(data)
        assert cache(tmp_path).recall(QUESTION, lambda name: "") is None and not entry.exists()
    for text in (b"[1]", b"1", b"{", b"\xff", b"[" * 9000):
        sealed(entry, {"files": [("answer.json", len(text))]}, text)
        assert cache(tmp_path).recall(QUESTION, lambda name: "") is None


def test_a_cache_that_is_read_only_or_cannot_be_written_keeps_no_answer(tmp_path):
    cache(tmp_path, writable=False).remember(QUESTION, {"is": 1}, {})
    assert entries(tmp_path) == []
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/CACHEDIR.TAG").mkdir()
    (tmp_path / "cache/CACHEDIR.TAG/x").touch()
    broken = BuildCache(tmp_path / "cache", 1 << 20, owned=True)
    broken.remember(QUESTION, {"is": 1}, {})
    assert broken.problem and broken.recall(QUESTION, lambda name: "") is None


def test_no_stage_has_the_key_of_an_answer(tmp_path, made):
    cache(tmp_path).remember([], {"is": 1}, {})
    assert fetched(tmp_path, key_of("answer.json", []), files=["answer.json"]) == (None, {})
