"""Imports TVM, and forks ahead what a program starts to lower and to measure kernels: that import is most of its start.

Code for the CPU that is equal, and for the same target, LLVM compiles once in a test run: most of what a small kernel
takes. Workers that are started as always compile it each time.

For `forked.starter`: a program that calls `prepare` has children that wait. The first processes of `FORKED` that it
starts are these children; later ones, and everything else that it starts, are started as always.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import linecache
import os
import pkgutil
import select
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from kernelwright import ondemand, stages, tune
from kernelwright.ondemand import kernel  # noqa: F401 (for definitions, which import it first)
from kernelwright.processes import children
from kernelwright.tune import measure  # noqa: F401 (one of FORKED, and so is the next one)
from kernelwright.worker import forkserver, server, tvm_import  # noqa: F401

from support import tool_memory

OBJECTS = os.environ.get("OBJECTS_OF_TESTS", "")
"""A folder for what LLVM has made; empty: nothing is kept."""

FORKED = ("kernelwright.worker.forkserver", "kernelwright.tune.measure")
"""What imports TVM before it does anything else."""

assert not isinstance(tvm_import.load(), Exception), tvm_import.load()

# What programs import that compile on demand or tune, each in a fork.
for package in (ondemand, stages, tune):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)


def _lower_once() -> None:
    """Have Python's ``inspect``, TVM's parser and LLVM fill the tables that each worker would fill anew."""
    from kernelwright.define.unit import Unit
    from kernelwright.frontends.tir.front_end import Tir
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
        unit = Unit("once", "default", f"kw_once__{target}", {}, (), target, arch, __file__)
        for function in (parsed, made):
            Tir().lower(function, unit, lambda doing: None)


class _HostCode:
    """What TVM's ``codegen_build`` gives of a module for LLVM: made when it is written, unless it was before.

    Arguments:
        compile: makes it.
        identity: all that decides its content.
    """

    def __init__(self, compile: Callable[[], Any], identity: Sequence[str]) -> None:
        self._compile = compile
        self._kept = Path(OBJECTS, hashlib.sha256(repr(identity).encode("utf-8", "surrogateescape")).hexdigest())

    def write_to_file(self, path: str, format: str) -> None:
        if not self._kept.exists():
            scratch = self._kept.with_suffix(f".{os.getpid()}")
            self._compile().write_to_file(str(scratch), format)
            scratch.rename(self._kept)
        shutil.copyfile(self._kept, path)


def _remember_host_code() -> None:
    """Give the lowering of TIR a ``codegen_build`` that remembers."""
    import tvm
    from kernelwright.frontends.tir import lowering as tir_lowering

    build = importlib.import_module("tvm.tirx.build")

    def codegen_build(module: Any, target: Any) -> Any:
        if target.kind.name != "llvm":
            return build.codegen_build(module, target)
        context = tvm.transform.PassContext.current()
        settings = [f"{name}={value}" for name, value in sorted(context.config.items())]
        identity = [module.script(show_meta=True), str(target), str(context.opt_level), *settings]
        return _HostCode(lambda: build.codegen_build(module, target), identity)

    remembering = SimpleNamespace(**{**vars(build), "codegen_build": codegen_build})
    tir_lowering.importlib = SimpleNamespace(import_module=lambda name: remembering)  # type: ignore[attr-defined]


_lower_once()
if OBJECTS:
    _remember_host_code()
# TVM looks for the module of each of its callers. For code without a file, that goes through all modules each time.
inspect.modulesbyfile.update({"<string>": "", "<ast>": ""})
READY: frozenset[str]
ONLY_TVM: frozenset[str]


def note_ready() -> None:
    """Note which modules there are: all that workers begin with, and those of them that ``scons`` has no use for."""
    global READY, ONLY_TVM
    READY = frozenset(sys.modules)
    ONLY_TVM = frozenset(
        name
        for name in READY
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names and top not in ("kernelwright", "support")
    )


note_ready()


class _Prepared:
    """A child that waits for what it is to do; afterwards like ``subprocess.Popen``."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self) -> None:
        self._work, theirs = socket.socketpair()
        self.pid = os.fork()
        self.returncode: int | None = None
        if not self.pid:
            self._work.close()
            _wait_for_work(theirs)
        theirs.close()

    def start(self, command: Sequence[str], options: dict[str, Any]) -> None:
        """Have it do what a command would, with these options of ``Popen``."""
        streams, pipes = [], []
        for name in ("stdin", "stdout", "stderr"):
            file = options[name]
            if file == subprocess.PIPE:
                reading, writing = os.pipe()
                file, ours, mode = (reading, writing, "wb") if name == "stdin" else (writing, reading, "rb")
                setattr(self, name, os.fdopen(ours, mode, 0))
                pipes.append(file)
            streams.append(file if isinstance(file, int) else file.fileno())
        request = {"command": command[2:], "cwd": str(options["cwd"]), "env": options["env"]}
        socket.send_fds(self._work, [json.dumps(request).encode()], streams)
        self._work.close()
        for pipe in pipes:
            os.close(pipe)

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # asked by a fork of the program
                pid, status = self.pid, 0
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


def prepare(count: int) -> None:
    """Fork children that wait for the start of something of `FORKED`; the program is then no worker to Kernelwright."""
    prepared, program = [_Prepared() for _ in range(count)], os.getpid()

    def start(command: Sequence[str], **options: Any) -> Any:
        is_known = list(command[:2]) == [sys.executable, "-m"] and command[2] in FORKED
        if not prepared or not is_known or os.getpid() != program:
            return subprocess.Popen(command, **options)
        process = prepared.pop()
        process.start(command, options)
        return process

    tool_memory.remember()
    del sys.modules[server.__name__]
    children.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[attr-defined]


def _wait_for_work(work: socket.socket) -> NoReturn:
    """Wait for the order to start; end if the program ends without it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    message, streams, _, _ = socket.recv_fds(work, 1 << 20, 3)
    if not message:
        os._exit(0)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    work.close()
    request = json.loads(message)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    module, *arguments = request["command"]
    sys.argv = [str(sys.modules[module].__file__), *arguments]
    sys.dont_write_bytecode = True
    sys.path[:] = filter(None, sys.path)  # workers are started with PYTHONSAFEPATH, without their working folder
    # Whoever refers to them keeps them from being cleared one by one.
    left = [sys.modules.pop(name) for name in sys.modules.keys() - READY]
    # TVM looks up its callers' lines, and a strict worker refuses to read these files, which are of no package.
    for name in ("forked", "scons_start", "tvm_ready"):
        linecache.getlines(str(Path(__file__).with_name(f"{name}.py")))
    try:
        sys.modules[module].main()
    except BaseException:
        traceback.print_exc()
    del left
    os._exit(1)
