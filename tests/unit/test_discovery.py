"""Cached records of definition files: what makes them stale, and what a null build costs."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kernelwright.core.converter import from_json
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.core.files import sha256_of
from kernelwright.core.sealed import read_sealed, write_sealed
from kernelwright.define.record import DefinitionRecord, KernelRecord, definition_record
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DiscoverRequest, result_of
from kernelwright.stages import discovery
from kernelwright.stages.discovery import DefinitionRecords, Discovery, KeptRecords


class Answers:
    """In place of workers: answers with a kernel of the file's name, or with what it was told to.

    Arguments:
        folder: the project. Where a file is there, its digest is in the answer.
        imports: file -> the files that it imports.
        told: name of a file -> an answer, or what is raised.
    """

    size = 2

    def __init__(self, folder: Path, imports: dict[str, list[str]] | None = None, **told: object) -> None:
        self.folder, self.imports, self.told = folder, imports or {}, told
        self.requests: list[DiscoverRequest] = []
        self.closed = False

    @property
    def asked(self) -> list[str]:
        """The files that were asked for since the last look."""
        asked, self.requests = sorted(request.file for request in self.requests), []
        return asked

    def call(self, request: DiscoverRequest) -> Any:
        self.requests.append(request)
        name = Path(request.file).stem
        answer = self.told.get(name)
        if isinstance(answer, BaseException):
            raise answer
        files = {file: self.folder / file for file in (request.file, *self.imports.get(request.file, ()))}
        dependencies = {file: sha256_of(path) if path.exists() else "" for file, path in files.items()}
        kernel = {**GOOD_KERNEL, "name": name, "location": f"{request.file}:1"}
        made = {"file": request.file, "dependencies": dependencies, "kernels": [kernel]}
        return result_of(request, made if answer is None else answer)

    def close(self) -> None:
        self.closed = True


def ask(folder: Path, pool: Answers | None, *files: str, identity: str = "tvm 1", **options: Any) -> Discovery:
    """Ask for the kernels of files; without a pool, nobody may be asked."""

    def workers() -> WorkerPool:
        assert pool is not None, "it asked for a worker"
        return cast(WorkerPool, pool)

    records = DefinitionRecords(folder, folder / "cache", identity)
    return records.discover([folder / file for file in files], workers, **options)


def test_only_what_changed_is_executed_again(tmp_path: Path) -> None:
    files = ["kernels/one.py", "kernels/two.py", "kernels/three.py"]
    helper = tmp_path / "kernels/_helper.py"
    helper.parent.mkdir()
    for file in (*files, helper):
        (tmp_path / file).write_text("X = 1")
    pool = Answers(tmp_path, {file: ["kernels/_helper.py"] for file in files[:2]})
    first = ask(tmp_path, pool, *files, files[0])
    assert [record.kernels[0].name for record in first.records] == ["one", "two", "three"] and not first.errors
    assert set(first.records[0].dependencies) == {"kernels/_helper.py", "kernels/one.py"}
    assert pool.asked == sorted(files)
    assert ask(tmp_path, None, *files) == first, "a null build starts no worker"
    os.utime(tmp_path / files[0], (1, 1))
    assert ask(tmp_path, None, *files) == first, "it was only touched"
    times = (tmp_path / files[0]).stat()
    (tmp_path / files[0]).write_text("X = 2")  # the same size, and the same time
    os.utime(tmp_path / files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    ask(tmp_path, pool, *files)
    assert pool.asked == files[:1]
    helper.write_text("X = 2")
    ask(tmp_path, pool, *files)
    assert pool.asked == files[:2], "all that import it"
    ask(tmp_path, pool, *files, identity="tvm 2")
    assert pool.asked == sorted(files)


DAMAGE: list[Callable[[str], str]] = [
    *(lambda text: "", lambda text: text[: len(text) // 2], lambda text: text.replace('"one"', '"two"')),
    *(lambda text: "0" * 64 + text[64:], lambda text: "\x00" * len(text)),
]


def test_a_damaged_record_and_one_of_another_file_are_misses_and_no_failure(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("")
    pool = Answers(tmp_path)
    expected = ask(tmp_path, pool, "one.py", "two.py")
    path, other = sorted((tmp_path / "cache").glob("*.record"))
    assert pool.asked == ["one.py", "two.py"]
    for damage in DAMAGE:
        path.write_text(damage(path.read_text()))
        assert ask(tmp_path, pool, "one.py", "two.py") == expected and pool.asked == ["one.py"]
    other.write_bytes(path.read_bytes())
    assert ask(tmp_path, pool, "one.py", "two.py") == expected and pool.asked == ["two.py"]
    kept = read_sealed(path, discovery._Kept)
    assert kept is not None
    write_sealed(path, replace(kept, record=replace(kept.record, dependencies={})))  # whole, and it does not fit
    assert ask(tmp_path, pool, "one.py", "two.py") == expected and pool.asked == ["one.py"]


def test_errors_of_all_files_are_reported_in_their_order_beside_the_good_records(tmp_path: Path) -> None:
    bad = {name: DefinitionError("bad", Where(location=f"{name}.py:1")) for name in ("bad1", "bad2")}
    pool = Answers(tmp_path, **bad)
    for asked in (["bad1.py", "bad2.py", "good.py"], ["bad1.py", "bad2.py"]):
        found = ask(tmp_path, pool, "bad1.py", "good.py", "bad2.py")
        assert found.errors == [*bad.values()] and [record.file for record in found.records] == ["good.py"]
        assert pool.asked == asked, "an error is not kept as a success is"


def test_a_name_that_is_taken_is_an_error_that_names_both(tmp_path: Path) -> None:
    others = {"c": "d.py:7"}
    for pool in (Answers(tmp_path), None):
        found = ask(tmp_path, pool, "a.py", "b/a.py", "c.py", others=others)
        assert [(error.message, error.where) for error in found.errors] == [
            ("a kernel named 'a' is also defined at a.py:1", Where("a", stage="discover", location="b/a.py:1")),
            ("a kernel named 'c' is also defined at d.py:7", Where("c", stage="discover", location="c.py:1")),
        ]
        assert all(error.remedy == "rename one of the two" for error in found.errors)
    assert not ask(tmp_path, None, "a.py", "c.py").errors


def test_files_that_only_a_request_reads_are_known_from_then_on(tmp_path: Path) -> None:
    for name in ("one.py", "a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    digests = {name: sha256_of(tmp_path / name) for name in ("b.txt", "a.txt")}
    pool = Answers(tmp_path)

    def later() -> dict[str, Any]:
        return dict(ask(tmp_path, pool, "one.py").records[0].later)

    def note(request: str, *names: str) -> dict[str, str]:
        (record,) = ask(tmp_path, pool, "one.py").records
        read = {"one.py": record.dependencies["one.py"], **{name: digests[name] for name in names}}
        return dict(DefinitionRecords(tmp_path, tmp_path / "cache").remember(record, request, read))

    assert list(note("one", "b.txt", "a.txt")) == ["a.txt", "b.txt"] and note("two", "a.txt").keys() == {"a.txt"}
    assert later() == {"one": digests, "two": {"a.txt": digests["a.txt"]}}
    assert note("one") == {} and later() == {"two": {"a.txt": digests["a.txt"]}}
    # An edit of it does not change what the kernels are, and an edit of the definition does not forget it.
    (tmp_path / "a.txt").write_text("2")
    assert later() == {"two": {"a.txt": sha256_of(tmp_path / "a.txt")}} and pool.asked == ["one.py"]
    (tmp_path / "one.py").write_text("X = 1")
    assert later()["two"].keys() == {"a.txt"} and pool.asked == ["one.py"]
    (tmp_path / "a.txt").unlink()
    assert later() == {"two": {"a.txt": ""}}


def test_a_request_without_the_definition_compares_what_the_definition_reads_too(tmp_path: Path) -> None:
    pool = Answers(tmp_path)
    (tmp_path / "one.py").write_text("one")
    (record,) = ask(tmp_path, pool, "one.py").records
    records = DefinitionRecords(tmp_path, tmp_path / "cache")
    assert records.remember(record, "object", dict(record.dependencies), whole=True) == record.dependencies
    (record,) = ask(tmp_path, pool, "one.py").records
    assert record.later["object"] == record.dependencies


def record_of(folder: Path) -> DefinitionRecord:
    """A definition file with a kept record, which no worker has made."""
    (folder / "k.py").write_text("")
    answer = {"file": "k.py", "dependencies": {"k.py": sha256_of(folder / "k.py")}, "kernels": []}
    DefinitionRecords(folder, folder / "cache")._write(folder / "k.py", from_json(DefinitionRecord, answer))
    return kept_record(folder)


def kept_record(folder: Path) -> DefinitionRecord:
    (record,) = ask(folder, None, "k.py", identity="").records
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
        DefinitionRecords(tmp_path, place).remember(record, request, {f"{request}.txt": "1"})
        settled.release()

    read: Callable[..., Any] = KeptRecords.read

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
    monkeypatch.setattr(KeptRecords, "read", read_while_all_others_come)
    note(requests[0])
    for thread in threads:
        thread.join(120)
    assert len(threads) == 7
    assert kept_record(tmp_path).later == {request: {f"{request}.txt": ""} for request in requests}


def test_what_a_new_record_takes_over_is_not_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_of(tmp_path)
    store, refused = discovery.write_sealed, []

    def store_while_it_is_locked(path: Path, kept: Any) -> None:
        with (tmp_path / "cache/lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(kept.record.file)
        store(path, kept)

    monkeypatch.setattr(discovery, "write_sealed", store_while_it_is_locked)
    record_of(tmp_path)
    assert refused == ["k.py"]


def test_workers_are_asked_for_paths_below_the_project_and_steps_are_noted(tmp_path: Path) -> None:
    noted: list[tuple[str, bool]] = []
    pool = Answers(tmp_path, two=DefinitionError("bad"))

    def note(file: str, start: float, end: float, failed: bool) -> None:
        assert start <= end
        noted.append((file, failed))

    found = ask(tmp_path, pool, "kernels/one.py", "kernels/two.py", "/elsewhere/three.py", strict=True, note=note)
    assert [record.file for record in found.records] == ["kernels/one.py", "/elsewhere/three.py"]
    assert all(request.strict for request in pool.requests) and not pool.closed
    files = ["/elsewhere/three.py", "kernels/one.py", "kernels/two.py"]
    assert pool.asked == files and sorted(noted) == [(file, file == "kernels/two.py") for file in files]
    ask(tmp_path, pool, "kernels/four.py")
    assert [request.strict for request in pool.requests] == [False]


def test_an_answer_of_another_form_is_an_error_that_names_the_file_and_workers_end_when_the_user_does(tmp_path):
    (error,) = ask(tmp_path, Answers(tmp_path, one={"schema": 1}), "one.py").errors
    assert error.where == Where(stage="discover", location="one.py")
    assert error.message == "the result of a discover request has a wrong form: schema is not expected"
    pool = Answers(tmp_path, one=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, pool, "one.py")
    assert pool.closed


def test_records_have_readable_names_and_never_the_same(tmp_path: Path) -> None:
    long = "x" * 90 + ".py"
    files = ("kernels/gr_e.py", f"kernels/{long}", "kernels/more/x.py", f"y/{long}")
    for file in files:
        assert not ask(tmp_path, Answers(tmp_path), file).errors
    names = sorted(path.name for path in (tmp_path / "cache").glob("*.record"))
    expected = ["kernels-gr_e-#", "kernels-more-x-#", "x" * 60 + "-#", "x" * 60 + "-#"]
    assert [re.sub("[0-9a-f]{8}.record", "#", name) for name in names] == expected and len(set(names)) == 4


GOOD_KERNEL: dict[str, Any] = {
    **{"name": "k", "doc": "", "location": "k.py:1", "configs": [{"m": 1}], "slugs": ["m-1"]},
    **{"options": {"outputs": ["y"]}, "reference": None, "takes_target": False},
}


FIELDS = {found.name for found in fields(KernelRecord)}

MALFORMED: dict[str, list[object]] = {
    "name": [3, "a-b", "größe"],
    "slugs": [["a/b"], ["m-1", "m-2"], []],
    "configs": [[], [{"m": [1]}], [{"m": 1}, {"m": 2}]],
    "outputs": [[1.5], [True], None],
    "tolerance": [-1, 10**400, "1"],
    "pass_configs": [None, {"a": [1]}],
    "file": [None],
    "dependencies": [{}, {"k.py": 1}],
    "kernels": [[{}], None, [{**GOOD_KERNEL, "slugs": ["m-1", "m-1"], "configs": [{"m": 1}, {"m": 2}]}]],
}
"""Field of a file, of a kernel, or option -> values of another form. Those of another type: test_converter.py."""


@pytest.mark.parametrize(("field", "wrong"), [(name, value) for name, values in MALFORMED.items() for value in values])
def test_a_malformed_record_is_refused(field: str, wrong: object) -> None:
    good = {"file": "k.py", "dependencies": {"k.py": "0", "a.py": "1"}, "kernels": [GOOD_KERNEL]}
    assert definition_record(good).kernels[0].options.outputs == ("y",)
    kernel = {**GOOD_KERNEL, field: wrong} if field in FIELDS else {**GOOD_KERNEL, "options": {field: wrong}}
    bad = {**good, field: wrong} if field in good else {**good, "kernels": [kernel]}
    with pytest.raises(ValueError):
        definition_record(bad)
