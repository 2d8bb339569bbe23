"""The process in another Python environment: it executes sources of the project there, and answers with data.

It speaks the protocol of the workers (``processes/messages.py``). A module of a front end does the work: ``load``
imports its compiler, and ``OPERATIONS`` has, for each request, a function that gets the request and the module of its
source. A fork answers each request, so that each source is executed anew, and a crash becomes an answer, too. Nothing
is unpickled. Only those modules of Kernelwright are imported that need nothing but Python.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import KernelwrightError, LoweringError, ToolchainError, text_of
from ..frontends.named_source import SourceRequest
from ..processes.messages import Failed, Hello, decode, encode
from ..processes.serving import Progress, Send, answer_to, serve
from ..processes.tool_process import REVISION, write
from ..processes.worker import describe_status
from .environment import Variables
from .reads import Reads
from .watch import Watch

Operations = Mapping[Any, Callable[[Any, ModuleType], Any]]


def main() -> None:
    """Serve requests until stdin ends; the arguments are the module of the front end, and the pipe for answers."""
    module = importlib.import_module(f"..frontends.{sys.argv[1]}", __package__)
    serve_sources(module.load, module.OPERATIONS)


def serve_sources(load: Callable[[], ModuleType], operations: Operations) -> None:
    """Serve requests until stdin ends.

    Arguments:
        load: imports the compiler, once; returns its module.
        operations: class of requests -> function that does one. It returns a dataclass, whose ``files`` are set here.
    """
    serve(_greeting(load), lambda send: partial(_answer_in_fork, operations, send), int(sys.argv[-1]))


def _greeting(load: Callable[[], ModuleType]) -> Hello | ToolchainError:
    try:
        compiler = load()
    except Exception as error:  # a broken installation fails in many ways
        return ToolchainError(f"{type(error).__name__}: {error}")
    return Hello({"compiler": str(compiler.__version__)}, REVISION, str(Path(str(compiler.__file__)).parent))


def _answer_in_fork(operations: Operations, send: Send, line: bytes) -> None:
    kinds = {kind.op: kind for kind in operations}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            write(writing, answer_to(line, kinds, partial(_do, operations), send))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.readline()  # not all of it: a program that the source has started may keep the pipe open
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not answer.endswith(b"\n"):
        number, request = decode(line, kinds)
        message = f"{request.cannot}: the process {describe_status(status)}"
        send(encode(number, Failed.of(LoweringError(message, request.where, request.remedy))))
        return
    send(answer)


def _do(operations: Operations, request: SourceRequest, progress: Progress) -> Any:
    """The result of a request. It reports no progress: the parent process reads one line, the answer."""
    watch = Watch(Path(request.root), Variables(), os.environ.get("HOME", request.root + "/."))
    reads = Reads(by_tool=True)
    try:
        with watch.recording(reads):
            path = Path(request.file)
            result = operations[type(request)](request, watch.execute(str(path), str(path.parent), path.stem))
    except KernelwrightError as error:
        location = (error.where.location or "").removeprefix(f"{request.root}/")
        error.where = replace(request.where, location=location or request.where.location)
        raise
    except BaseException as error:  # it runs the author's code, and errors of compilers have many types
        raise _error(error, request, watch) from error
    return replace(result, files=dict(sorted(reads.files.items())))


def _error(error: BaseException, request: SourceRequest, watch: Watch) -> KernelwrightError:
    """The error for an exception of the author's code, or of the compiler."""
    of_source = watch.error(error, request.subject, request.where)
    if isinstance(error, ModuleNotFoundError):
        of_source.remedy = f"install it in the environment of {request.unit.python}, or leave it out of the source"
    if watch.frames(error) or isinstance(error, SyntaxError):
        of_source.remedy = of_source.remedy or f"mend that line{request.otherwise}"
        return of_source
    message = f"{type(error).__name__}: {next(iter(text_of(error).strip().splitlines()), '')}".removesuffix(": ")
    return LoweringError(f"{request.cannot}: {message}", request.where, request.remedy, of_source.detail)
