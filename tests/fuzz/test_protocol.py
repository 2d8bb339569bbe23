"""Messages of any form, and processes that send them: a WorkerError, always, and without leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from kernelwright.core.converter import from_json, to_json
from kernelwright.core.errors import KernelwrightError, LoweringError, Where, WorkerError
from kernelwright.core.signature import UNKNOWN
from kernelwright.processes import protocol
from kernelwright.processes import worker as worker_module
from kernelwright.processes.messages import (
    ANSWERS,
    REVISION,
    Failed,
    Hello,
    Progress,
    Result,
    Spent,
    decode,
    decode_greeting,
    encode,
)
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import (
    CheckRequest,
    CostRequest,
    DevicesRequest,
    DevicesResult,
    DiscoverRequest,
    LowerRequest,
    LowerResult,
    MeasureRequest,
)
from kernelwright.processes.tool_process import _members as members_of_session
from kernelwright.processes.worker import WorkerKind
from support.moments import ENDLESS, HANGS_AFTER_S, Clock, running, wait_for

from .harness import fuzz
from .strategies import as_json, damaged, json_values, nested, restructured

REQUESTS = [
    DiscoverRequest("kernels/a.py"),
    LowerRequest(
        "kernels/a.py", "a", "m-1", "kw", {"m": 1, "f": 0.5, "b": True, "s": "é\n\u2028"}, "cuda", "sm_80", "/o"
    ),
    CheckRequest("kernels/a.py", "a", "m-1", "/lib.so", 3, replace(UNKNOWN, symbols={"n": "int32"}), "cpu", 0.5),
    LowerRequest("kernels/a.py", "a", "m-2", "kw", {"m": 2}, "cuda", "sm_80", "/o", archs=("sm_80",)),
    MeasureRequest("kernels/a.py", "a", "m-1", "/lib.so", 0, UNKNOWN, "cpu", sizes={"n": 4}, batches=3, waiting=0.5),
    CostRequest("kernels/a.py", "a", ({"m": 1},), {"n": 4}, "llvm"),
    DevicesRequest(),
]
ERROR = LoweringError("bad", Where("k", "v", "lower", "kernels/k.py:3"), "do this", "line 1\nline 2")
ANSWER_LINES = [
    encode(1, Progress("scheduling")),
    encode(1, Result(LowerResult(("host.o",), "", 1.0, 1.0, {"kernels/a.py": "0"}))),
    encode(1, Failed.of(ERROR)),
    encode(1, Spent()),
    encode(0, Hello({"python": "3.11.2", "tvm": "0.27.0"}, REVISION)),
    encode(0, Failed.of(ERROR)),
]
REQUEST_LINES = [encode(1, request) for request in REQUESTS]
KINDS = {request.op: type(request) for request in REQUESTS}
ODD_LINES = [
    *(nested(100_000), nested(930), nested(950, '{"id":', "}"), "", "null", "NaN", "9" * 5000, "[]", '"', "\0", "x")
]


def lines(of: list[bytes]) -> st.SearchStrategy[bytes]:
    """A message of the protocol, or what is left of one."""
    real = st.sampled_from(of)
    return st.one_of(
        real.flatmap(damaged),
        real.flatmap(lambda line: restructured(json.loads(line))).map(lambda value: as_json(value).encode() + b"\n"),
        st.tuples(st.sampled_from(ODD_LINES), real).map(
            lambda pair: pair[1].replace(b"1", pair[0].encode(), 1) if pair[0] else pair[1]
        ),
        st.sampled_from(ODD_LINES).map(str.encode),
        json_values.map(lambda value: as_json(value).encode()),
        st.binary(max_size=60),
    )


def require_shown(error: KernelwrightError) -> None:
    """An error that came over the wire can be shown, whatever it holds."""
    assert error.message is not None and isinstance(str(error), str)
    assert isinstance(str(error.where), str)
    str(error).encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_survives_the_wire(request_: Any) -> None:
    line = encode(5, request_)
    assert line.count(b"\n") == 1 and decode(line, KINDS) == (5, request_)


def test_an_error_survives_the_wire() -> None:
    number, answer = decode(encode(7, Failed.of(ERROR)), ANSWERS)
    assert number == 7 and type(answer.error) is LoweringError
    assert str(answer.error) == str(ERROR)


def decode_request(line: bytes) -> tuple[int, Any]:
    return decode(line, KINDS)


def decode_answer(line: bytes) -> tuple[int, Any]:
    return decode(line, ANSWERS)


BAD_REQUESTS = [
    *(b"", b"nonsense", b"[1]", b'{"discover":{"file":"a"}}', b'{"id":1,"destroy":{}}', b'{"id":1,"discover":{}}'),
    *(b'{"id":1,"discover":{"file":3}}', b'{"id":1,"discover":{"file":"a","more":1}}'),
    *(b'{"id":1,"discover":{"file":"a"},"devices":{}}', b'{"id":true,"devices":{}}'),
]
BAD_ANSWERS = [
    *(b'{"id":1}', b'{"id":1,"result":{}}', b'{"id":1,"error":{"kind":"WorkerError","message":3}}', b"\xff\xfe")
]


@pytest.mark.parametrize(
    ("decode", "line", "message"),
    [
        *((decode_request, line, "expected a message of the worker protocol") for line in BAD_REQUESTS),
        *((decode_answer, line, "") for line in BAD_ANSWERS),
        (decode_greeting, b'{"id": 0, "hello": {"revision": 999, "versions": {}}}', "version"),
    ],
)
def test_a_line_that_does_not_fit_is_a_worker_error(decode: Callable[[bytes], Any], line: bytes, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        decode(line)


@fuzz(300, line=lines(REQUEST_LINES))
def test_requests_of_any_form(line: bytes) -> None:
    try:
        number, request = decode(line, KINDS)
    except WorkerError as error:
        require_shown(error)
    else:
        assert isinstance(number, int)
        assert decode(encode(number, request), KINDS) == (number, request)
        assert isinstance(str(request.where), str)


@fuzz(300, line=lines(ANSWER_LINES))
def test_answers_of_any_form(line: bytes) -> None:
    try:
        _, message = decode(line, ANSWERS)
    except WorkerError as error:
        require_shown(error)
    else:
        assert isinstance(message, (Progress, Result, Failed, Spent))
        if isinstance(message, Failed):
            require_shown(message.error)


@fuzz(300, line=lines(ANSWER_LINES))
def test_greetings_of_any_form(line: bytes) -> None:
    try:
        assert all(isinstance(version, str) for version in decode_greeting(line).versions.values())
    except KernelwrightError as error:
        require_shown(error)


@fuzz(300, value=json_values | restructured(to_json(Failed.of(ERROR))))
def test_errors_of_any_form(value: Any) -> None:
    try:
        error = from_json(Failed, value).error
    except ValueError:
        return
    require_shown(error)


@fuzz(200, message=st.text(), detail=st.none() | st.text(), location=st.none() | st.text())
def test_errors_of_any_text_survive_the_wire(message: str, detail: str | None, location: str | None) -> None:
    error = LoweringError(message, Where("k", location=location), None, detail)
    line = encode(3, Failed.of(error))
    assert line.count(b"\n") == 1 and line.isascii()
    _, answer = decode(line, ANSWERS)
    assert str(answer.error) == str(error)


# ---- a real pool, and a process that talks nonsense

SCRIPT = """\
echo $$ > "$0/pid"
cat "$0/greeting"
: > "$0/greeted"
read -r request
cat "$0/answer"
: > "$0/answered"
. "$0/end"
"""
FAKE = WorkerKind("a worker", ("-c", SCRIPT), "wait longer", "look for a crash", "look for os._exit")
ENDS = {
    **{"exits": "", "fails": "exit 3", "dies": "kill -9 $$", "crashes": "kill -11 $$"},
    "repeats": 'while :; do cat "$0/answer" || exit; done',
}
GREETING = encode(0, Hello({"python": "3"}, REVISION))
GOOD = encode(1, Result({"cuda": []}))


def wait_until_gone(session: int) -> None:
    """Processes were killed; that takes the system a moment."""
    wait_for(lambda: not any(map(running, members_of_session(session))), "a process is left")


@pytest.fixture
def open_files() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def open_descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


class Ending(Clock):
    """A clock on which much time passes with each look at it once a file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def monotonic(self) -> float:
        if self._file.exists():
            self.step = HANGS_AFTER_S / 4
        return super().monotonic()


