"""What passes between a build and a worker: round trips, and everything that does not fit."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

import pytest
from kernelwright.cluster.messages import ANSWER, REQUEST, Answer, Request, StandIns, resource
from kernelwright.core.version import VERSION
from kernelwright.processes.protocol import ToolRun

RUN = {"status": 0, "in_time": True, "output": "well", "seconds": 0.1, "cpu_seconds": 0.1, "peak_kib": 5}
REQUESTED = Request(("@CC@", "-c", "a.c"), {"folder/a.c": b"int a;"}, ("scratch/a.o",), 60.0, "f00d", "cc", "add_one")


def file(name: str, content: bytes, /, **other: str) -> dict[str, str]:
    packed = base64.b64encode(zlib.compress(content)).decode()
    return {"name": name, "sha256": hashlib.sha256(content).hexdigest(), "content": packed, **other}


def answer(**other: Any) -> dict[str, Any]:
    return {"schema": ANSWER, "run": RUN, "files": [file("scratch/a.o", b"ELF")], "problem": "", **other}


def test_messages_come_back_as_they_were():
    assert Request.decode(REQUESTED.encode()) == REQUESTED
    said = Answer(ToolRun(**RUN), {"scratch/a.o": bytes(range(256))})
    assert Answer.decode(said.encode(), ["scratch/a.o"]) == said
    assert Answer.decode(json.dumps(answer()).encode(), ["scratch/a.o"]).files == {"scratch/a.o": b"ELF"}


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
        answer(schema="kernelwright result 0"),
        answer(files=[file("scratch/b.o", b"ELF")]),
        answer(files=[file("scratch/../a.o", b"ELF")]),
        answer(files=[file("/scratch/a.o", b"ELF")]),
        answer(files=[file("scratch/a.o", b"ELF", sha256=hashlib.sha256(b"ELf").hexdigest())]),
        answer(files=[file("scratch/a.o", b"ELF", content="AAAA")]),
        answer(files=[file("scratch/a.o", b"ELF", content="not base64")]),
        answer(files=[file("scratch/a.o", b"ELF")] * 2),
        answer(files="scratch/a.o"),
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
        Answer.decode(wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode(), ["scratch/a.o"])


def test_a_few_bytes_do_not_become_a_file_that_fills_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernelwright.cluster.messages.LARGEST_FILE", 1000)
    Answer.decode(json.dumps(answer(files=[file("scratch/a.o", bytes(1000))])).encode(), ["scratch/a.o"])
    with pytest.raises(ValueError, match="too large"):
        Answer.decode(json.dumps(answer(files=[file("scratch/a.o", bytes(1001))])).encode(), ["scratch/a.o"])


@pytest.mark.parametrize(
    "name", ["a.c", "folder", "folder/", "folder//a.c", "folder/./a.c", "folder/../../a", "else/a.c"]
)
def test_a_request_with_a_file_that_leads_elsewhere_is_refused(name: str):
    document = {**json.loads(REQUESTED.encode()), "inputs": [file(name, b"int a;")]}
    assert document["schema"] == REQUEST
    with pytest.raises(ValueError, match="called"):
        Request.decode(json.dumps(document).encode())


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
