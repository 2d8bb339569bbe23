"""What passes between a build and a worker: round trips, and everything that does not fit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from kernelwright.cluster.messages import Action, ActionResult, Packed, StandIns, resource
from kernelwright.core.converter import to_json
from kernelwright.core.errors import WorkerError
from kernelwright.core.version import VERSION
from kernelwright.processes.messages import Failed, Result, decode, encode
from kernelwright.processes.protocol import ToolRun, result_of

RUN = {"status": 0, "in_time": True, "output": "well", "seconds": 0.1, "cpu_seconds": 0.1, "peak_kib": 5}
REQUESTED = Action(
    command=("@CC@", "-c", "a.c"), inputs=(("folder/a.c", Packed.of(b"int a;")),), outputs=("scratch/a.o",),
    timeout_s=60.0, tool="f00d", kind="cc", subject="add_one",
)  # fmt: skip


def packed(content: bytes, /, **other: str) -> dict[str, str]:
    return {**to_json(Packed.of(content)), **other}


def result(**other: Any) -> dict[str, Any]:
    return {"run": RUN, "files": [packed(b"ELF")], **other}


def answer(**other: Any) -> dict[str, Any]:
    return {"id": 0, "result": {"value": result(**other)}}


def action(line: bytes) -> Action:
    """The action in a line; raises ValueError."""
    try:
        return decode(line, {Action.op: Action})[1]
    except WorkerError as error:
        raise ValueError(error.message) from error


def contents(line: bytes) -> list[bytes | None]:
    """The files in an answer; raises ValueError for one that does not fit."""
    try:
        _, message = decode(line, {"result": Result, "error": Failed})
        return [file and file.content for file in result_of(REQUESTED, message.value).files]
    except WorkerError as error:
        raise ValueError(error.message) from error


def test_messages_come_back_as_they_were():
    assert action(encode(0, REQUESTED)) == REQUESTED
    said = ActionResult(ToolRun(**RUN), (Packed.of(bytes(range(256))), None))
    assert result_of(REQUESTED, decode(encode(0, Result(said)), {"result": Result})[1].value) == said
    assert contents(json.dumps(answer()).encode()) == [b"ELF"]


def test_a_worker_of_another_kernelwright_or_python_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch):
    ours = resource("f00d")
    assert ours.startswith("toolchain-f00d-")
    for other in ({"kernelwright": "0", "python": "3.11"}, {"kernelwright": VERSION, "python": "3.0"}):
        monkeypatch.setattr("kernelwright.cluster.messages.versions", lambda other=other: other)
        assert resource("f00d") != ours


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x80\x04.",
        b"[]",
        b"[" * 100_000,
        {"id": 0, "answer": result()},
        {"schema": "kernelwright result 1", **result()},
        answer(files=[packed(b"ELF", sha256=hashlib.sha256(b"ELf").hexdigest())]),
        answer(files=[packed(b"ELF", packed="AAAA")]),
        answer(files=[packed(b"ELF", packed="not base64")]),
        answer(files=[packed(b"ELF", name="scratch/b.o")]),
        answer(files=["scratch/a.o"]),
        answer(files={"scratch/a.o": packed(b"ELF")}),
        answer(run=None),
        answer(run={**RUN, "status": True}),
        answer(run={**RUN, "status": "0"}),
        answer(run={**RUN, "status": 1 << 40}),
        answer(run={**RUN, "in_time": 1}),
        answer(run={**RUN, "output": None}),
        answer(run={**RUN, "seconds": -1}),
        answer(run={**RUN, "peak_kib": 0.5}),
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_an_answer_that_does_not_fit_is_refused(wrong: Any):
    with pytest.raises(ValueError):
        contents(wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode())


def test_a_few_bytes_do_not_become_a_file_that_fills_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernelwright.cluster.messages.LARGEST_FILE", 1000)
    assert len(Packed.of(bytes(1000)).content) == 1000
    with pytest.raises(ValueError, match="too large"):
        _ = Packed.of(bytes(1001)).content


@pytest.mark.parametrize("field", ["inputs", "outputs"])
@pytest.mark.parametrize(
    "name", ["a.c", "folder", "folder/", "folder//a.c", "folder/./a.c", "folder/../../a", "else/a.c"]
)
def test_a_request_with_a_file_that_leads_elsewhere_is_refused(name: str, field: str):
    given = {"inputs": ((name, Packed.of(b"int a;")),), "outputs": (name,)}
    with pytest.raises(ValueError, match="expected the name of a file of a run"):
        action(encode(0, replace(REQUESTED, **{field: given[field]})))


def test_stand_ins_are_for_whole_paths_and_leave_other_text_alone():
    here = StandIns({"CC": "/usr/bin/cc", "CUDA": "/opt/cuda", "NVCC": "/opt/cuda/bin/nvcc", "SAME": "/opt/cuda"})
    there = StandIns({"CC": "/bin/gcc", "CUDA": "/srv/cu", "NVCC": "/srv/cu/bin/nvcc", "SAME": "/srv/cu"})
    text = '/opt/cuda/bin/nvcc -ccbin /usr/bin/cc -I/opt/cuda/include "/opt/cuda/bin/../x" me@here @CC@'
    moved = '/srv/cu/bin/nvcc -ccbin /bin/gcc -I/srv/cu/include "/srv/cu/bin/../x" me@here @CC@'
    assert there.undo(here.put(text)) == moved
    assert here.undo(there.put(moved)) == text
    for other in ("/usr/bin/ccache", "/usr/bin/cc-12", "/usr/bin/cc.old", "/srv/usr/bin/cc", "/opt/cuda-12/bin"):
        assert here.put(other) == other
    assert here.put("gcc: /usr/bin/cc.") == "gcc: @CC@."
    with pytest.raises(ValueError, match="@TILELANG@"):
        here.undo("@TILELANG@/include")
