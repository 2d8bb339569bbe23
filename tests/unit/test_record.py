"""The file of recorded configs: what programs write into it, many at once, and what is said where that fails."""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernelwright.core.errors import KernelwrightError
from kernelwright.define.recorded import parse, text_of
from kernelwright.ondemand import record as recording
from kernelwright.ondemand.record import Recorder, active, note, record

WRITTEN = """\
{
 "schema": 1,
 "kernels": {
  "gemm": [
   {"m": 1}
  ],
  "softmax": [
   {"columns": 200, "dtype": "float32"},
   {"columns": 1000, "dtype": "float16"},
   {"columns": 1000, "dtype": "float32"}
  ]
 }
}
"""


def test_the_file_has_a_line_for_each_config_in_one_order_whatever_the_order_of_calls(tmp_path: Path) -> None:
    noted = [
        ("softmax", {"dtype": "float32", "columns": 1000}),
        ("softmax", {"columns": 200, "dtype": "float32"}),
        ("gemm", {"m": 1}),
        ("softmax", {"columns": 1000, "dtype": "float16"}),
        ("softmax", {"columns": 1000, "dtype": "float32"}),
    ]
    for name, order in (("a.json", noted), ("b.json", noted[::-1])):
        for kernel, config in order:
            note(tmp_path / name, kernel, config)
        assert (tmp_path / name).read_text() == WRITTEN
    assert text_of(parse(WRITTEN)) == WRITTEN
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.json.lock", ".b.json.lock", "a.json", "b.json"]


def test_values_of_different_types_are_different_configs(tmp_path: Path) -> None:
    path = tmp_path / "configs.json"
    values = [True, 1, 1.0, "1", 0.5, -3]
    for value in [*values, *values]:
        note(path, "k", {"x": value})
    found = [config["x"] for config in parse(path.read_bytes())["k"]]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in (-3, 0.5, True, 1.0, 1, "1")]


def _note_many(path: Path, process: int) -> None:
    recorder = Recorder(path)

    def work(thread: int) -> None:
        for number in range(10):
            recorder.note(f"k{number % 3}", {"process": process, "thread": thread, "number": number})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))


def test_many_processes_and_threads_lose_nothing_of_one_another(tmp_path: Path) -> None:
    path = tmp_path / "configs.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_note_many, args=(path, process)) for process in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(map(len, parse(path.read_bytes()).values())) == 4 * 3 * 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is damaged"),
        ('{"schema": 2, "kernels": {}}', "is damaged: its schema is 2, expected 1"),
        ('{"schema": 1, "kernels": {"k": [{"m": [1]}]}}', r"is damaged: kernels.k\[0\].m is \[1\]"),
        ("[" * 100_000, "is damaged: it is nested too deeply"),
    ],
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "configs.json"
    path.write_text(content)
    with pytest.raises(KernelwrightError, match=rf"k \[record\]: {said}(.|\n)*remedy: mend the file") as error:
        note(path, "k", {"m": 1})
    assert str(path) in str(error.value)
    assert path.read_text() == content


def test_a_folder_that_is_missing_or_read_only_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(KernelwrightError, match=r"there is no such folder(.|\n)*remedy: name a file in a folder"):
        note(tmp_path / "missing" / "configs.json", "k", {"m": 1})
    assert not (tmp_path / "missing").exists()
    (tmp_path / "configs.json").mkdir()
    (tmp_path / "configs.json/full").touch()
    with pytest.raises(KernelwrightError, match="cannot be written"):
        note(tmp_path / "configs.json", "k", {"m": 1})


def test_what_is_known_is_neither_looked_up_nor_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "configs.json"
    recorder = Recorder(path)
    recorder.note("k", {"m": 1})
    before = path.stat().st_ino
    note(path, "k", {"m": 1})
    assert path.stat().st_ino == before
    monkeypatch.setattr(recording, "note", lambda *given: pytest.fail("it was noted twice"))
    recorder.note("k", {"m": 1})


def test_the_innermost_block_records_and_the_variable_where_there_is_no_block(tmp_path, monkeypatch):
    monkeypatch.delenv("KERNELWRIGHT_RECORD", raising=False)
    assert active() is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWRIGHT_RECORD", "of_variable.json")
    of_variable = active()
    assert of_variable is not None and of_variable.path == tmp_path / "of_variable.json"
    assert active() is of_variable, "or it would forget what it has noted"
    with record(tmp_path / "outer.json") as outer:
        with record(tmp_path / "inner.json") as inner:
            assert active() is inner
        assert active() is outer
        with pytest.raises(RuntimeError), record(tmp_path / "inner.json") as failing:
            failing.note("k", {"m": 1})
            raise RuntimeError
        assert active() is outer
    assert active() is of_variable
    assert json.loads((tmp_path / "inner.json").read_text())["kernels"] == {"k": [{"m": 1}]}
    monkeypatch.setenv("KERNELWRIGHT_RECORD", "")
    assert active() is None


def test_threads_record_into_the_block_in_which_they_were_started_or_into_their_own(tmp_path: Path) -> None:
    found: list[Path | None] = []

    def work(own: str) -> None:
        if own:
            with record(tmp_path / own):
                work("")
        else:
            recorder = active()
            found.append(recorder and recorder.path)

    with record(tmp_path / "outer.json"):
        for own in ("", "own.json"):
            thread = threading.Thread(target=work, args=(own,))
            thread.start()
            thread.join()
    assert found == [tmp_path / "outer.json", tmp_path / "own.json"]
