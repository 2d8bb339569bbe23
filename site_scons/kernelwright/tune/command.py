"""The command ``kernelwright tune``."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import frontends
from ..core.errors import KernelwrightError, SettingsError, Where, shown
from ..core.files import open_lock
from ..define.space import Choice
from ..define.tables import tables_in
from ..define.tuning import TableFile, TunedConfig, kernel_of, read_table, same
from ..frontends.base import OwnTuner
from ..ondemand.files import origin_in, record_of
from ..ondemand.machine import cuda_devices
from ..ondemand.options import Options
from ..ondemand.origin import Origin, job_of
from ..ondemand.project import project_of
from .candidates import digest_today
from .device import Device, device_of
from .policy import Policy
from .progress import Progress
from .recheck import regrets, text_of, words
from .sizes import read_seconds, read_sizes, size_text
from .table import folder_of, table_of, times_of, write_files
from .tuner import Request, Tuned, Tuner

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of a shell."""

COUNTS = {
    "tuning": ("sizes", "budget", "again", "device", "no_wait"),
    "--check": ("check", "max_regret", "device", "no_wait"),
    "--list": ("strict",),
}
"""What is done -> the options that count for it, of those that do not always count."""


POLL_S = 0.2


def listed(root: Path, names: Sequence[str], origins: dict[str, Origin]) -> tuple[list[str], int]:
    """A line for each table, and one for each thing that is stale in it; and how many of the latter there are.

    Arguments:
        names: the tables.
        origins: the kernels of the project by name.
    """
    lines: list[str] = []
    stale = 0
    for name in names:
        try:
            table = read_table(root, name)
            problems = list(_stale(table, origins.get(table.kernel)))
            count, device = sum(len(config.rules) for config in table.configs), table.device
            lines.append(
                f"{table.kernel:24} {device.arch:12} {device.count:4} {device.name}: "
                f"{len(table.configs)} configs, {count} rules ({name})"
            )
        except KernelwrightError as error:
            lines.append(f"{kernel_of(name):24} {name}: is damaged")
            problems = [str(error)]
        stale += len(problems)
        lines += [f"  stale: {problem}" for problem in problems]
    return lines, stale


def _stale(table: TableFile, origin: Origin | None) -> Iterator[str]:
    """What in a table does not fit the definition any more."""
    if origin is None:
        yield f"{table.path}:1: there is no kernel {table.kernel}"
        return
    for config in table.configs:
        choice = next((each for each in origin.record.choices if same(each.config, config.config)), None)
        if choice is None:
            yield f"{table.path}:{config.line}: {dict(config.config)} is not declared any more"
            continue
        points = choice.points.get(table.device.target, ())
        for rule in config.rules:
            if not any(same(point, rule.tune) for point in points):
                yield f"{table.path}:{rule.line}: {dict(rule.tune)} is not in the space any more"
        yield from _stale_sources(table, config, choice, origin)


def _stale_sources(table: TableFile, config: TunedConfig, choice: Choice, origin: Origin) -> Iterator[str]:
    """The variants that were measured with another source than they have now."""
    target, arch = table.device.target, table.device.arch
    own = target == "llvm" or origin.record.options.per_arch
    archs = [arch] if own else list(origin.settings.archs_of("cuda")) or [arch]
    options = Options.read("tune", target=target, archs=archs, backend="tvm_ffi")
    points = choice.points.get(target, ())
    for source in config.sources:
        if not any(same(point, source.tune) for point in points):
            continue
        job = job_of(origin, choice.candidate(source.tune), options)
        if digest_today(job, target, origin) != source.digest:
            yield f"{table.path}:{config.line}: the source of {dict(source.tune)} has changed since it was measured"


def place_of(device: str) -> Path:
    """The file of a device's lock: the same one for all projects and checkouts of this user on this machine.

    It is in the folder for temporary files, which is the machine's own, where a home folder may be that of several.

    Arguments:
        device: ``cpu`` or ``cuda:0``.

    Raises:
        SettingsError: the folder is another user's, who could keep us waiting for ever; or it cannot be made.
    """
    folder, own = Path(tempfile.gettempdir(), f"kernelwright-{os.getuid()}"), "set TMPDIR to a folder of your own"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{folder} cannot be made: {error.strerror}", Where(stage="tune"), own) from error
    if folder.lstat().st_uid != os.getuid():
        raise SettingsError(f"{folder} is another user's", Where(stage="tune"), own)
    return folder / f"tune-{device.replace(':', '-')}.lock"


