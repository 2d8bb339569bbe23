"""Starts ``scons`` as a fork of a process that has imported SCons and TVM, which is most of what a small build takes.

The fork is a process of its own, with a working folder, environment and output of its own, and runs SCons's own
``main()``. Its first fork server is a fork as well, a child of the ``scons`` process like any other; later ones, and
everything else that a build starts, are started as always. What differs from a start of ``python -m SCons``: the
modules are there, and hash values are the same in every run.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import linecache
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from kernelwright.processes import children as processes
from kernelwright.worker import forkserver, server

TESTS = Path(__file__).resolve().parent
SITE_SCONS = str(Path(server.__file__).parents[2])

assert not isinstance(server.load(), Exception), server.load()
WITH_TVM = frozenset(sys.modules)

import SCons.Platform.posix  # noqa: E402 (after what a fork server imports)
import SCons.Script  # noqa: E402, F401
from kernelwright.scons import tool  # noqa: E402, F401

ONLY_BUILD = frozenset(sys.modules) - WITH_TVM


def _lower_once() -> None:
    """Have Python's ``inspect``, TVM's parser and LLVM fill the tables that each worker would fill anew."""
    from kernelwright.lower.tir import Tir
    from kernelwright.lower.unit import Unit
    from tvm import te
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def parsed(x_handle: T.handle, y_handle: T.handle):  # type: ignore[no-untyped-def]
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for i in T.parallel(n):
            with T.sblock("y"):
                j = T.axis.spatial(n, i)
                y[j] = x[j] * T.cast(2.0, "float32")

    x = te.placeholder((te.var("n"), 4), "float32", name="x")
    made = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")])
    for target, arch in (("llvm", "x86-64-v3"), ("cuda", "sm_80")):
        unit = Unit("once", "default", ("default",), {}, (), target, arch, __file__)
        for function in (parsed, made):
            Tir().lower(function, unit, lambda doing: None)


_lower_once()
ONLY_TVM = frozenset(
    name
    for name in WITH_TVM
    if (top := name.partition(".")[0]) not in sys.stdlib_module_names and top not in ("kernelwright", __name__)
)


def main() -> NoReturn:
    """Be ``scons``; ``sys.argv`` has its arguments."""
    tempfile.tempdir = None
    others = [path for path in sys.path if path and TESTS not in (Path(path), *Path(path).parents)]
    sys.path[:] = dict.fromkeys([SITE_SCONS, *others])
    _prepare_fork_server()
    for name in ONLY_TVM:
        sys.modules.pop(name, None)
    sys.path.insert(0, str(Path.cwd()))
    status: Any = 0
    try:
        runpy.run_module("SCons", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # what the end of the interpreter does, but for TVM's part of it
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status if isinstance(status, int) else 1 if status else 0)


class _Prepared:
    """A child that waits for what it is to do; afterwards like ``subprocess.Popen``."""

    def __init__(self) -> None:
        self._work, theirs = socket.socketpair()
        self.pid = os.fork()
        self.returncode: int | None = None
        if not self.pid:
            self._work.close()
            _become_fork_server(theirs)
        theirs.close()

    def start(self, command: Sequence[str], streams: Sequence[int], **request: object) -> None:
        message = json.dumps({"arguments": command[3:], **request}).encode()
        socket.send_fds(self._work, [message], streams)
        self._work.close()

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ends = os.pidfd_open(self.pid)
            ended = select.select([ends], [], [], timeout)[0]
            os.close(ends)
            if not ended:
                raise subprocess.TimeoutExpired("the fork server", timeout or 0)
        return self.poll() or 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


def _prepare_fork_server() -> None:
    prepared = [_Prepared()]

    def start(command: Sequence[str], **options: Any) -> Any:
        if not prepared or list(command[:3]) != [sys.executable, "-m", "kernelwright.worker.forkserver"]:
            return subprocess.Popen(command, **options)
        process = prepared.pop()
        streams = [file if isinstance(file, int) else file.fileno() for file in (options["stdin"], options["stdout"])]
        process.start(command, streams, cwd=str(options["cwd"]), env=options["env"])
        return process

    processes.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[attr-defined]


def _become_fork_server(work: socket.socket) -> NoReturn:
    """Wait for the order to be one; end if ``scons`` ends without it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    message, streams, _, _ = socket.recv_fds(work, 1 << 20, 2)
    if not message:
        os._exit(0)
    os.setsid()
    for number, stream in enumerate([*streams, streams[1]]):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    work.close()
    request = json.loads(message)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(forkserver.__file__), *request["arguments"]]
    sys.dont_write_bytecode = True
    for name in ONLY_BUILD:
        sys.modules.pop(name, None)
    # TVM looks up its callers' lines, and a strict worker refuses to read these files, which are of no package.
    for file in (__file__, str(TESTS / "forked.py")):
        linecache.getlines(file)
    try:
        forkserver.main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)
