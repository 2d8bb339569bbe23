"""A machine of a cluster: it knows its tools, and does runs for builds elsewhere. ``dask_worker`` connects it."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..backends.launcher import LAUNCHER, interface_sources
from ..core.errors import KernelwrightError, ToolchainError, Where, WorkerError
from ..core.files import digest_of
from ..processes.environment import tool_environment
from ..processes.memory import Measurements, MemoryGovernor, default_budget_kib
from ..processes.messages import Failed, encode
from ..processes.protocol import ToolRequest
from ..processes.runner import ToolRunner, lacked
from ..processes.serving import Progress, answer_to
from ..processes.tools import SharedTool
from ..toolchain.probe import Toolchain
from ..toolchain.shared import shared_compiler, shared_nvcc, shared_nvrtc
from ..toolchain.tvm import tvm_ffi_includes
from .messages import FOLDER, SCRATCH, Action, ActionResult, Packed, StandIns

PLAIN = re.compile(r"[\w@%+=:,./-]+")
"""A path that a shell takes as it is. Commands of a build may have a stand-in for it without quotes."""


Finders = Mapping[str, Callable[[], SharedTool]]
"""Name of a tool -> function that finds the tool as it is now, or raises a KernelwrightError. One runs at a time."""


def finders(toolchain: Toolchain) -> Finders:
    """The finders of those tools of this machine that builds elsewhere can use."""
    return {
        "cc": lambda: _compiler(toolchain),
        "nvcc": lambda: _nvcc(toolchain),
        "nvrtc": lambda: shared_nvrtc(toolchain.nvrtc()),
    }


def _nvcc(toolchain: Toolchain) -> SharedTool:
    compiler = toolchain.host_compiler("")
    nvcc = toolchain.nvcc("", compiler)
    toolchain.nvcc_programs(nvcc, compiler)  # it compiles
    return shared_nvcc(nvcc, compiler)


def _compiler(toolchain: Toolchain) -> SharedTool:
    headers, folders = digest_of(interface_sources()), map(str, tvm_ffi_includes())
    tvm_ffi = toolchain.lowerer().tvm_ffi
    return shared_compiler(toolchain.host_compiler(""), headers, tvm_ffi, str(LAUNCHER), folders)


class Machine:
    """Does runs, several at a time. Safe to use from several threads.

    Arguments:
        finders: find the tools. They are called before and after each run, because a tool may be upgraded while this
            machine offers it.
        folder: where the files of a run are while it lasts.
        note: called with a line about each run.
        leave: called once, when a tool has changed, so that this machine cannot do any more what it offers.

    Attributes:
        tools: the tools that it offers, as they were at the start.
        problems: why it does not offer the other tools.
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
        self._running: dict[str, ToolRunner] = {}
        self.tools: list[SharedTool] = []
        self.problems: list[str] = []
        for name in finders:
            try:
                self.tools.append(self._find(name))
            except KernelwrightError as error:
                self.problems.append(f"no {name}: {error.message}")
        self._names = {tool.identity: tool.name for tool in self.tools}

    def execute(self, line: bytes, key: str) -> bytes:
        """Do the action that a line asks for.

        Arguments:
            line: the request.
            key: the name of the run, for :meth:`cancel`.

        Returns:
            A line with the answer. Whatever goes wrong is in it, and nothing is raised.
        """

        def do(action: Action, progress: Progress) -> ActionResult:
            return self._do(action, key)

        try:
            return answer_to(line, {Action.op: Action}, do, lambda progress: None)
        except WorkerError as error:
            return encode(0, Failed("ToolchainError", f"the request does not fit: {error.message}"))

    def cancel(self, key: str) -> None:
        """End a run that nobody waits for any more, with all that it has started."""
        with self._lock:
            if (runner := self._running.pop(key, None)) is not None:
                runner.close()

    def close(self) -> None:
        """End all runs."""
        with self._lock:
            for runner in (*self._idle, *self._running.values()):
                runner.close()
            self._running.clear()

    def _do(self, action: Action, key: str) -> ActionResult:
        tool = self._tool(action.tool)
        try:
            with tempfile.TemporaryDirectory(prefix="kw-", dir=self._folder) as top:
                result = self._result(action, key, tool, Path(top))
        except ValueError as error:
            raise ToolchainError(f"the request does not fit: {error}") from error
        except OSError as error:
            raise ToolchainError(f"the operating system said: {error.strerror or error}") from error
        self._tool(action.tool)  # it may have been upgraded while it ran
        ended = f"status {result.run.status}" if result.run.in_time else "too late"
        self._note(f"{action.kind} of {action.subject}: {ended} in {result.run.seconds:.2f} s")
        return result

    def _result(self, action: Action, key: str, tool: SharedTool, top: Path) -> ActionResult:
        folder, scratch = top / FOLDER, top / SCRATCH
        for directory in (folder, scratch):
            directory.mkdir()
        for name, packed in action.inputs:
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.content)
        stand_ins = StandIns({**tool.places, "SCRATCH": str(scratch)})
        command = [stand_ins.undo(word) for word in action.command]
        environment = tool_environment() | {"TMPDIR": str(scratch)}
        with self._runner(key) as runner:
            request = ToolRequest(command, str(folder), environment, action.timeout_s, Where())
            run = runner.attempt(request, action.kind, action.subject)
        if run.in_time and run.status != 0 and (missing := lacked(run)):
            raise ToolchainError(f"the worker lacks {missing}")
        outputs = (top / name for name in action.outputs)
        files = tuple(Packed.of(path.read_bytes()) if path.is_file() else None for path in outputs)
        return ActionResult(replace(run, output=stand_ins.put(run.output)), files)

    def _tool(self, identity: str) -> SharedTool:
        """A tool as it is now; raises a KernelwrightError if it is not the one with this identity any more."""
        if identity not in self._names:
            raise ToolchainError(f"this worker has no tool with the identity {identity}")
        try:
            tool = self._find(self._names[identity])
            if tool.identity != identity:
                raise ToolchainError(f"its {tool.name} has changed since it was started; it is {tool.version} now")
        except KernelwrightError:
            with self._lock:
                is_first, self._has_left = not self._has_left, True
            if is_first:
                self._leave()
            raise
        return tool

    def _find(self, name: str) -> SharedTool:
        """A tool as it is now; raises a KernelwrightError if there is none, or if a shell would change its path."""
        try:
            with self._finding:
                tool = self._finders[name]()
        except OSError as error:
            raise ToolchainError(f"its files cannot be read: {error.strerror or error}") from error
        for path in tool.places.values():
            if not PLAIN.fullmatch(path):
                raise ToolchainError(f"a shell would not take the path {path!r} as it is")
        return tool

    @contextmanager
    def _runner(self, key: str) -> Iterator[ToolRunner]:
        """A runner for one tool; if the run is cancelled, the runner is closed, and not used again."""
        with self._lock:
            runner = self._idle.pop() if self._idle else ToolRunner(1, self._folder, 0.0, self._governor)
            self._running[key] = runner
        try:
            yield runner
        finally:
            with self._lock:
                was_cancelled = self._running.pop(key, None) is None
                if not was_cancelled:
                    self._idle.append(runner)
        if was_cancelled:  # the tool may have been killed a moment before its runner, which is no error of the tool
            raise WorkerError("the run was cancelled")