def call(
    folder: Path,
    greeting: bytes,
    answer: bytes,
    end: str,
    request: Any,
    timeout_s: float = HANGS_AFTER_S,
    until: str | None = None,
) -> Any:
    """What a pool makes of a process that sends these bytes; an error, or a result.

    Arguments:
        until: the time limit is over once this file of the process is there: ``greeted`` or ``answered``.
    """
    for name, content in (("greeting", greeting), ("answer", answer), ("end", ENDS[end].encode())):
        (folder / name).write_bytes(content)
    for name in ("pid", "greeted", "answered"):
        (folder / name).unlink(missing_ok=True)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            WorkerPool(1, folder, timeout_s, python="/bin/sh", kind=FAKE) as pool,
        ):
            if until is not None:
                patch.setattr(worker_module, "time", Ending(folder / until))
                patch.setattr(worker_module, "LOOK_S", 0.01)
            return pool.call(request)
    except KernelwrightError as error:
        require_shown(error)
        return error
    finally:
        assert pool.started == 0
        if (folder / "pid").is_file() and (pid := (folder / "pid").read_text()):
            wait_until_gone(int(pid))


@fuzz(
    45,
    factor=15,
    greeting=st.just(GREETING) | st.just(GREETING) | lines(ANSWER_LINES),
    answer=st.lists(lines(ANSWER_LINES), max_size=3).map(b"".join)
    | st.just(GOOD)
    | st.integers(0, 40).map(lambda n: GOOD[:n]),
    end=st.sampled_from(["exits", "exits", "fails", "dies", "crashes"]),
    request=st.sampled_from(REQUESTS),
)
def test_a_pool_with_a_process_that_sends_anything(tmp_path, open_files, greeting, answer, end, request):
    # Only a greeting without an end is waited for until the time limit, and then in vain.
    got = call(tmp_path, greeting, answer, end, request, until=None if b"\n" in greeting else "greeted")
    assert is_dataclass(got) or isinstance(got, KernelwrightError)
    if (
        isinstance(got, WorkerError)
        and got.remedy == "report this as a defect of Kernelwright"
        and greeting == GREETING
    ):
        assert str(got.where)


