"""The pool of workers beside a model: requests, and simulated processes that answer, die, or are late, in any order."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kernelwright.core.errors import CheckError, KernelwrightError, WorkerError
from kernelwright.core.signature import UNKNOWN
from kernelwright.processes import pool as pool_module
from kernelwright.processes import worker as worker_module
from kernelwright.processes.messages import REVISION, Failed, Hello, Progress, Result, Spent, decode, encode
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import CheckRequest, CheckResult
from support.moments import HANGS_AFTER_S, Clock, wait_for

from .harness import FACTOR, THOROUGH

PLACES = 2
STEPS = [
    *[("ask", 1)] * 5,
    *[("ask", 4)] * 2,
    ("ask", 4, False),
    ("is_started_ahead",),
    *[("greets",)] * 3,
    *[("answers",)] * 7,
    *[("answers", "wrong")] * 2,
    ("answers", "retiring"),
    ("answers_nonsense", "another request's"),
    ("answers_nonsense", "nonsense"),
    ("answers_nonsense", "of a wrong form"),
    ("is_spent",),
    ("makes_progress",),
    *[("dies",)] * 2,
    ("dies", True),
    ("closes_its_pipe",),
    ("time_passes",),
]
"""What may happen; what comes more often is there several times."""

STARTING, IDLE, BUSY, GONE = "starting", "idle", "busy", "gone"


class Simulated:
    """A process of the pool whose other end this test has."""

    server = None
    startup_log = None
    numbers = itertools.count(1)

    def __init__(self, log: int, pool: WorkerPool) -> None:
        self.number, self.status, self.caller = next(self.numbers), None, threading.current_thread()
        self.state, self.doing, self.request, self.id = STARTING, "starting", None, 0
        self.files: set[str] = set()
        self.is_closed = self.is_spoiled = False
        self._lock, self._buffer = threading.Lock(), b""
        requests, stdin = os.pipe()
        stdout, answers = os.pipe()
        for descriptor in (requests, stdin):
            os.set_blocking(descriptor, False)
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0)
        self._ours = {"requests": requests, "answers": answers, "log": os.dup(log)}

    # What the pool calls; `end` comes from any thread.

    def end(self) -> None:
        self.exit(-9)

    def reap(self, timeout_s: float | None) -> int | None:
        return self.status

    def has_ended(self) -> bool:
        return self.status is not None

    def close(self) -> None:
        self.is_closed = True
        self.stdin.close()
        self.stdout.close()
        self.let_go()

    # What it does.

    def exit(self, status: int, holding: bool = False) -> None:
        """End; somebody may still hold its pipes."""
        with self._lock:
            if self.status is None:
                self.status, self.state = status, GONE
        if not holding:
            self.let_go()

    def let_go(self, *names: str) -> None:
        """Close its ends of some pipes, or of all."""
        with self._lock:
            for name in names or tuple(self._ours):
                if name in self._ours:
                    os.close(self._ours.pop(name))

    def look(self) -> None:
        """Take a request, if there is one."""
        with self._lock:
            if self.state != IDLE:
                return
            try:
                self._buffer += os.read(self._ours["requests"], 1 << 16)
            except BlockingIOError:
                return
            if b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                self.id, self.request = decode(line, {"check": CheckRequest})
                self.files.add(self.request.file)
                self.state, self.doing = BUSY, "working on check"

    def send(self, line: bytes, then: str, printed: str = "") -> None:
        with self._lock:
            self.state = then
            os.write(self._ours["log"], printed.encode())
            os.write(self._ours["answers"], line)


class Call(threading.Thread):
    """A request, what came of it, and what had to."""

    def __init__(self, pool: WorkerPool, file: str, number: int, order: int) -> None:
        super().__init__(daemon=True)
        self.request = CheckRequest(file, "k", f"s{number}", "/lib.so", number, UNKNOWN, "cpu", None)
        self.order, self._pool = order, pool
        self.outcome: CheckResult | KernelwrightError | None = None
        self.expected: CheckResult | str | None = None

    def run(self) -> None:
        try:
            self.outcome = self._pool.call(self.request)
        except KernelwrightError as error:
            self.outcome = error


def result_of(request: CheckRequest) -> CheckResult:
    """An answer that no other request has."""
    return CheckResult(request.variant_index, 0.0, (), "cpu")


class PoolWalk(RuleBasedStateMachine):
    """Callers and processes of a pool with two places."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.clock = Clock()
        self.patch.setattr(worker_module, "time", self.clock)
        self.patch.setattr(worker_module, "LOOK_S", 0.005)
        self.patch.setattr(pool_module, "SPARE", 1)
        self.before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        self.printed: dict[int, str] = {}
        self.pool = WorkerPool(PLACES, Path("/"), 1e6, on_output=self._note)
        self.pool._start_process = self._start
        self.processes: list[Simulated] = []
        self.calls: list[Call] = []
        self.in_line: set[Call] = set()
        self.numbers, self.orders = itertools.count(1), itertools.count()
        self.dead_idle: dict[int, Simulated] = {}

    def _note(self, request: CheckRequest, text: str) -> None:
        self.printed[request.variant_index] = text

    def _start(self, log: int) -> Simulated:
        time.sleep(0.001)  # so that others come meanwhile, if nothing keeps them from it
        made = Simulated(log, self.pool)
        self.processes.append(made)
        return made

    # --- What happens

    @rule(
        what=st.sampled_from(STEPS),
        number=st.integers(0, PLACES - 1),
        files=st.lists(st.sampled_from(["a.py", "b.py", "c.py"]), min_size=1, max_size=4),
    )
    def happens(self, what: tuple[Any, ...], number: int, files: list[str]) -> None:
        """One rule for all, as Hypothesis would leave some of many out, and no walk gets far without a few of them."""
        name, *how = what
        getattr(self, name)(number, files, *how)

    def ask(self, number: int, files: Sequence[str], most: int, greeted: bool = True) -> None:
        # No precondition: those would differ from run to run, as the order does in which several callers come.
        if len(self.calls) > 5:
            return
        order = next(self.orders)
        new = [Call(self.pool, file, next(self.numbers), order) for file in files[:most]]
        self.calls += new
        for call in new:
            call.start()
        self.settle()
        while greeted and self.chosen(0, STARTING):
            self.greets(0, files)

    def is_started_ahead(self, number: int, files: Sequence[str]) -> None:
        if self.pool.started < PLACES and not self.pool._idle:
            count = len(self.processes)
            threading.Thread(target=self.pool._start_one, daemon=True).start()
            wait_for(lambda: len(self.processes) > count, "nothing is started")
            self.settle()

    def chosen(self, number: int, *states: str) -> Simulated | None:
        found = [process for process in self.processes if process.state in states]
        return found[number % len(found)] if found else None

    def call_of(self, process: Simulated) -> Call | None:
        """The call that waits for a process, if it is not started ahead."""
        if process.request is not None and process.state == BUSY:
            return next(call for call in self.calls if call.request == process.request)
        return process.caller if isinstance(process.caller, Call) and process.state == STARTING else None

    def expect(self, process: Simulated, what: CheckResult | str) -> None:
        if (call := self.call_of(process)) is not None:
            call.expected = what

    def greets(self, number: int, files: Sequence[str]) -> None:
        if process := self.chosen(number, STARTING):
            process.send(encode(0, Hello({"python": "3"}, REVISION)), IDLE)
            if not isinstance(process.caller, Call):
                process.caller.join(HANGS_AFTER_S)
            self.settle()

    def answers(self, number: int, files: Sequence[str], how: str = "well") -> None:
        if process := self.chosen(number, BUSY):
            request, printed = process.request, f"of {process.request.variant_index}"
            if how == "wrong":
                error = CheckError(f"wrong {request.variant_index}", request.where)
                line = encode(process.id, Failed.of(error))
                self.expect(process, error.message)
            else:
                line = encode(process.id, Result(result_of(request), retiring=how == "retiring"))
                self.expect(process, result_of(request))
            process.is_spoiled = how == "retiring"
            process.send(line, IDLE, printed)
            self.settle()

    def is_spent(self, number: int, files: Sequence[str]) -> None:
        if process := self.chosen(number, BUSY):
            process.is_spoiled = True
            if process.id == 1:
                self.expect(process, "a worker that has executed nothing refused its first request")
            else:
                self.call_of(process).order = next(self.orders)  # it stands in line again
            process.send(encode(process.id, Spent()), IDLE)
            self.settle()

    def answers_nonsense(self, number: int, files: Sequence[str], how: str) -> None:
        if process := self.chosen(number, BUSY):
            line, said = {
                "another request's": (
                    encode(process.id + 7, Result(result_of(process.request))),
                    f"a worker answered request {process.id + 7} instead of {process.id}",
                ),
                "nonsense": (b"nonsense\n", "expected a message of the worker protocol"),
                "of a wrong form": (encode(process.id, Result({})), "the result of a check request has a wrong form"),
            }[how]
            self.expect(process, said)
            process.is_spoiled = True
            process.send(line, IDLE)
            self.settle()

    def makes_progress(self, number: int, files: Sequence[str]) -> None:
        if process := self.chosen(number, BUSY):
            process.doing = f"running step {next(self.numbers)}"
            process.send(encode(process.id, Progress(process.doing)), BUSY)
            time.sleep(0.01)  # the model cannot see whether it was read; if not, only the words of an error differ

    def dies(self, number: int, files: Sequence[str], holding: bool = False) -> None:
        if process := self.chosen(number, BUSY) or self.chosen(number, STARTING, IDLE):
            if process.state == IDLE:
                self.dead_idle[process.number] = process
            self.expect(process, f"a worker ended with exit status {process.number} while ")
            process.is_spoiled = process.state != IDLE
            process.exit(process.number, holding)
            self.settle()

    def closes_its_pipe(self, number: int, files: Sequence[str]) -> None:
        if process := self.chosen(number, STARTING, BUSY):
            self.expect(process, f"a worker closed its pipe while {process.doing}")
            process.is_spoiled, process.state = True, GONE
            process.let_go("answers")
            self.settle()

    def time_passes(self, number: int, files: Sequence[str]) -> None:
        late = [process for process in self.processes if process.state in (STARTING, BUSY)]
        for process in late:
            self.expect(process, f"a worker took longer than 1e+06 s while {process.doing}, and was ended")
            process.is_spoiled = True
        self.clock.ahead += 2e6
        wait_for(lambda: all(process.is_closed for process in late), "one that is late is not ended")
        self.settle()

    # --- What must hold

    def settle(self) -> None:
        """Wait until every call has ended, waits for its process, or stands in line because there is no place."""

        def waiting() -> tuple[set[Call], bool]:
            for process in self.processes:
                process.look()
            outstanding = {call for call in self.calls if call.is_alive()}
            served = {call for process in self.processes if (call := self.call_of(process)) is not None}
            rest = outstanding - served
            alive = sum(not process.is_closed for process in self.processes)
            stands = len(self.pool._line) == len(rest) and not (rest and self.pool._has_place)
            return rest, stands and self.pool.started == alive

        wait_for(lambda: waiting()[1], "a call waits for nothing")
        wait_for(lambda: not any(p.is_spoiled and not p.is_closed for p in self.processes), "a bad process is kept")
        before, self.in_line = self.in_line, waiting()[0]
        remain, left = before & self.in_line, before - self.in_line
        if remain and left:
            assert max(call.order for call in left) <= min(call.order for call in remain), "somebody pushed in"
        for call in [call for call in self.calls if not call.is_alive()]:
            self.calls.remove(call)
            self.require_outcome(call)

    def require_outcome(self, call: Call) -> None:
        if isinstance(call.outcome, CheckResult):
            assert call.outcome == call.expected == result_of(call.request)
            assert self.printed[call.request.variant_index] == f"of {call.request.variant_index}"
            return
        assert call.outcome is not None, "it has ended without an outcome"
        assert call.outcome.where == call.request.where
        message = call.outcome.message
        if call.expected is None:  # its process had died before
            found = next(n for n in self.dead_idle if message.startswith(f"a worker ended with exit status {n} while "))
            assert self.dead_idle.pop(found).is_closed
        else:
            assert isinstance(call.expected, str) and message.startswith(call.expected), (message, call.expected)

    @invariant()
    def no_more_run_than_there_are_places(self) -> None:
        alive = [process for process in self.processes if not process.is_closed]
        assert len(alive) <= PLACES + 1
        assert sum(process.state in (STARTING, BUSY) for process in alive) <= PLACES

    @invariant()
    def none_has_executed_two_files(self) -> None:
        assert all(len(process.files) <= 1 for process in self.processes)
        self.processes = [process for process in self.processes if not process.is_closed]

    def teardown(self) -> None:
        """Close the pool while others ask."""
        try:
            # Not always: they would take those that are idle.
            late = [Call(self.pool, "a.py", next(self.numbers), 0) for _ in range(len(self.calls) % 3)]
            for call in late:
                call.start()
            self.pool.close()
            for call in (*late, *self.calls):
                call.join(HANGS_AFTER_S)
                assert not call.is_alive(), "it hangs"
                assert isinstance(call.outcome, WorkerError), call.outcome
                ended = call.outcome.message.startswith("the build is ending")
                assert ended or "ended with exit status" in call.outcome.message
            wait_for(lambda: self.pool.started == 0, "the pool keeps a process")
            assert all(process.is_closed for process in self.processes), "a process is left"
            with pytest.raises(WorkerError, match="the build is ending"):
                self.pool.call(Call(self.pool, "a.py", 0, 0).request)
            assert len(os.listdir("/proc/self/fd")) == self.before, "a file is left open"  # noqa: PTH208
        finally:
            self.patch.undo()


def walk(count: int) -> None:
    gc.collect()  # what tests before this one have left open is closed now, and not while files are counted
    # What fails may hang, so no smaller case is looked for.
    times, phases = FACTOR if THOROUGH else 1, [Phase.generate]
    some = settings(max_examples=count * times, stateful_step_count=30, phases=phases)
    run_state_machine_as_test(PoolWalk, settings=some)


def test_requests_and_processes_in_any_order() -> None:
    walk(25)


def test_requests_and_processes_in_many_orders() -> None:
    walk(60)
