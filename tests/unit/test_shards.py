"""Shards of kernels: which one a kernel is in, and how their build caches become one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.core.shard import Shard, parse_shard, shard_of
from kernelwright.state import shards
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import key_of
from kernelwright.state.shards import BuiltShard, merge, note_shard, shard_in


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


def test_entries_of_all_shards_get_into_one_cache(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a", "common")
    filled(tmp_path / "2", 2, "b", "common")
    before = {path: path.read_bytes() for path in tmp_path.glob("[12]/*/*")}
    cache = BuildCache(tmp_path / "all", 1 << 20)
    merged = merge(cache, [tmp_path / "1", tmp_path / "2"])
    assert (merged.entries, merged.damaged, merged.count) == (3, [], 2)
    assert [fetched(cache, tmp_path, stage) for stage in ("a", "b", "common", "c")] == ["a", "b", "common", None]
    assert {path: path.read_bytes() for path in tmp_path.glob("[12]/*/*")} == before
    assert not any(path.name == shards.FILE for path in (tmp_path / "all").iterdir()), "it is no cache of a shard"


def test_lists_of_files_are_put_together(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a", here="1")
    filled(tmp_path / "2", 2, "a", there="2")
    cache = filled(tmp_path / "all", 1, "a", third="3")
    merge(cache, [tmp_path / "1", tmp_path / "2"])
    for known in ({"here": "1"}, {"there": "2"}, {"third": "3"}):
        assert fetched(cache, tmp_path, "a", **known) == "a"
    assert cache.has(key_of("a", []), lambda name: {"there": "2"}.get(name, ""))
    assert not cache.has(key_of("a", []), lambda name: "4") and not cache.has(key_of("b", []), lambda name: "")


def test_damaged_entries_are_left_out_and_told_and_intact_ones_stay(tmp_path: Path) -> None:
    source = filled(tmp_path / "1", 1, "a", "b", "c")
    for (_, _, entry), damage in zip(sorted(source.entries(), key=str), ("cut", "other key", ""), strict=True):
        if damage == "cut":
            entry.write_bytes(entry.read_bytes()[:-1] + b"?")
        elif damage:
            entry.rename(entry.with_name(entry.name[:2] + "0" * 62))
    cache = filled(tmp_path / "all", 1)
    merged = merge(cache, [tmp_path / "1"])
    assert merged.entries == 1 and len(merged.damaged) == 2
    assert sorted(line.partition(": ")[2] for line in merged.damaged) == [
        "an entry of another key",
        "the content does not fit its digest",
    ]
    assert [fetched(cache, tmp_path, stage) is None for stage in ("a", "b", "c")].count(True) == 2


def test_an_entry_that_is_damaged_here_is_replaced(tmp_path: Path) -> None:
    filled(tmp_path / "1", 1, "a")
    cache = filled(tmp_path / "all", 1, "a")
    for _, _, entry in list(cache.entries()):
        entry.write_bytes(b"")
    merge(cache, [tmp_path / "1"])
    assert fetched(cache, tmp_path, "a") == "a"


def test_other_folders_and_shards_of_two_divisions_are_refused(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "all", 1 << 20)
    (tmp_path / "other").mkdir()
    plain = BuildCache(tmp_path / "plain", 1 << 20)
    plain.remember("question", {}, {})
    for name in ("other", "plain", "missing"):
        with pytest.raises(SettingsError, match=f"{name}' is not the build cache of a shard"):
            merge(cache, [tmp_path / name])
    filled(tmp_path / "1", 1, "a")
    filled(tmp_path / "2", 2, "a", count=3)
    with pytest.raises(SettingsError, match=r"do not belong together: 1/2 in .*/1, 2/3 in .*/2"):
        merge(cache, [tmp_path / "1", tmp_path / "2"])
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("text", ["", '["x","shard 1",{}]'])
def test_a_damaged_note_says_nothing(tmp_path: Path, text: str) -> None:
    filled(tmp_path / "1", 1, "a")
    assert shard_in(tmp_path / "1") == BuiltShard(Shard(1, 2), {"demo": "key"})
    (tmp_path / "1" / shards.FILE).write_text(text)
    assert shard_in(tmp_path / "1") is None
