"""Finished kernels in the build cache: what is taken as a whole, and what is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.converter import to_json
from kernelwright.core.files import file_stamp, sha256_of
from kernelwright.core.shard import shard_of
from kernelwright.scons.restored import Restorers
from kernelwright.state import finished
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import entry_key, key_of
from kernelwright.state.finished import Finished, FinishedStage
from kernelwright.state.restorer import Restorer, Wanted
from kernelwright.state.settled import SettledKernel

FILES = {"gemm.so": b"library", "entry.json": b"{}", "compile.sh": b"#!"}
LINES = dict.fromkeys(FILES, '{"kind":"file"}')
KEY = key_of("link", [])
QUESTION = ["finished", 1]


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    """A build cache that has the outputs of one stage."""
    made = tmp_path / "made"
    made.mkdir()
    for name, data in FILES.items():
        (made / name).write_bytes(data)
    cache = BuildCache(tmp_path / "cache", 1 << 20)
    cache.store(KEY, made, list(FILES), {})
    return cache


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kernels(cache: BuildCache, **changes: Any) -> Finished:
    """A kernel of one stage."""
    outputs = {name: f"gemm/{name}" for name in FILES}
    stage = FinishedStage(entry_key(KEY, {}), "LINK", "gemm", "gemm", "", "", (), outputs, LINES)
    products = {"_lib/gemm.so": ("gemm/gemm.so", sha(b"library"))}
    kernel = SettledKernel("kernels/gemm.py", 1, {}, 0, {}, ["tvm_ffi"], products, sha(b"{}"))
    return Finished(("kernels/gemm.py",), ("a note",), {"gemm": replace(kernel, **changes)}, (stage,))


def test_what_was_noted_comes_back_without_the_stamps_of_this_tree_if_all_of_it_was_compared(cache):
    here = kernels(cache, outputs={"gemm.so": [1, 2, 3, 4]}, checks=1, check_outputs={"x": [1, 2, 3, 4]})
    finished.remember(cache, QUESTION, here, {"kernels/gemm.py": "1"})
    assert finished.recall(cache, QUESTION, lambda name: "1") == (kernels(cache), {})
    assert finished.recall(cache, QUESTION, lambda name: "2") is None
    finished.remember(
        cache, QUESTION, replace(kernels(cache), names=("kernels/gemm.py", "/etc/shadow")), {"kernels/gemm.py": "1"}
    )
    assert finished.recall(cache, QUESTION, lambda name: "1") is None


def test_outputs_are_written_and_one_that_is_there_is_never_written_over(cache, tmp_path):
    found = kernels(cache)
    written = finished.restore(cache, found, {}, str(tmp_path / "work"), ())
    assert written is not None and written.stages == found.stages
    assert written.digests == {f"gemm/{name}": sha(data) for name, data in FILES.items()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "work/gemm").iterdir()} == FILES
    place = tmp_path / "again/gemm/compile.sh"
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "somebodys.txt")
    assert finished.restore(cache, kernels(cache), {}, str(tmp_path / "again"), ()) is None
    assert not (tmp_path / "somebodys.txt").exists()


@pytest.mark.parametrize(
    "changes", [{"entry": "0" * 64}, {"products": {"_lib/gemm.so": ("gemm/gemm.so", "0" * 64)}}, {"entry": ""}]
)
def test_outputs_that_are_not_what_the_package_had_are_not_written(cache, tmp_path, changes):
    assert finished.restore(cache, kernels(cache, **changes), {}, str(tmp_path / "work"), ()) is None
    assert not (tmp_path / "work").exists()


def test_a_missing_or_damaged_entry_writes_nothing(cache: BuildCache, tmp_path: Path) -> None:
    (entry,) = (path for _, _, path in cache.entries())
    entry.write_bytes(entry.read_bytes()[:-1])
    assert finished.restore(cache, kernels(cache), {}, str(tmp_path / "work"), ()) is None
    assert not entry.exists() and not (tmp_path / "work").exists()


def test_what_kernels_have_in_common_is_written_once(cache: BuildCache, tmp_path: Path) -> None:
    found = kernels(cache)
    common = replace(found.stages[0], outputs={name: f"launcher/{name}" for name in FILES})
    both = replace(found, stages=(common, *found.stages))
    work = str(tmp_path / "work")
    first = finished.restore(cache, both, {}, work, ("launcher",))
    (tmp_path / "work/gemm").rename(tmp_path / "work/other")
    second = finished.restore(cache, both, {}, work, ("launcher",))
    assert first and second and (first.stages, second.stages) == ((common, *found.stages), found.stages)


LINES_OF_NO_JOURNAL = ("", "{}", '{"kind":"file"}\n{}', '["kind"]', {"kind": "file"})
OUTSIDE = (
    *("/etc/passwd", "../gemm/x", "gemm/../../x", "x", "gemm//x", "gemm/./x", "gemm/", "gemm/.scratch-1-x", "a\0/b"),
)
CHANGES: list[Callable[[Any], None]] = [
    *(lambda data, line=line: data["stages"][0]["lines"].update({"gemm.so": line}) for line in LINES_OF_NO_JOURNAL),
    *(lambda data, path=path: data["stages"][0]["outputs"].update({"gemm.so": path}) for path in OUTSIDE),
    lambda data: data.update(stages=data["stages"] * 2),
    lambda data: data.update(kernels={}),
    lambda data: data.update(kernels={"../gemm": data["kernels"]["gemm"]}),
    lambda data: data["stages"][0].update(entry="../../x"),
    lambda data: data["stages"][0]["lines"].pop("gemm.so"),
    lambda data: data.update(notes=[1]),
    lambda data: data.update(more=1),
]


@pytest.mark.parametrize("change", CHANGES)
def test_another_form_and_a_path_that_leads_out_of_the_folder_are_misses(cache, change):
    data, read = to_json(kernels(cache)), {"kernels/gemm.py": "1"}
    cache.remember([*QUESTION, "whole"], data, read)
    assert finished.recall(cache, [*QUESTION, "whole"], read.__getitem__) == (kernels(cache), {})
    change(data)
    cache.remember(QUESTION, data, read)
    assert finished.recall(cache, QUESTION, read.__getitem__) is None


def test_damage_of_what_kernels_have_in_common_is_seen_in_the_stamps_of_those_that_need_it(cache, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/gemm.py").write_text("# a definition")
    found = kernels(cache)
    places = {"_lib": ("gemm",), "_objects": ("gemm",), "launcher": (), "glibc": ()}
    common = tuple(
        replace(found.stages[0], kernel="", users=users, outputs={name: f"{place}/{name}" for name in FILES})
        for place, users in places.items()
    )
    products = {**found.kernels["gemm"].products, "_lib/l.so": ("launcher/gemm.so", sha(b"library"))}
    kernel = replace(found.kernels["gemm"], products=products)
    found = replace(found, kernels={"gemm": kernel}, stages=(*common, *found.stages))
    finished.remember(cache, QUESTION, found, {"kernels/gemm.py": sha256_of(tmp_path / "kernels/gemm.py")})
    # Another definition file has brought some of it, of which a file was removed meanwhile.
    (tmp_path / "work/_objects").mkdir(parents=True)
    (tmp_path / "work/_objects/gemm.so").write_bytes(b"library")
    wanted = Wanted(
        [str(cache.folder)], str(tmp_path), str(tmp_path / "work"), [*places], taken=[], tables={}, shard=""
    )
    restored = Restorer(cache, wanted).restore(QUESTION)
    assert restored is not None
    paths = [f"{place}/{name}" for place in ("_lib", "gemm") for name in FILES] + [
        "_objects/gemm.so",
        "launcher/gemm.so",
    ]
    stamps = {f"work/{path}": [*file_stamp(tmp_path / "work" / path)] for path in paths}
    assert restored.kernels["gemm"].outputs == stamps


def test_kernels_of_a_file_are_restored_only_if_this_tree_wants_all_of_them_as_they_are(cache, tmp_path):
    """It may have a tuning table that they were made without, or one of them, or build another shard."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/gemm.py").write_text("# two definitions")
    found = kernels(cache)
    other = replace(found.kernels["gemm"], products={"_lib/other.so": ("other/gemm.so", sha(b"library"))})
    stage = replace(found.stages[0], kernel="other", outputs={name: f"other/{name}" for name in FILES})
    found = replace(found, kernels={**found.kernels, "other": other}, stages=(*found.stages, stage))
    finished.remember(cache, QUESTION, found, {"kernels/gemm.py": sha256_of(tmp_path / "kernels/gemm.py")})
    count = next(count for count in range(2, 9) if shard_of("gemm", count) != shard_of("other", count))
    tables, shards = {"other": ("tuning/other.sm_80-108.json",)}, [str(shard_of(name, count)) for name in found.kernels]
    refused = [({}, ["other"], ""), (tables, [], ""), *(({}, [], shard) for shard in shards)]
    for tables, taken, shard in (*refused, ({}, [], "1/1")):
        wanted = Wanted([str(cache.folder)], str(tmp_path), str(tmp_path / "work"), [], taken, tables, shard)
        assert bool(Restorer(cache, wanted).restore(QUESTION)) == (shard == "1/1")


