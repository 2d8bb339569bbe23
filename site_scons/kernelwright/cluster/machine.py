"""A machine of a cluster: it knows its tools, and does runs for builds elsewhere. What connects it is above this."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..backends.launcher import LAUNCHER, interface_sources
from ..core.errors import KernelwrightError, ToolchainError, Where, WorkerError
from ..core.files import digest_of
from ..processes.elsewhere import SharedTool
from ..processes.environment import tool_environment
from ..processes.memory import Measurements, MemoryGovernor, default_budget_kib
from ..processes.protocol import ToolRequest
from ..processes.runner import ToolRunner, lacked
from ..toolchain.probe import Toolchain
from ..toolchain.shared import shared_compiler, shared_nvcc, shared_nvrtc
from ..toolchain.tvm import tvm_ffi_includes
from .messages import FOLDER, SCRATCH, Answer, Request, StandIns

PLAIN = re.compile(r"[\w@%+=:,./-]+")
"""A path that a shell takes as it is. Commands of a build may have a stand-in for it without quotes."""


Finders = Mapping[str, Callable[[], SharedTool]]
"""Name of a tool -> finds it as it is now, or raises a KernelwrightError. One is called at a time."""


def finders(toolchain: Toolchain) -> Finders:
    """What finds the tools of this machine that builds elsewhere can use."""
    return {
        "cc": lambda: _compiler(toolchain),
        "nvcc": lambda: _nvcc(toolchain),
        "nvrtc": lambda: shared_nvrtc(toolchain.nvrtc()),
    }


def _nvcc(toolchain: Toolchain) -> SharedTool:
    compiler = toolchain.host_compiler("")
    return shared_nvcc(toolchain.nvcc("", compiler), compiler)


def _compiler(toolchain: Toolchain) -> SharedTool:
    headers, folders = digest_of(interface_sources()), map(str, tvm_ffi_includes())
    tvm_ffi = toolchain.lowerer().tvm_ffi
    return shared_compiler(toolchain.host_compiler(""), headers, tvm_ffi, str(LAUNCHER), folders)


def _plain(tool: SharedTool) -> SharedTool:
    """A tool whose paths a shell takes as they are; raises a ToolchainError for another one."""
    for path in tool.places.values():
        if not PLAIN.fullmatch(path):
            raise ToolchainError(f"a shell would not take the path {path!r} as it is", Where())
    return tool


@dataclass
class _Running:
    """A run, and whether nobody wants it any more."""

    runner: ToolRunner
    cancelled: bool = False

    def cancel(self) -> None:
        """End it; the caller has the machine's lock."""
        self.cancelled = True
        self.runner.close()


