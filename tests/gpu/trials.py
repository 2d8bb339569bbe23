"""Programs that are lists of small experiments: what an experiment is, and how each is run and judged.

A program of experiments has three commands:

    PROGRAM list
    PROGRAM run NAME      one of them, in this process; prints a line of JSON
    PROGRAM all [FILE]    those that this device can do, each in a process of its own; writes JSON
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from devices import Device, Unseen, device_of, named

Run = Callable[[Device], str]

RIGHT = "right values"

AT_ONCE = 8
"""Experiments that run at the same time: most of what they take is the import of frameworks."""


@dataclass(frozen=True)
class Experiment:
    """Something to try.

    Arguments:
        run: does it, and says what it got; what it raises is what it got, too.
        expected: a regular expression for all of that.
        only_cuda: whether the CPU cannot play it.
        limit_s: seconds after which its process is killed.
        alone: whether no other one may run at the same time, because it measures.
    """

    run: Run
    expected: str = RIGHT
    only_cuda: bool = False
    limit_s: float = 90
    alone: bool = False


@dataclass(frozen=True)
class Program:
    """A program of experiments.

    Arguments:
        file: its source.
        experiments: by name.
        can_run: whether the device of this process can do an experiment.
    """

    file: str
    experiments: Mapping[str, Experiment]
    can_run: Callable[[Experiment], bool]

    def chosen(self) -> list[str]:
        """The experiments that this device can do."""
        return [name for name, one in self.experiments.items() if self.can_run(one)]


# ---- what experiments share


def verdict(got: np.ndarray, expected: np.ndarray | float) -> str:
    """What is to be said of values; where nothing computes, that a call went through is all that can be seen."""
    if isinstance(got, Unseen):
        return RIGHT
    wrong = np.flatnonzero(np.broadcast_to(np.asarray(expected), got.shape).ravel() != got.ravel())
    if not wrong.size:
        return RIGHT
    return f"{wrong.size} of {got.size} values are wrong: got {got.ravel()[wrong[0]]} at {wrong[0]}"


def said(work: Callable[[], str]) -> str:
    """What some work says, or what it raises."""
    try:
        return work()
    except Exception as error:  # whatever it is, it is the result
        return f"{type(error).__name__}: {error}"


# ---- running them


def run_here(program: Program, name: str) -> dict[str, Any]:
    """Run an experiment in this process."""
    experiment = program.experiments[name]
    return judged(experiment, said(lambda: experiment.run(device_of(named()))))


def judged(experiment: Experiment, got: str) -> dict[str, Any]:
    """What is written down of an experiment."""
    passed = re.fullmatch(experiment.expected, got, re.DOTALL) is not None
    return {"passed": passed, "expected": experiment.expected, "got": got[:2000]}


def run_one(program: Program, name: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run an experiment in a process of its own."""
    experiment = program.experiments[name]
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {"CUDA_CACHE_PATH": folder} | dict(environment or {})
        command, output, errors = [sys.executable, program.file, "run", name], Path(folder, "out"), Path(folder, "err")
        with output.open("w") as out, errors.open("w") as err:  # a pipe would be held open by what it has started
            process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            try:
                process.wait(experiment.limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return judged(experiment, f"still running after {experiment.limit_s:.0f} s")
        return result_of(experiment, process.returncode, output.read_text(), errors.read_text(errors="replace"))


def result_of(experiment: Experiment, status: int, output: str, errors: str) -> dict[str, Any]:
    """What a process has printed last, or how it ended without that."""
    try:
        return dict(json.loads(output.splitlines()[-1]))
    except (IndexError, ValueError):
        return judged(experiment, f"the process ended with status {status}: {errors[-1500:]}")


def run_forked(program: Program, name: str) -> dict[str, Any]:
    """Run an experiment in a child that has what is imported already; for devices that only pretend to be there."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, json.dumps(run_here(program, name)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return result_of(program.experiments[name], os.waitstatus_to_exitcode(status), text, "")


def run_all(program: Program, results: Path | None) -> int:
    """Run what this device can do, and write after each one what is known so far; 1 if one did not pass."""
    found: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()
    # Nothing poisons a context of the CPU, and a process for each one would take most of the time.
    run = {"cuda": run_one, "cpu": run_here, "standin": run_forked}[named()]

    def one(name: str) -> None:
        result = run(program, name)
        with lock:
            found[name] = result
            print(f"{'passed' if result['passed'] else 'FAILED'}: {name}: {result['got']}", flush=True)
            if results is not None:
                partial = results.with_suffix(".new")
                partial.write_text(json.dumps(found, indent=1))
                shutil.move(partial, results)

    if named() == "standin":
        for module in ("tvm_ffi", "cuda.core", "cuda.bindings.driver"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)
        with contextlib.suppress(Exception):  # its first error reads debug information, which takes half a second
            sys.modules["tvm_ffi"].load_module("/no/such/library.so")
    names = program.chosen()
    together = [name for name in names if not program.experiments[name].alone]
    with ThreadPoolExecutor(AT_ONCE) if named() == "cuda" else contextlib.nullcontext() as pool:
        list(pool.map(one, together) if pool else map(one, together))
    for name in names:
        if program.experiments[name].alone:
            one(name)
    return 0 if all(result["passed"] for result in found.values()) else 1


def main(program: Program, words: list[str]) -> int:
    """Do what the command line says."""
    if words[:1] == ["run"]:
        print(json.dumps(run_here(program, words[1])))
        return 0
    if words[:1] == ["all"]:
        return run_all(program, Path(words[1]) if len(words) > 1 else None)
    print("\n".join(program.chosen()))
    return 0