@contextlib.contextmanager
def locked(path: Path, what: str, waits: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a device. It ends with the process that holds it, however that ends.

    Arguments:
        path: its file.
        what: what is done meanwhile, for others to read.
        waits: whether to wait for another process.
        note: shows a line.

    Raises:
        SettingsError: another process has it, and is not waited for.
    """
    lock = open_lock(path)
    try:
        if not _taken(lock):
            message = f"another process measures on this device: {_holder(path)}"
            if not waits:
                raise SettingsError(message, Where(stage="tune"), "wait for it, or leave --no-wait out")
            note(f"{message}; waiting for it")
            while not _taken(lock):
                time.sleep(POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"process": os.getpid(), "what": what, "since": time.ctime()}).encode(), 0)
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']}, {holder['what']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "one that has just begun"


def tune(options: argparse.Namespace) -> int:
    """Do what the command line asks for; returns the exit status."""
    try:
        return _Command(options).run()
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kernelwright: {_unwritten(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("kernelwright: interrupted; what was measured is kept, and the next run goes on", file=sys.stderr)
        return INTERRUPTED


def _unwritten(error: OSError) -> SettingsError:
    """What a run says if the system does not let it read or write a file."""
    message = ": ".join(filter(None, (error.filename, error.strerror or str(error))))
    remedy = "let this user write there, or make room; what was measured up to now is kept, and the next run goes on"
    return SettingsError(message, _WHERE, remedy)


class _Command:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        _refuse_what_does_not_count(options)
        self._options = options
        self._progress = Progress()
        self._budget = None if options.budget is None else read_seconds(options.budget)
        self._sizes = read_sizes(options.sizes or ())
        self._most = percent("5%" if options.max_regret is None else options.max_regret, "--max-regret")
        self._checked = 0
        self._start = time.monotonic()
        self._files = [Path(name).absolute() for name in options.file or ()] or default_files()

    def run(self) -> int:
        """See :func:`tune`."""
        kernels = self._kernels()
        if self._options.list:
            return self._list(kernels)
        status = 0
        tasks = self._wanted(kernels)
        for number, (name, path, device) in enumerate(tasks):
            try:
                status |= self._one(name, path, device, len(tasks) - number)
            except KernelwrightError as error:
                # The other kernels of a long run are tuned all the same.
                print(f"kernelwright: {error}", file=sys.stderr)
                status = 1
        if self._options.check and not self._checked and not status:
            raise SettingsError("there is no table for this device to check", _WHERE, "measure one: kernelwright tune")
        return status

    def _kernels(self) -> dict[str, Path]:
        """The kernels of the files, by name, and their files."""
        files, tuned = kernels_in(self._files, self._options.kernels)
        named = {name: tuner for name, tuner in tuned.items() if name in self._options.kernels}
        self._require_space(named or (tuned if len(tuned) == len(files) else {}))
        return files

    def _require_space(self, tuned: Mapping[str, OwnTuner]) -> None:
        """Raise a SettingsError for kernels whose configs another tuner chooses."""
        if tuned and not self._options.list:
            tuner = next(iter(tuned.values()))
            raise SettingsError(f"{', '.join(sorted(tuned))}: {tuner.reason}", _WHERE, tuner.remedy)

    def _wanted(self, kernels: dict[str, Path]) -> list[tuple[str, Path, Device]]:
        """What is tuned: the kernels that were named, or else all that have a space, and on which device."""
        specs = self._options.device or (["cuda:0", "cpu"] if cuda_devices() else ["cpu"])
        devices = list(dict.fromkeys(device_of(spec) for spec in specs))
        named = self._options.kernels or kernels
        tasks = [
            (n, path, device) for n, path in kernels.items() if n in named for device in self._for(path, n, devices)
        ]
        if not tasks:
            message = f"no kernel for {' or '.join(device.spec for device in devices)} has a space"
            remedy = "write @kernel(..., tune=grid(...)) in a definition file; kernels for CUDA need a GPU"
            raise SettingsError(message, _WHERE, remedy)
        return tasks

    def _for(self, path: Path, name: str, devices: Sequence[Device]) -> Sequence[Device]:
        """The devices that a kernel is tuned on: those that were named, or else the first one that suits it."""
        origin = origin_in(path, name, Options())
        suitable = [device for device in devices if _is_tunable(origin, device.target)]
        if suitable:
            return suitable if self._options.device else suitable[:1]
        return devices[:1] if self._options.kernels else []  # an error will say what a kernel that was named lacks

    def _one(self, name: str, path: Path, device: Device, left: int) -> int:
        """Tune one kernel on one device, or check its table."""
        options, budget = self._options, None
        if self._budget is not None:
            budget = max(1.0, self._start + self._budget - time.monotonic()) / left
        policy = Policy.of_environment()
        request = Request(path, name, device, self._sizes, budget, anew=options.again, policy=policy)
        tuner = Tuner(request, self._progress)
        asked = time.monotonic()
        with locked(place_of(device.spec), f"tuning {name} of {tuner.root}", not options.no_wait, self._progress.note):
            self._start += time.monotonic() - asked  # waiting for another run takes nothing of the budget
            return self._check(tuner) if options.check else self._tune(tuner)

    def _tune(self, tuner: Tuner) -> int:
        try:
            tuned = tuner.run(folder_of(tuner), table_of(tuner))
        finally:
            self._progress.end()
        name = write_files(tuner, tuned)
        device = tuner.device
        print(f"{tuner.request.kernel} on {device.name} ({device.arch}, {device.count}): {name}")
        print("\n".join(result_lines(tuned)))
        for one in tuned:
            if one.failed:
                folder = tuner.workshop().folder(one.candidates[0]).parent.relative_to(tuner.root)
                print(f"  {len(one.failed)} of {len(one.candidates)} candidates are out, see {folder}")
        return 0

    def _check(self, tuner: Tuner) -> int:
        most = self._most
        kernel, table = tuner.request.kernel, table_of(tuner)
        if table is None:
            message = f"{kernel} has no table for {tuner.device.name}"
            if self._options.kernels:
                raise SettingsError(message, tuner.where, f"measure one: kernelwright tune {kernel}")
            self._progress.note(message)
            return 0
        self._checked += 1
        checks = regrets(tuner, table)
        for regret in checks:
            mark = "  BEYOND " if regret.regret > most else "  "
            print(f"{mark}{kernel} {text_of(regret)}")
        worst = max(regret.regret for regret in checks)
        print(f"{table.path}: the largest regret is {worst:.1%}, at most {most:.1%} is accepted")
        return 1 if worst > most else 0

    def _list(self, kernels: dict[str, Path]) -> int:
        origins: dict[str, Origin] = {name: origin_in(path, name, Options()) for name, path in kernels.items()}
        of_kernels = next(iter(origins.values()))
        root, folder = of_kernels.session.root, of_kernels.settings.tuning
        names, tables = self._options.kernels, tables_in(root, folder)
        lines, stale = listed(root, [name for kernel in names or tables for name in tables.get(kernel, ())], origins)
        print("\n".join(lines) or f"there are no tables in {folder or 'no folder: the setting tuning is empty'}")
        for name in names or origins:
            if origins[name].record.choices and name not in tables:
                print(f"{name:24} has a space, and no table")
        return 1 if stale and self._options.strict else 0


_WHERE = Where(stage="tune")


def kernels_in(files: Iterable[Path], named: Iterable[str]) -> tuple[dict[str, Path], dict[str, OwnTuner]]:
    """The kernels of definition files with their files; and those that another tuner chooses configs for, with it.

    Raises:
        KernelwrightError: a file has an error, or none has a kernel that is named.
    """
    file_of: dict[str, Path] = {}
    tuned: dict[str, OwnTuner] = {}
    for path in files:
        definition, _, _ = record_of(path, Options())
        file_of |= {kernel.name: path for kernel in definition.kernels}
        found = {kernel.name: frontends.of(kernel).own_tuner(kernel) for kernel in definition.kernels}
        tuned |= {name: tuner for name, tuner in found.items() if tuner}
    for name in named:
        if name not in file_of:
            known = ", ".join(file_of) or "none"
            raise SettingsError(f"there is no kernel {shown(name)}", _WHERE, f"the kernels are {known}; see --file")
    return file_of, tuned


def _refuse_what_does_not_count(options: argparse.Namespace) -> None:
    """An option that makes no difference is a mistake: the run would do something else than is meant."""
    doing = "--list" if options.list else "--check" if options.check else "tuning"
    for name in dict.fromkeys(name for names in COUNTS.values() for name in names):
        if getattr(options, name) not in (None, False) and name not in COUNTS[doing]:
            option, counts = f"--{name.replace('_', '-')}", [what for what, names in COUNTS.items() if name in names]
            where, remedy = (
                Where(stage="settings", location=option),
                f"leave it out; it counts for {' and '.join(counts)}",
            )
            raise SettingsError(f"{option} does not count for {doing}", where, remedy)


def default_files() -> list[Path]:
    """The definition files of the project that the working folder is in."""
    root = project_of(Path.cwd() / "any") or Path.cwd()
    files = sorted(path for path in (root / "kernels").glob("*.py") if not path.name.startswith("_"))
    if not files:
        raise SettingsError(f"there are no definition files in {root / 'kernels'}", _WHERE, "name them: --file FILE")
    return files


def _is_tunable(origin: Origin, target: str) -> bool:
    """Whether a kernel has a space for a target of the project."""
    has_points = any(choice.points.get(target) for choice in origin.record.choices)
    return has_points and target in origin.settings.targets


def percent(text: str, option: str) -> float:
    """The part of a whole that an option such as ``5%`` means. Raises a SettingsError for anything else."""
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):  # what is not a number is in no range
        raise SettingsError(f"{option} is {shown(text)}", _WHERE, "write 5% or 2.5%")
    return number / 100


def result_lines(tuned: Sequence[Tuned]) -> list[str]:
    """The table that a run shows at its end."""
    rows: list[tuple[str, ...]] = [("config", "sizes", "choice", "us", "default us", "ratio", "spread")]
    for one in tuned:
        config = words(one.config) if one.config else "its only config"
        for place, at in enumerate(one.sizes):
            number = one.answers[place]
            us, default_us, spread = times_of(one, place, number)
            choice = words(one.candidates[number].tune) + (" (default)" if not number else "")
            figures = (f"{us:g}", f"{default_us:g}", f"{us / default_us:.3f}", f"{spread:.3f}")
            rows.append((config, size_text(at), choice, *figures))
    return aligned(rows)


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table with columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
