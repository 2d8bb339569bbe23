"""Cached records of definition files: what makes them stale, and what a null build costs."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.core.files import sha256_of
from kernelwright.core.records import Record
from kernelwright.core.sealed import unsealed_object, write_sealed
from kernelwright.discover import discovery
from kernelwright.discover.discovery import DefinitionRecord, Discovery, KernelRecord, discover, remember_dependencies
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DiscoverRequest, Request
from workers_project import Project


class CountingPool(WorkerPool):
    """Remembers which files were asked for."""

    asked: list[str]

    def call(self, request: Request) -> dict[str, object]:
        self.asked.append(Path(getattr(request, "file", "")).name)
        return super().call(request)


class Tree(Project):
    """A project with a cache of records."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool = CountingPool(2, folder)
        self.pool.asked = []

    def discover(self, *files: str, identity: str = "tvm 1") -> Discovery:  # type: ignore[override]
        self.pool.asked.clear()
        paths = [self.folder / file for file in files]
        return discover(paths, self.folder, self.folder / "cache", lambda: self.pool, identity)

    @property
    def asked(self) -> list[str]:
        return sorted(self.pool.asked)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    tree = Tree(tmp_path_factory.mktemp("discovery"))
    with tree.pool:
        yield tree


@pytest.fixture
def tree(shared: Tree) -> Tree:
    for path in sorted(shared.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return shared


def must_not_start() -> WorkerPool:
    raise AssertionError("a null build asked for a worker")


def test_a_null_build_starts_no_worker(tree: Tree) -> None:
    files = [tree.copy("one"), tree.copy("two")]
    first = tree.discover(*files)
    assert [record.kernels[0].name for record in first.records] == ["one", "two"] and not first.errors
    again = discover([tree.folder / f for f in files], tree.folder, tree.folder / "cache", must_not_start, "tvm 1")
    assert again == first


def test_only_the_changed_file_is_executed_again(tree: Tree) -> None:
    files = [tree.copy("one"), tree.copy("two")]
    tree.discover(*files)
    times = (tree.folder / files[0]).stat()
    tree.copy("one", factor=3.0)  # the same size ...
    os.utime(tree.folder / files[0], ns=(times.st_atime_ns, times.st_mtime_ns))  # ... and the same time
    tree.discover(*files)
    assert tree.asked == ["one.py"]


def test_a_touched_file_with_the_same_content_is_not_executed_again(tree: Tree) -> None:
    file = tree.copy("one")
    tree.discover(file)
    os.utime(tree.folder / file, (1, 1))
    tree.discover(file)
    assert tree.asked == []


def test_a_change_of_an_imported_file_reaches_all_that_import_it(tree: Tree) -> None:
    helper = tree.write("kernels/_helper.py", "X = 1\n")
    files = [tree.empty("one", "import _helper"), tree.empty("two", "import _helper"), tree.empty("three")]
    assert {"kernels/_helper.py", "kernels/one.py"} <= set(tree.discover(*files).records[0].dependencies)
    helper.write_text("X = 2\n")
    tree.discover(*files)
    assert tree.asked == ["one.py", "two.py"]
    helper.unlink()
    assert [str(e.where.location) for e in tree.discover(*files).errors] == ["kernels/one.py:2", "kernels/two.py:2"]


def test_another_identity_is_a_miss(tree: Tree) -> None:
    file = tree.copy("one")
    tree.discover(file)
    tree.discover(file, identity="tvm 2")
    assert tree.asked == ["one.py"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"one"', '"two"'),
        lambda text: "0" * 64 + text[64:],
        lambda text: "\x00" * len(text),
    ],
)
def test_a_damaged_record_is_a_miss_and_not_a_failure(tree: Tree, damage: object) -> None:
    file = tree.copy("one")
    expected = tree.discover(file)
    (path,) = (tree.folder / "cache").glob("*.record")
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    assert tree.discover(file) == expected
    assert tree.asked == ["one.py"]