def test_a_process_restores_what_the_cache_of_a_shard_has(cache: BuildCache, tmp_path: Path) -> None:
    source = tmp_path / "kernels/gemm.py"
    source.parent.mkdir()
    source.write_text("# a definition")
    finished.remember(cache, QUESTION, kernels(cache), {"kernels/gemm.py": sha256_of(source)})
    caches = [str(tmp_path / "own"), str(tmp_path / "empty"), str(cache.folder)]
    wanted = Wanted(caches, str(tmp_path), str(tmp_path / "work"), [], taken=[], tables={}, shard="")
    with (tmp_path / "lock").open("w") as lock, Restorers(1, wanted, lock.fileno()) as restorers:
        (done,) = restorers.map(lambda number: [(QUESTION, None), ("another", None)], lambda came: None, [0])
    restored, nothing = done.restored
    assert restored is not None and nothing is None and done.work.stored and done.work.problem is None
    assert {path.name: path.read_bytes() for path in (tmp_path / "work/gemm").iterdir()} == FILES
    kernel = kernels(cache).kernels["gemm"]
    stamps = {f"work/gemm/{name}": [*file_stamp(tmp_path / "work/gemm" / name)] for name in FILES}
    assert restored.kernels == {"gemm": replace(kernel, outputs=stamps)}
    own = BuildCache(tmp_path / "own", 0)
    assert finished.recall(own, QUESTION, lambda name: sha256_of(tmp_path / name)) == (kernels(cache), {})
    assert own.contents(entry_key(KEY, {}), list(FILES)) == FILES
