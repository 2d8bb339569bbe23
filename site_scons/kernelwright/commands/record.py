"""``kernelwright record``: runs a program, and records which code its calls of Triton need."""

from __future__ import annotations

import argparse
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ..core.converter import from_json, json_text
from ..core.errors import DefinitionError, KernelwrightError, SettingsError
from ..core.files import read_record
from ..core.records import decoded
from ..frontends.triton.notes import WHERE, Seen, seen_in
from ..frontends.triton.record import counted, noting, read, require_arch, write
from .command import Command, argument

OUTPUT = "calls.json"

PACKAGE = Path(__file__).resolve().parents[1]

START = "import sys; sys.path[0] = sys.argv.pop(1); from kernelwright.commands.record import in_child; in_child()"
"""The program of the process in which the user's program runs; its first argument is the folder with our package."""


@dataclass(frozen=True)
class Run:
    """What a process is told.

    Arguments:
        words: the program, or the name of a module, and its arguments.
        is_module: whether it is a module.
        arch: that which is recorded for; None: that of the GPU.
        first_config: whether a tuned function has one config only.
        timings: the folder of times of Triton's tuner; None: there are none.
        folder: where it writes what it sees.
    """

    words: tuple[str, ...]
    is_module: bool
    arch: str | None
    first_config: bool = False
    timings: str | None = None
    folder: str = ""

    @property
    def notes(self) -> Path:
        """The file for what is seen."""
        return Path(self.folder, "notes")

    @property
    def refusal(self) -> Path:
        """The file for why the program was not run."""
        return Path(self.folder, "refusal")


@dataclass(frozen=True)
class Refusal:
    """Why a program was not run, and what to do."""

    message: str
    remedy: str | None


def run(options: argparse.Namespace) -> int:
    """Run the program, once for each arch, and write the file.

    Raises:
        KernelwrightError: the program failed, or what it did cannot be recorded.
    """
    words = (*(options.module or ()), *options.program)  # argparse ends the former at "--"
    output, is_module = Path(options.output), bool(options.module)
    _require_usable(words, is_module, options.arch or ())
    read(output, options.fresh)  # it fails now rather than after the program
    seen, status = _run_all(
        [
            Run(words, is_module, arch, options.first_config, options.timings)
            for arch in dict.fromkeys(options.arch or [None])
        ]
    )
    if seen.recording:
        calls = f"{'at least ' if status < 0 else ''}{counted(seen.calls, 'call')}"
        print(f"{output}: {write(output, seen.recording, options.fresh)} from {calls}", flush=True)
    _require_well_ended(status, bool(seen.recording), output)
    seen.require_complete()
    if seen.left_out:
        print(f"kernelwright: {seen.lack()}", file=sys.stderr)
    if options.timings is not None and (untimed := seen.require_timed(options.timings)):
        print(f"kernelwright: {untimed}", file=sys.stderr)
    return 0


def _run_all(runs: Sequence[Run]) -> tuple[Seen, int]:
    """Run the program for each arch, until it fails for one; what was seen, and its last exit status."""
    whole, status = Seen(), 0
    for run in runs:
        seen, status = _run(run)
        try:
            whole = whole.with_more(seen)
        except ValueError as error:
            message = f"the program is another one for {run.arch}: {error}"
            raise DefinitionError(message, WHERE, "let the parameters of its functions be the same for all") from error
        if status:
            break
    return whole, status


def _require_usable(words: Sequence[str], is_module: bool, archs: Sequence[str]) -> None:
    """Raise a SettingsError for a program that cannot be run, or an arch that cannot be recorded for."""
    if not words:
        raise SettingsError("there is no program to run", WHERE, "name one: kernelwright record program.py")
    if not is_module and not Path(words[0]).exists():
        raise SettingsError(f"there is no file {words[0]}", WHERE, "name a Python program, or a module: -m MODULE")
    for arch in archs:
        require_arch(arch)


def _require_well_ended(status: int, is_something: bool, output: Path) -> None:
    """Raise a KernelwrightError if the program failed."""
    if status:
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        left = f"{output} has only what was seen before" if is_something else "nothing was recorded"
        raise KernelwrightError(f"the program {ended}, so {left}", WHERE, "mend the program, and record it again")


def _run(run: Run) -> tuple[Seen, int]:
    """Run the program in a process of its own; what was seen, and its exit status."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
        run = replace(run, folder=folder)
        process = subprocess.Popen([sys.executable, "-c", START, str(PACKAGE.parent), json_text(run)])
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # what it has seen is written then
        try:
            status = process.wait()
        except KeyboardInterrupt:  # the process got it, too
            status = process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
        if run.refusal.exists():
            refusal = from_json(Refusal, decoded(read_record(run.refusal)))
            raise KernelwrightError(refusal.message, WHERE, refusal.remedy)
        return seen_in(run.notes) if run.notes.exists() else Seen(), status


def in_child() -> None:
    """Run the program in this process, as Python would, and write what is seen."""
    told = from_json(Run, decoded(sys.argv[1]))
    status = 0
    sys.argv = list(told.words)
    sys.path[0] = str(Path.cwd() if told.is_module else Path(told.words[0]).resolve().parent)
    try:
        with noting(told.arch, told.notes, told.first_config, told.timings):
            status = _status_of(told)
    except KernelwrightError as error:
        told.refusal.write_text(json_text(Refusal(error.message, error.remedy)), encoding="utf-8")
    sys.exit(status)


def _status_of(told: Run) -> int:
    """Run the program; its exit status. An error of it is shown as Python does."""
    try:
        _execute(told)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # all that Python would show
        _forget_ours(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _execute(told: Run) -> None:
    """Execute the program as ``__main__``."""
    if told.is_module:
        runpy.run_module(told.words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(told.words[0], run_name="__main__")


def _forget_ours(error: BaseException | None) -> None:
    """Take the frames of this package and of ``runpy`` out of the traceback of an error, and of those before it."""
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        error.__traceback__ = _without_ours(error.__traceback__)
        error = error.__cause__ or error.__context__


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    if frames is None:
        return None
    frames.tb_next = _without_ours(frames.tb_next)
    file = frames.tb_frame.f_code.co_filename
    is_ours = file == runpy.__file__ or file.startswith("<frozen runpy>") or Path(file).is_relative_to(PACKAGE)
    return frames.tb_next if is_ours else frames


COMMAND = Command(
    "record",
    "run a program, and record which code its calls of Triton need",
    run,
    (
        argument("program", "a Python program, and its arguments", nargs=argparse.REMAINDER, metavar="PROGRAM"),
        argument(
            "-m",
            "a module that is run in place of a program, and its arguments",
            nargs=argparse.PARSER,  # the next word, and all behind it
            metavar="MODULE",
            dest="module",
        ),
        argument("--output", "the file to write, or to add to (default: calls.json)", metavar="FILE", default=OUTPUT),
        argument(
            "--arch",
            "the arch to record for, such as sm_90a; may be given again, and no GPU is used (default: the GPU's)",
            action="append",
            metavar="ARCH",
        ),
        argument(
            "--timings",
            "the folder of Triton's caches on a GPU: times that its tuner kept there choose configs",
            metavar="FOLDER",
        ),
        argument("--first-config", "of tuned functions, record only the first config", action="store_true"),
        argument("--fresh", "replace the file instead of adding to it", action="store_true"),
    ),
    {1: "also if the program failed; what was seen until then is recorded"},
)