def test_errors_of_all_files_are_reported_in_their_order_beside_the_good_records(tree: Tree) -> None:
    bad = [str(tree.write(f"kernels/bad{n}.py", "1 +\n").relative_to(tree.folder)) for n in (1, 2)]
    found = tree.discover(bad[0], tree.copy("good"), bad[1])
    assert [error.where.location for error in found.errors] == ["kernels/bad1.py:1", "kernels/bad2.py:1"]
    assert [record.file for record in found.records] == ["kernels/good.py"]
    assert tree.discover(bad[0], "kernels/good.py", bad[1]).errors, "an error must not be cached as a success"
    assert tree.asked == ["bad1.py", "bad2.py"]


def test_one_name_in_two_files_is_an_error_that_names_both(tree: Tree) -> None:
    text = "from kernelwright import kernel\n\n@kernel\ndef same(): pass\n"
    files = [str(tree.write(f"kernels/{name}.py", text).relative_to(tree.folder)) for name in ("a", "b")]
    (error,) = tree.discover(*files).errors
    assert error.where.location == "kernels/b.py:3" and "kernels/a.py:3" in error.message


def test_the_name_of_a_kernel_in_a_file_that_is_not_looked_into_is_taken(tree: Tree) -> None:
    file = tree.copy("one")
    tree.discover(file)  # so that the record is read, and no worker asked
    others = {"one": "kernels/settled.py", "two": "kernels/more.py"}
    places = (tree.folder, tree.folder / "cache")
    (error,) = discover([tree.folder / file], *places, must_not_start, "tvm 1", others).errors
    assert "a kernel named 'one' is also defined at kernels/settled.py" in error.message
    assert error.where.location == "kernels/one.py:4" and error.remedy == "rename one of the two"
    del others["one"]
    assert not discover([tree.folder / file], *places, must_not_start, "tvm 1", others).errors


def test_a_file_given_twice_counts_once(tree: Tree) -> None:
    file = tree.copy("one")
    found = tree.discover(file, file)
    assert len(found.records) == 1 and not found.errors


def test_files_that_only_a_request_reads_are_known_from_then_on(tree: Tree) -> None:
    tree.write("kernels/_later.py", "")
    file = tree.empty("one", body="import _later")
    (record,) = tree.discover(file).records
    read = {name: sha256_of(tree.folder / name) for name in ("kernels/_later.py", "kernels/one.py")}
    expected = {"kernels/_later.py": read["kernels/_later.py"]}
    assert remember_dependencies(record, tree.folder, tree.folder / "cache", "one/default", read) == expected
    (record,) = tree.discover(file).records
    assert record.later == {"one/default": expected} and list(record.dependencies) == ["kernels/one.py"]
    assert tree.asked == []
    # An edit of it does not change what the kernels are, and an edit of the definition does not forget it.
    tree.write("kernels/_later.py", "X = 1\n")
    (record,) = tree.discover(file).records
    assert record.later["one/default"] != expected and tree.asked == []
    tree.empty("one", "X = 1", body="import _later")
    assert list(tree.discover(file).records[0].later["one/default"]) == ["kernels/_later.py"]
    (tree.folder / "kernels/_later.py").unlink()
    assert tree.discover(file).records[0].later == {"one/default": {"kernels/_later.py": ""}}
    (record,) = tree.discover(file).records
    assert remember_dependencies(record, tree.folder, tree.folder / "cache", "one/default", {}) == {}
    assert tree.discover(file).records[0].later == {}


def record_of(folder: Path) -> DefinitionRecord:
    """A definition file with a kept record, which no worker has made."""
    (folder / "k.py").write_text("")
    answer = {"schema": 3, "file": "k.py", "dependencies": {"k.py": sha256_of(folder / "k.py")}, "kernels": []}
    record = DefinitionRecord.from_json(Record(answer, ""))
    discovery._Cache(folder, folder / "cache", "").write(folder / "k.py", answer, record)
    return kept_record(folder)


def kept_record(folder: Path) -> DefinitionRecord:
    (record,) = discover([folder / "k.py"], folder, folder / "cache", must_not_start, "").records
    return record