RESULTS = {
    "discover": {"file": "k.py", "dependencies": {"k.py": "0"}, "kernels": []},
    "lower": {"files": ["a"], "schedule": "", "seconds": 1.5, "cpu_seconds": 1, "dependencies": {}, "untracked": []},
    "check": {"cases": 1, "worst_error": 0.0, "sizes": [{"n": 1}], "device": "cpu", "dependencies": {}},
    "measure": {"us": [1.5, 2], "warm_us": [], "clock_mhz": 1980, "disturbed": 0.5, "moved": 8, "flops": 2.0},
    "cost": {"costs": [1.5, 2]},
    "devices": {"cuda": ["sm_80"]},
}
"""A good result of each operation."""


def wrong_results() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Requests, and results that each lack something, or have something of another form."""
    for request in REQUESTS:
        good = RESULTS[request.op]
        optional = {
            each.name for each in fields(request.result) if (each.default, each.default_factory) != (MISSING, MISSING)
        }
        yield request, {}
        yield request, good | {"more": 1}
        for name in good:
            if name not in optional:
                yield request, {other: value for other, value in good.items() if other != name}
            for value in (None, True, "text" if not isinstance(good[name], str) else 1, [None], {"k": [1]}):
                if not (isinstance(good[name], dict) and value == {}) and value is not good[name]:
                    yield request, good | {name: value}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_good_result_is_taken(request_: Any) -> None:
    result = protocol.result_of(request_, RESULTS[request_.op])
    assert protocol.result_of(request_, to_json(result)) == result


@pytest.mark.parametrize(("request_", "result"), list(wrong_results()))
def test_a_result_of_a_wrong_form_is_an_error_with_its_place(request_: Any, result: dict[str, Any]) -> None:
    with pytest.raises(WorkerError, match=f"the result of a {request_.op} request has a wrong form") as caught:
        protocol.result_of(request_, result)
    assert caught.value.where == request_.where


def test_progress_without_end_is_ended_at_the_time_limit(tmp_path: Path) -> None:
    got = call(tmp_path, GREETING, ANSWER_LINES[0] * 500, "repeats", REQUESTS[0], until="answered")
    assert isinstance(got, WorkerError) and f"took longer than {HANGS_AFTER_S:g} s while scheduling" in str(got)


def test_a_line_without_end_is_ended_at_some_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LONGEST_LINE", 1 << 20)
    got = call(tmp_path, GREETING, b"x" * 100_000, "repeats", REQUESTS[0])
    assert isinstance(got, WorkerError) and "a line of more than" in str(got)


@pytest.mark.parametrize(
    ("device", "remedy"),
    [("cpu", "raise the time"), (protocol.INTERPRETED, "have @k.inputs return None for sizes with so many programs")],
)
def test_a_long_request_to_a_process_that_reads_nothing_ends_at_the_time_limit(tmp_path, device, remedy):
    deaf = WorkerKind("a worker", ("-c", f'cat "$0/greeting"; exec {ENDLESS}'), "raise the time", "", "")
    (tmp_path / "greeting").write_bytes(GREETING)
    request = CheckRequest("k.py", "k", "s", "/lib.so", 0, replace(UNKNOWN, schedule="x" * 10**6), device)
    with WorkerPool(1, tmp_path, HANGS_AFTER_S, python="/bin/sh", kind=deaf) as pool:
        pool._start_one()
        pool.timeout_s = 0.5
        with pytest.raises(WorkerError, match=r"longer than 0\.5 s while working on check") as raised:
            pool.call(request)
    assert remedy in str(raised.value.remedy)


@pytest.mark.parametrize("seconds", [3e6, 1e12, 1e300])
def test_very_long_time_limits_are_possible(tmp_path: Path, seconds: float) -> None:
    assert call(tmp_path, GREETING, GOOD, "exits", DevicesRequest(), timeout_s=seconds) == DevicesResult(())
