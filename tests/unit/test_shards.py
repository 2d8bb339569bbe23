"""Shards of kernels: which one a kernel is in, and how their build caches are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.core.sealed import form_of
from kernelwright.core.shard import Shard, parse_shard, shard_of
from kernelwright.state import shards
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import entry_key, key_of
from kernelwright.state.shards import BuiltShard, layered, merged_shards, note_shard, shard_in
from support.sealed_lines import line_with


def test_a_kernel_is_in_one_shard_which_only_its_name_decides() -> None:
    names = [f"kernel_{number}" for number in range(4000)]
    for count in (1, 2, 3, 8):
        parts = [[name for name in names if Shard(number, count).has(name)] for number in range(1, count + 1)]
        assert sorted(name for part in parts for name in part) == sorted(names)
        assert all(0.85 < len(part) * count / len(names) < 1.15 for part in parts)
    # What CI machines of two releases have to agree on.
    assert [str(shard_of(name, 8)) for name in ("gemm", "softmax", "saxpy")] == ["5/8", "3/8", "6/8"]


@pytest.mark.parametrize(
    "text", ["0/8", "9/8", "2/x", "8", "", "/", "2/", "-1/8", "1/8/2", " 1/8", "01/8", "1/0", "२/8"]
)
def test_what_is_no_shard_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--shard is .*expected a number of a shard") as error:
        parse_shard(text)
    assert "1/8" in str(error.value.remedy)


def filled(folder: Path, number: int, *stages: str, count: int = 2, **later: str) -> BuildCache:
    """The build cache of a shard, with an entry for each stage."""
    made = folder.parent / "made"
    made.mkdir(exist_ok=True)
    cache = BuildCache(folder, 1 << 20)
    for stage in stages:
        (made / "out").write_text(stage)
        cache.store(key_of(stage, []), made, ["out"], later)
    note_shard(folder, BuiltShard(Shard(number, count), {"demo": "key"}))
    return cache


def fetched(cache: BuildCache, folder: Path, stage: str, **later: str) -> str | None:
    """The output of a stage in a cache."""
    out = folder / "fetched"
    out.mkdir(exist_ok=True)
    found = cache.fetch(key_of(stage, []), out, ["out"], lambda name: later.get(name, ""))
    return None if found is None else (out / "out").read_text()


def merging(folder: Path, *shards: Path) -> tuple[BuildCache, list[str]]:
    """A build cache in front of those of shards, and what is told of damage."""
    told = list[str]()
    behind = layered(shards, tell=told.append)
    return BuildCache(folder, 1 << 20, behind=lambda: behind), told


def test_entries_of_all_shards_are_found_and_what_is_used_is_kept(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a", "common")
    filled(tmp_path / "2", 2, "b", "common", "unused")
    before = {path: path.read_bytes() for path in tmp_path.glob("[12]/*/*")}
    cache, told = merging(tmp_path / "all", tmp_path / "1", tmp_path / "2")
    assert [fetched(cache, tmp_path, stage) for stage in ("a", "b", "common", "c")] == ["a", "b", "common", None]
    assert told == [] and merged_shards([tmp_path / "1", tmp_path / "2"]).count == 2
    assert {path: path.read_bytes() for path in tmp_path.glob("[12]/*/*")} == before
    alone = BuildCache(tmp_path / "all", 1 << 20)
    assert [fetched(alone, tmp_path, stage) for stage in ("a", "b", "common", "unused")] == ["a", "b", "common", None]
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("all/??/*")}
    assert kept.items() <= {path.name: data for path, data in before.items()}.items(), "as they are"
    assert not any(path.name == shards.FILE for path in (tmp_path / "all").iterdir()), "it is no cache of a shard"


def test_an_answer_keeps_what_it_refers_to(tmp_path: Path) -> None:
    shard = filled(tmp_path / "1", 1, "a")
    (entry,) = (path.name for _, _, path in shard.entries())
    shard.remember("question", {"a": 1}, {}, refers={entry: ["out"]}, needs=[entry])
    cache, _ = merging(tmp_path / "all", tmp_path / "1")
    assert cache.recall("question", lambda name: "") == {"a": 1}
    assert cache.contents(entry, ["out"]) == {"out": b"a"}
    shutil.rmtree(tmp_path / "1")
    assert cache.contents(entry, ["out"]) == {"out": b"a"}
    assert sum(b'"refers":{"%s"' % entry.encode() in path.read_bytes() for _, _, path in cache.entries()) == 1


def test_every_list_of_files_is_found(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a", here="1")
    filled(tmp_path / "2", 2, "a", there="2")
    filled(tmp_path / "all", 1, "a", third="3")
    cache, _ = merging(tmp_path / "all", tmp_path / "1", tmp_path / "2")
    assert cache.has(key_of("a", []), lambda name: {"there": "2"}.get(name, ""))
    assert not cache.has(key_of("a", []), lambda name: "4") and not cache.has(key_of("b", []), lambda name: "")
    for known in ({"here": "1"}, {"there": "2"}, {"third": "3"}):
        assert fetched(cache, tmp_path, "a", **known) == "a"
        assert fetched(BuildCache(tmp_path / "all", 0), tmp_path, "a", **known) == "a"


def test_damaged_entries_are_left_out_and_told_and_stay(tmp_path: Path) -> None:
    source = filled(tmp_path / "1", 1, "a", "b", "c")
    filled(tmp_path / "2", 2, "b")
    places = {stage: source.place(entry_key(key_of(stage, []), {})) for stage in "abc"}
    places["a"].write_bytes(places["a"].read_bytes()[:-1] + b"?")
    places["b"].write_bytes(places["c"].read_bytes())
    cache, told = merging(tmp_path / "all", tmp_path / "1", tmp_path / "2")
    assert [fetched(cache, tmp_path, stage) for stage in "abc"] == [None, "b", "c"], "another shard has b"
    assert [*dict.fromkeys(told)] == [
        f"kernelwright: left out, because it is damaged: {places['a']}: the content does not fit its digest",
        f"kernelwright: left out, because it is damaged: {places['b']}: an entry of another key",
    ]
    assert all(place.is_file() for place in places.values())


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_in_the_place_of_an_entry_is_told(tmp_path: Path, kind: str) -> None:
    place = filled(tmp_path / "1", 1, "a").place(entry_key(key_of("a", []), {}))
    place.rename(tmp_path / "entry")
    place.mkdir() if kind == "folder" else place.symlink_to(tmp_path / "entry")
    cache, told = merging(tmp_path / "all", tmp_path / "1")
    assert fetched(cache, tmp_path, "a") is None and str(place) in told[0]


def test_entries_of_shards_are_used_where_none_can_be_kept(tmp_path: Path) -> None:
    name = entry_key(key_of("a", []), {})
    behind = layered([filled(tmp_path / "1", 1, "b").folder, filled(tmp_path / "2", 2, "a").folder])
    cache = BuildCache(tmp_path / "all", 0, writable=False, behind=lambda: behind)
    assert fetched(cache, tmp_path, "a") == "a" and cache.contents(name, ["out"]) == {"out": b"a"}
    assert cache.contents(name, ["other"]) is None and not (tmp_path / "all").exists()


def test_an_entry_that_is_damaged_here_is_replaced(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a")
    for _, _, entry in list(filled(tmp_path / "all", 1, "a").entries()):
        entry.write_bytes(b"")
    cache, told = merging(tmp_path / "all", tmp_path / "1")
    assert fetched(cache, tmp_path, "a") == "a" and told == []
    assert fetched(BuildCache(tmp_path / "all", 0), tmp_path, "a") == "a"


def test_other_folders_and_shards_of_two_divisions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    plain = BuildCache(tmp_path / "plain", 1 << 20)
    plain.remember("question", {}, {})
    for name in ("other", "plain", "missing"):
        with pytest.raises(SettingsError, match=f"{name}' is not the build cache of a shard"):
            merged_shards([tmp_path / name])
    filled(tmp_path / "1", 1, "a")
    filled(tmp_path / "2", 2, "a", count=3)
    with pytest.raises(SettingsError, match=r"do not belong together: 1/2 in .*/1, 2/3 in .*/2"):
        merged_shards([tmp_path / "1", tmp_path / "2"])


def of_shard(number: object) -> str:
    """The note of a shard of two."""
    return line_with(form_of(BuiltShard), {"shard": {"number": number, "count": 2}, "keys": {}}).decode()


@pytest.mark.parametrize("text", ["", '["x","BuiltShard 1",{}]', *map(of_shard, (0, 3, "1"))])
def test_a_damaged_note_says_nothing(tmp_path: Path, text: str) -> None:
    filled(tmp_path / "1", 1, "a")
    assert shard_in(tmp_path / "1") == BuiltShard(Shard(1, 2), {"demo": "key"})
    (tmp_path / "1" / shards.FILE).write_text(text)
    assert shard_in(tmp_path / "1") is None