def test_what_threads_note_at_once_is_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, place = record_of(tmp_path), tmp_path / "cache"
    requests = [f"k/m-{number} cuda" for number in range(8)]
    settled = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def flock(stream: Any, operation: int) -> None:
        """Wait for a lock as ever, and tell that it is waited for."""
        try:
            fcntl.flock(stream, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            settled.release()
            fcntl.flock(stream, operation)

    def note(request: str) -> None:
        remember_dependencies(record, tmp_path, place, request, {f"{request}.txt": "1"})
        settled.release()

    read: Callable[..., Any] = discovery._Cache._body

    def read_while_all_others_come(cache: Any, path: Path) -> Any:
        body = read(cache, path)
        if not threads:
            threads.extend(threading.Thread(target=note, args=(request,)) for request in requests[1:])
            for thread in threads:
                thread.start()
            for _ in threads:  # each of them waits for the lock, or has written already
                assert settled.acquire(timeout=120)
        return body

    locks = SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_SH=fcntl.LOCK_SH)
    monkeypatch.setattr(discovery, "fcntl", locks)
    monkeypatch.setattr(discovery._Cache, "_body", read_while_all_others_come)
    note(requests[0])
    for thread in threads:
        thread.join(120)
    assert len(threads) == 7
    assert kept_record(tmp_path).later == {request: {f"{request}.txt": ""} for request in requests}


def test_what_a_new_record_takes_over_is_not_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_of(tmp_path)
    store: Callable[..., None] = discovery._Cache._store
    refused = []

    def store_while_it_is_locked(cache: Any, path: Path, body: Any) -> None:
        with (tmp_path / "cache/lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(path.name)
        store(cache, path, body)

    monkeypatch.setattr(discovery._Cache, "_store", store_while_it_is_locked)
    record_of(tmp_path)
    assert refused == ["k.py"]


class Answers:
    """In place of workers: answers with a kernel of the file's name, or with what it was told to."""

    size = 2

    def __init__(self, **told: object) -> None:
        self.told = told
        self.requests: list[DiscoverRequest] = []
        self.closed = False

    def call(self, request: DiscoverRequest) -> Any:
        self.requests.append(request)
        name = Path(request.file).stem
        answer = self.told.get(name)
        if isinstance(answer, BaseException):
            raise answer
        kernel = {**GOOD_KERNEL, "name": name, "location": f"{request.file}:1"}
        return answer or {"schema": 3, "file": request.file, "dependencies": {request.file: ""}, "kernels": [kernel]}

    def close(self) -> None:
        self.closed = True


def ask(folder: Path, pool: Answers, *files: str, **options: Any) -> Discovery:
    paths = [folder / file for file in files]
    return discover(paths, folder, folder / "cache", lambda: cast(WorkerPool, pool), "identity", **options)


def test_workers_are_asked_for_paths_below_the_project_and_steps_are_noted(tmp_path: Path) -> None:
    noted: list[tuple[str, bool]] = []
    failure = DefinitionError("bad", Where(location="kernels/two.py:1"))
    pool = Answers(two=failure)

    def note(file: str, start: float, end: float, failed: bool) -> None:
        assert start <= end
        noted.append((file, failed))

    found = ask(tmp_path, pool, "kernels/one.py", "kernels/two.py", "/elsewhere/three.py", strict=True, note=note)
    assert [record.file for record in found.records] == ["kernels/one.py", "/elsewhere/three.py"]
    assert found.errors == [failure]
    files = ["/elsewhere/three.py", "kernels/one.py", "kernels/two.py"]
    assert sorted(request.file for request in pool.requests) == files
    assert all(request.strict for request in pool.requests)
    assert sorted(noted) == [(file, file == "kernels/two.py") for file in files]
    again = Answers()
    assert ask(tmp_path, again, "kernels/one.py", "/elsewhere/three.py").records == found.records
    assert again.requests == [] and not pool.closed
    ask(tmp_path, again, "kernels/four.py")
    assert [request.strict for request in again.requests] == [False]


def test_an_answer_of_another_form_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (error,) = ask(tmp_path, Answers(one={"schema": 1}), "one.py").errors
    assert isinstance(error, DefinitionError) and error.where.location == str(tmp_path / "one.py")
    assert error.message == "a worker's record has a wrong form: another schema"


def test_workers_end_when_the_user_does(tmp_path: Path) -> None:
    pool = Answers(one=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, pool, "one.py")
    assert pool.closed


def test_a_name_that_a_file_elsewhere_has_taken_is_an_error(tmp_path: Path) -> None:
    found = ask(tmp_path, Answers(), "a.py", "b/a.py", "c.py", others={"c": "d.py:7"})
    assert [(error.message, error.where) for error in found.errors] == [
        ("a kernel named 'a' is also defined at a.py:1", Where("a", stage="discover", location="b/a.py:1")),
        ("a kernel named 'c' is also defined at d.py:7", Where("c", stage="discover", location="c.py:1")),
    ]
    assert all(error.remedy == "rename one of the two" for error in found.errors)


def test_records_have_readable_names_and_never_the_same(tmp_path: Path) -> None:
    long = "x" * 90 + ".py"
    assert not ask(tmp_path, Answers(), "kernels/gr_e.py", f"kernels/{long}", "kernels/more/x.py").errors
    assert not ask(tmp_path, Answers(), f"y/{long}").errors
    names = sorted(path.name for path in (tmp_path / "cache").glob("*.record"))
    assert [re.sub("[0-9a-f]{8}", "#", name) for name in names] == [
        "kernels-gr_e-#.record",
        "kernels-more-x-#.record",
        "x" * 60 + "-#.record",
        "x" * 60 + "-#.record",
    ]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    "later", [[], {"one": "a.py"}, {"one": [1]}, {"one": None}, None], ids=["list", "text", "number", "null", "absent"]
)
def test_a_record_whose_further_files_have_another_form_is_a_miss(tmp_path: Path, later: object) -> None:
    ask(tmp_path, Answers(), "one.py")
    (path,) = (tmp_path / "cache").glob("*.record")
    body = unsealed_object(path.read_bytes(), discovery.FORMAT).raw
    assert set(body) == {"identity", "record", "later"} and body["later"] == {}
    body["later"] = later
    if later is None:
        del body["later"]
    write_sealed(path, discovery.FORMAT, body)
    pool = Answers()
    assert len(ask(tmp_path, pool, "one.py").records) == len(pool.requests) == 1