class Machine:
    """Does runs, several at a time. Safe to use from several threads.

    Arguments:
        finders: find what it can run. They are called before and after each run, because a tool may be upgraded while
            this machine offers it.
        folder: where it has its files while a run lasts.
        note: is told of each run.
        leave: called once, when a tool is another one than it was: what this machine offers is not true any more.

    Attributes:
        tools: what it offers: the tools as they were at the start.
        problems: what there is to say about the others.
    """

    def __init__(
        self,
        finders: Finders,
        folder: Path,
        note: Callable[[str], None],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._finders = finders
        self._finding = threading.Lock()
        self._folder = folder
        self._note = note
        self._leave = leave
        self._has_left = False
        self._governor = MemoryGovernor(default_budget_kib(), Measurements(folder / "measurements.json"))
        self._lock = threading.Lock()
        self._idle: list[ToolRunner] = []
        self._running: dict[str, _Running] = {}
        self.tools: list[SharedTool] = []
        self.problems: list[str] = []
        for name in finders:
            try:
                self.tools.append(self._find(name))
            except ToolchainError as error:
                self.problems.append(f"no {name}: {error.message}")
        self._names = {tool.identity: tool.name for tool in self.tools}

    def execute(self, data: bytes, key: str) -> bytes:
        """Do the run that a request asks for.

        Arguments:
            data: the request.
            key: what :meth:`cancel` knows it by.

        Returns:
            the answer. Whatever goes wrong is in it, and nothing is raised.
        """
        try:
            answer = self._answer(Request.decode(data), key)
        except ValueError as error:
            answer = Answer(None, {}, f"the request does not fit: {error}")
        except KernelwrightError as error:
            answer = Answer(None, {}, error.message)
        except OSError as error:
            answer = Answer(None, {}, f"the operating system said: {error.strerror or error}")
        return answer.encode()

    def cancel(self, key: str) -> None:
        """End a run that nobody waits for any more, with all that it has started."""
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                running.cancel()

    def close(self) -> None:
        """End all runs."""
        with self._lock:
            for runner in self._idle:
                runner.close()
            for running in self._running.values():
                running.cancel()

    def _answer(self, request: Request, key: str) -> Answer:
        tool = self._tool(request.tool)
        with tempfile.TemporaryDirectory(prefix="kw-", dir=self._folder) as top:
            places = {**tool.places, "SCRATCH": f"{top}/{SCRATCH}"}
            _write(Path(top), request.inputs)
            stand_ins = StandIns(places)
            command = [stand_ins.undo(word) for word in request.command]
            environment = tool_environment() | {"TMPDIR": places["SCRATCH"]}
            run = ToolRequest(command, f"{top}/{FOLDER}", environment, request.timeout_s, Where())
            with self._runner(key) as runner:
                runner.timeout_s = request.timeout_s
                result = runner.attempt(run, request.kind, request.subject)
            if result.in_time and result.status != 0 and (missing := lacked(result)):
                raise ToolchainError(f"the worker lacks {missing}")
            files = _made(Path(top), request.outputs)
        self._tool(request.tool)  # it may have been upgraded while it ran
        ended = f"status {result.status}" if result.in_time else "too late"
        self._note(f"{request.kind} of {request.subject}: {ended} in {result.seconds:.2f} s")
        return Answer(replace(result, output=stand_ins.put(result.output)), files)

    def _tool(self, identity: str) -> SharedTool:
        """A tool as it is now; raises a ToolchainError if it is not the one with this identity any more."""
        if identity not in self._names:
            raise ToolchainError(f"this worker has no tool with the identity {identity}")
        try:
            tool = self._find(self._names[identity])
            if tool.identity == identity:
                return tool
            error = ToolchainError(f"its {tool.name} has changed since it was started; it is {tool.version} now")
        except ToolchainError as problem:
            error = problem
        with self._lock:
            is_first, self._has_left = not self._has_left, True
        if is_first:
            self._leave()
        raise error

    def _find(self, name: str) -> SharedTool:
        """A tool as it is now; raises a ToolchainError if there is none."""
        try:
            with self._finding:
                return _plain(self._finders[name]())
        except KernelwrightError as error:
            raise ToolchainError(error.message) from error
        except OSError as error:
            raise ToolchainError(f"its files cannot be read: {error.strerror or error}") from error

    @contextmanager
    def _runner(self, key: str) -> Iterator[ToolRunner]:
        """What runs one tool; cancelled, it cannot be used again."""
        with self._lock:
            runner = self._idle.pop() if self._idle else ToolRunner(1, self._folder, 0.0, self._governor)
            running = self._running[key] = _Running(runner)
        try:
            yield runner
        finally:
            with self._lock:
                del self._running[key]
                if not running.cancelled:
                    self._idle.append(runner)
        if running.cancelled:  # the tool may have been killed a moment before its runner, which is no error of the tool
            raise WorkerError("the run was cancelled")


def _write(top: Path, inputs: Mapping[str, bytes]) -> None:
    for name in (FOLDER, SCRATCH):
        (top / name).mkdir()
    for name, content in inputs.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _made(top: Path, outputs: tuple[str, ...]) -> dict[str, bytes]:
    """The outputs that are there."""
    return {name: (top / name).read_bytes() for name in outputs if os.path.isfile(top / name)}  # noqa: PTH113
