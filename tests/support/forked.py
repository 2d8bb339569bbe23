"""Runs programs in forks of a Python process that has imported what they need, which is most of what a start takes.

A program is the text after ``python -c``, and runs as that does: in a module ``__main__`` of its own, with arguments,
environment and output of its own. What it imports further is its own, too. Only variables that are read when a process
starts, such as ``LD_LIBRARY_PATH``, are those of the process that is forked. At the end, modules are not cleared.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

# Against a program that hangs.
LIMIT_S = 600


class Starter:
    """A process whose forks run programs, one at a time.

    Arguments:
        modules: what it imports. Without ``torch`` among them, which tvm-ffi imports where it is installed, PyTorch is
            left to the programs.
        library_path: its ``LD_LIBRARY_PATH``.
        python: its interpreter.
    """

    def __init__(self, modules: Sequence[str], library_path: str = "", python: str = sys.executable) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "LD_LIBRARY_PATH": library_path}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        environment["PYTHONHASHSEED"] = "0"  # as workers have it
        answers, answer = os.pipe()
        command = [python, "-c", "from support import forked; forked.serve()", str(answer), *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[answer])
        os.close(answer)
        self._answers = os.fdopen(answers, encoding="utf-8")

    def run(
        self,
        code: str,
        *arguments: object,
        env: Mapping[str, str],
        path: Sequence[str | Path] = (),
        cwd: str | Path | None = None,
        merged: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end.

        Arguments:
            path: folders that come first in ``sys.path``.
            cwd: as that of ``subprocess.run``.
            merged: whether what it writes to stderr becomes part of its output.
        """
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as output,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as errors,
        ):
            request = {
                "code": code,
                "arguments": ["-c", *map(str, arguments)],
                "env": dict(env),
                "path": list(map(str, path)),
                "cwd": str(cwd or Path.cwd()),
                # The process opens them by the descriptors of this one.
                "files": [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)],
                "merged": merged,
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answers.readline()
            assert answer, "the process that is forked has ended"
            for file in (output, errors):
                file.seek(0)
            return subprocess.CompletedProcess(code, int(answer), output.read(), errors.read())


def starter(*modules: str, library_path: str = "", python: str = sys.executable) -> Starter:
    """The only one of this kind; it ends with the process of the tests."""
    return _starter(modules, library_path, python)


_starter = cache(Starter)


def serve() -> NoReturn:
    """Import the modules of the command line, and fork for each request."""
    modules = sys.argv[2:]
    if "torch" not in modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # tvm-ffi does without
    for module in modules:
        importlib.import_module(module)
    if sys.modules.get("torch", sys) is None:
        del sys.modules["torch"]
    gc.freeze()  # the end of a fork does not look for garbage among what was imported
    answer = int(sys.argv[1])
    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            os.close(answer)
            run(json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answer, f"{status}\n".encode())
    os._exit(0)  # as forks end: without the clearing of modules, of which those of Triton complain


def run(request: Mapping[str, object]) -> NoReturn:
    """Become the process of a program, run it, and end."""
    signal.alarm(LIMIT_S)
    for descriptor, file in enumerate(["/dev/null", *request["files"]]):
        opened = os.open(file, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    if request["merged"]:
        os.dup2(1, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (for as long as the process runs)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # what was imported may have asked for it
    sys.argv = request["arguments"]
    sys.path[:0] = request["path"]
    importlib.invalidate_caches()
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    status: object = 0
    try:
        exec(compile(request["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as left:
        status = left.code
    except BaseException:
        traceback.print_exc()
        status = 1
    end(status)


def end(status: object) -> NoReturn:
    """Do what the end of the interpreter does, but for clearing all modules, which takes longer than most programs."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status if isinstance(status, int) else 1 if status else 0)