def test_a_record_that_was_copied_from_another_file_is_a_miss(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("")
    digests = {f"{name}.py": sha256_of(tmp_path / f"{name}.py") for name in ("one", "two")}
    kernel = {**GOOD_KERNEL, "name": "one"}
    told = {"schema": 3, "file": "one.py", "dependencies": {"one.py": digests["one.py"]}, "kernels": [kernel]}
    ask(tmp_path, Answers(one=told), "one.py")
    ask(tmp_path, Answers(), "two.py")
    mine, other = sorted((tmp_path / "cache").glob("*.record"))
    other.write_bytes(mine.read_bytes())
    pool = Answers()
    (record,) = ask(tmp_path, pool, "two.py").records
    assert [request.file for request in pool.requests] == ["two.py"]
    assert record.file == "two.py" and record.kernels[0].name == "two"


def test_further_files_of_one_request_do_not_replace_those_of_another(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    digests = {name: sha256_of(tmp_path / name) for name in ("b.txt", "a.txt")}
    (record,) = ask(tmp_path, Answers(), "one.py").records
    for request, names in (("one", ["b.txt", "a.txt"]), ("two", ["a.txt"])):
        read = {"one.py": "", **{name: digests[name] for name in names}}
        kept = remember_dependencies(record, tmp_path, tmp_path / "cache", request, read)
        assert list(kept) == sorted(names)
    (record,) = ask(tmp_path, Answers(), "one.py").records
    assert record.later == {"one": digests, "two": {"a.txt": digests["a.txt"]}}
    remember_dependencies(record, tmp_path, tmp_path / "cache", "one", {})
    (record,) = ask(tmp_path, Answers(), "one.py").records
    assert record.later == {"two": {"a.txt": digests["a.txt"]}}


GOOD_KERNEL = {
    "name": "k",
    "doc": "",
    "location": "k.py:1",
    "configs": [{"m": 1}],
    "slugs": ["m-1"],
    "targets": None,
    "archs": None,
    "backends": None,
    "outputs": ["y"],
    "flags": [],
    "tolerance": None,
    "reference": None,
    "takes_target": False,
    "frontend": "tir",
    "pass_configs": {},
}


def test_a_kernel_record_has_every_value_in_its_place() -> None:
    full = {
        **GOOD_KERNEL,
        "doc": "text",
        "configs": [{"m": 1, "x": 0.5}, {"m": True, "x": "a"}],
        "slugs": ["m-1", "m-2"],
        "targets": ["cuda"],
        "archs": [],
        "backends": ["jax", "torch"],
        "outputs": ["y", -1],
        "flags": ["-v"],
        "tolerance": 1,
        "reference": ["k"],
        "backward": "k_backward",
        "frontend": "cutedsl",
        "pass_configs": {"a": 1, "b": {"c": True}},
        "sources": ["a.cu"],
        "includes": ["package:b/include"],
    }
    assert KernelRecord.from_json(Record({**GOOD_KERNEL, "name": "Gemm_2Z"}, "")).name == "Gemm_2Z"
    record = KernelRecord.from_json(Record(full, ""))
    listed = (
        "configs",
        "slugs",
        "targets",
        "archs",
        "backends",
        "outputs",
        "flags",
        "sources",
        "includes",
        "reference",
    )
    known = {**full, **{name: tuple(full[name]) for name in listed}}
    assert asdict(record) == {**known, "choices": (), "has_cost": False, "per_arch": False}
    assert isinstance(record.tolerance, float)
    bare = KernelRecord.from_json(Record(GOOD_KERNEL, ""))
    assert (bare.targets, bare.archs, bare.backends, bare.tolerance, bare.backward) == (None,) * 5
    assert (bare.has_reference, bare.takes_target, bare.frontend) == (False, False, "tir")


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"name": "a-b"},
        {"name": "größe"},
        {"doc": None},
        {"location": 1},
        {"slugs": ["a/b"]},
        {"slugs": ["m-1", "m-2"]},
        {"slugs": ["m-1", "m-1"], "configs": [{"m": 1}, {"m": 2}]},
        {"slugs": [1]},
        {"flags": None},
        {"flags": [1]},
        {"tolerance": -1},
        {"tolerance": 10**400},
        {"takes_target": 1},
        {"frontend": None},
        {"configs": []},
        {"configs": [1]},
        {"configs": [{"m": [1]}]},
        {"slugs": []},
        {"targets": "llvm"},
        {"outputs": [1.5]},
        {"outputs": [True]},
        {"outputs": None},
        {"tolerance": "1"},
        {"reference": 1},
        {"backward": 1},
        {"pass_configs": None},
        {"pass_configs": {"a": [1]}},
    ],
)
def test_a_malformed_kernel_record_is_refused(change: dict[str, object]) -> None:
    assert KernelRecord.from_json(Record(GOOD_KERNEL, "")).outputs == ("y",)
    with pytest.raises(ValueError):
        KernelRecord.from_json(Record({**GOOD_KERNEL, **change}, ""))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 1},
        {"file": None},
        {"dependencies": {}},
        {"dependencies": {"k.py": 1}},
        {"dependencies": ["k.py"]},
        {"kernels": [{}]},
        {"kernels": ["k"]},
        {"kernels": None},
    ],
)
def test_a_malformed_definition_record_is_refused(change: dict[str, object]) -> None:
    good = {"schema": 3, "file": "k.py", "dependencies": {"k.py": "0"}, "kernels": [GOOD_KERNEL]}
    assert DefinitionRecord.from_json(Record(good, "")).file == "k.py"
    several = DefinitionRecord.from_json(Record({**good, "dependencies": {"k.py": "0", "a.py": "1"}}, ""))
    assert list(several.dependencies) == ["a.py", "k.py"] and [kernel.name for kernel in several.kernels] == ["k"]
    with pytest.raises(ValueError):
        DefinitionRecord.from_json(Record({**good, **change}, ""))
