"""``kernelwright bench``: measures kernels beside other ways to do the same, and compares with an earlier run.

It builds and measures as the tuner does, in rounds: in each of them everything that is compared has its turn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ..core.converter import to_json
from ..core.errors import KernelwrightError, SettingsError, Where, shown
from ..core.files import SCRATCH, pretty_json, scratch_folder, write_atomically
from ..core.locks import remove_unlocked
from ..define.space import Choice
from ..define.tuning import TableDevice
from ..ondemand.files import origin_in, record_of
from ..ondemand.machine import cuda_devices
from ..ondemand.options import Options
from ..ondemand.tune_command import environment_of
from ..processes.protocol import REFERENCE
from ..state.bench_result import SCHEMA, Limits, Results, Row, read_results, work_of
from ..state.tuning_result import DEFAULT
from .bench import Bench
from .candidates import Built, Candidate
from .command import INTERRUPTED, aligned, default_files, kernels_in, locked, percent, place_of
from .device import device_of
from .policy import Policy
from .progress import Progress
from .recheck import words
from .sizes import combinations, read_sizes, size_text
from .table import table_of
from .tuner import Request, Tuner, number_of

BENCH = "bench"
"""The name of the folder with what runs need for a while."""

TREE = "tree"
"""The name of a working tree in such a folder."""

YOUNG_S = 60
"""Seconds for which a folder without a lock may be one that another run has only just made."""

WHERE = Where(stage=BENCH)

PEAKS = Path(__file__).with_name("peaks.py.in")
"""A definition file with kernels that only move, or only compute. Its name keeps tools from taking it for our code."""

PROFILERS = {
    "perf": "get it: apt-get install linux-perf, or linux-tools-generic on Ubuntu",
    "ncu": "get it: conda install -c nvidia nsight-compute; or apt-get install cuda-nsight-compute-13-0 from NVIDIA's "
    "repository",
}
"""What profiles -> the lines that get it."""

RATES: tuple[Callable[[Row], float], ...] = (lambda row: row.gb_s, lambda row: row.gflop_s)
COLUMNS = ("kernel", "config", "sizes", "what", "us", "spread", "ratio", "GB/s", "GFLOP/s")


@dataclass(frozen=True)
class Contender:
    """One of those that are compared.

    Arguments:
        what: the name of its rows.
        bench: measures it.
        built: the variant, or in the case of ``beside`` the one whose inputs it gets.
        beside: see ``MeasureRequest``.
    """

    what: str
    bench: Bench
    built: Built
    beside: str = ""


def bench(options: argparse.Namespace) -> int:
    """Do what the command line asks for; returns the exit status.

    Raises:
        KernelwrightError: nothing can be built or measured.
    """
    with _named_so():
        return _profiled(options) if options.profile else _benched(options)


@contextlib.contextmanager
def _named_so() -> Iterator[None]:
    """Have errors of what this command shares with the tuner name this one."""
    try:
        yield
    except KernelwrightError as error:
        if error.where.stage == "tune":
            error.where = replace(error.where, stage=WHERE.stage)
        raise


def _benched(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ends a run also removes its folders
    _sweep()
    try:
        draw = _drawing() if options.plot else None
        run = _Run(options)
        results = run.results()
        if options.json:
            results = replace(results, limits=run.limits())
        print("\n".join(aligned([COLUMNS, *map(partial(_cells, results.rows), results.rows)])))
        if options.json:
            write_atomically(Path(options.json), pretty_json(to_json(results)))
        if draw:
            draw(results, Path(options.plot))
        slower = run.check(results) if options.check else 0
        return run.status | slower  # what fails only in the second run counts, too
    except KeyboardInterrupt:
        print("kernelwright: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED


class _Run:
    """One run of the command. Its ``status`` is 1 from the first kernel on that cannot be measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._progress, self._policy = Progress(), Policy.of_environment()
        self._sizes = read_sizes(options.sizes or ())
        self._most = percent(options.max, "--max")
        self._before = read_results(Path(options.check)) if options.check else None
        self._device = device_of(options.device or ("cuda:0" if cuda_devices() else "cpu"))
        self._files = [Path(name).absolute() for name in options.file or ()] or default_files()
        self._kernels, _ = kernels_in(self._files, options.kernels)
        self._measured: dict[str, str] = {}
        self.status = 0
        self._table_device: TableDevice | None = None

    def results(self, works: set[tuple[str, ...]] | None = None) -> Results:
        """Measure; ``works`` are those that are measured, None: all."""
        rows: list[Row] = []
        for name in self._options.kernels or self._kernels:
            try:
                with _named_so():
                    for row in self._kernel(name, works):
                        rows.append(row)  # those before an error count
            except KernelwrightError as error:
                if len(self._options.kernels) == 1:
                    raise
                print(f"kernelwright: {error}", file=sys.stderr)
                self.status = 1
        self._progress.end()
        if self._table_device is None:
            raise SettingsError(f"no kernel is for {self._device.spec}", WHERE, "name kernels, or --device")
        return Results(SCHEMA, self._table_device, self._measured, tuple(rows))

    def limits(self) -> Limits | None:
        """What the device can do at most, for code of the arch that was measured; None: that could not be measured."""
        assert self._table_device is not None
        with _scratch() as folder:
            (folder / "pyproject.toml").write_text(f'[tool.kernelwright]\narchs = ["{self._table_device.arch}"]\n')
            file = Path(shutil.copy(PEAKS, folder / "peaks.py"))
            others: dict[str, Any] = dict.fromkeys(("sizes", "check", "beside", "against"))
            given = vars(self._options) | others | {"kernels": [], "file": [file], "device": self._device.spec}
            run = _Run(argparse.Namespace(**given))
            rows = [row for row in run.results().rows if row.what != REFERENCE]
        self.status |= run.status
        peaks = [max((rate(row) * row.us / min(row.rounds) for row in rows), default=0.0) for rate in RATES]
        return Limits(*peaks) if all(peaks) else None

    def _kernel(self, name: str, works: set[tuple[str, ...]] | None) -> Iterator[Row]:
        """What is measured of one kernel; nothing, if it is for another target and was not named."""
        request = Request(*(self._kernels[name], name, self._device, self._sizes), policy=self._policy, any_kernel=True)
        record = origin_in(request.path, name, Options()).record
        if not self._options.kernels and self._device.target not in (record.options.targets or ()):
            return
        tuner = Tuner(request, self._progress)
        self._measured, self._table_device = tuner.measured, tuner.device
        with locked(place_of(self._device.spec), f"measuring {name}", True, self._progress.note):
            for choice in tuner.choices:
                yield from self._choice(tuner, choice, works)

    def _choice(self, tuner: Tuner, choice: Choice, works: set[tuple[str, ...]] | None) -> Iterator[Row]:
        """What is measured of one config."""
        with contextlib.ExitStack() as stack:
            contenders = list(self._contenders(tuner, choice, stack))
            signature = contenders[0].built.request.signature
            given = self._sizes or {n: v for n, v in choice.sizes.items() if n in signature.symbols}
            for at in combinations(given, list(signature.symbols), tuner.where):
                if works is None or work_of(tuner.request.kernel, choice.config, at) in works:
                    self._progress.begin(f"{tuner.request.kernel}: {size_text(at)}")
                    yield from self._work(choice, at, contenders)

    def _contenders(self, tuner: Tuner, choice: Choice, stack: contextlib.ExitStack) -> Iterator[Contender]:
        """The variants, the first one being what runs where no table says more; and what they are compared with."""
        own = self._bench(tuner, stack)
        candidates = tuner.candidates_of(choice)
        if not self._options.all:
            candidates = tuple(one for one in candidates if one.number in _used(tuner, choice, candidates))
        self._progress.begin(f"{tuner.request.kernel}: building {len(candidates)} variants")
        built = [_required(one) for one in tuner.workshop().build(candidates)]
        for one in built:
            yield Contender(words(one.candidate.tune) if one.candidate.tune else "kernel", own, one)
        if tuner.origin.record.has_reference:
            yield Contender(REFERENCE, own, built[0], REFERENCE)
        for function in self._options.beside or ():
            yield Contender(function, own, built[0], function)
        if against := self._options.against:
            path = Path(against)
            if path.suffix == ".whl" or (path / "manifest.json").is_file():
                yield Contender(path.name, own, built[0], str(_package(path, stack)))
            else:
                other, before = self._of_revision(tuner, candidates[0], against, stack)
                _require_same_work(built[0], before, against, tuner.where)
                yield Contender(against, self._bench(other, stack), before)

    def _bench(self, tuner: Tuner, stack: contextlib.ExitStack) -> Bench:
        made = Bench(tuner.root, self._policy, tuner.origin.settings.environment)
        stack.callback(made.renew)
        return made

    def _of_revision(
        self, tuner: Tuner, candidate: Candidate, revision: str, stack: contextlib.ExitStack
    ) -> tuple[Tuner, Built]:
        """The same variant of the project as it was at a revision of git."""
        top = stack.enter_context(_worktree(tuner.root, revision))
        path = top / tuner.request.path.relative_to(tuner.root)
        kernels = record_of(path, Options())[0].kernels if path.is_file() else ()
        if tuner.request.kernel not in {kernel.name for kernel in kernels}:
            message = f"{revision} has no kernel {tuner.request.kernel} in {path.relative_to(top)}"
            raise SettingsError(message, tuner.where, "name a revision that has it")
        request = Request(path, tuner.request.kernel, self._device, policy=self._policy, any_kernel=True)
        other = Tuner(request, self._progress)
        same = (one for choice in other.choices for one in other.candidates_of(choice) if one.slug == candidate.slug)
        found = next(same, None)
        if found is None:
            message = f"{revision} has no variant {candidate.slug} of {tuner.request.kernel}"
            raise SettingsError(message, tuner.where, "name a revision that has it")
        return other, _required(other.workshop().build([found])[0])

    def _work(self, choice: Choice, sizes: Mapping[str, int], contenders: Sequence[Contender]) -> Iterator[Row]:
        able = [one for one in contenders if one.beside or one.built.allows(sizes)]
        turns = [[one.bench.batches(one.built, sizes, one.beside) for one in able] for _ in range(self._policy.rounds)]
        for contender, results in zip(able, zip(*turns, strict=True), strict=True):
            quiet = [result for result in results if result.disturbed < 1] or results
            rounds = tuple(median(result.us) for result in quiet)
            rates = (amount / median(rounds) / 1e3 for amount in (results[0].moved, results[0].flops))
            kernel = contender.built.request.kernel
            yield Row(kernel, choice.config, sizes, contender.what, rounds, *rates)

    def check(self, results: Results) -> int:
        """Compare with an earlier run. What seems to be slower is measured once more, in other processes."""
        assert self._before is not None
        if self._before.device != results.device:
            message = f"{self._options.check} is of {self._before.device.name} ({self._before.device.arch})"
            raise SettingsError(f"{message}, and this is {results.device.name}", WHERE, "compare runs of one device")
        before = {row.key: row for row in self._before.rows}
        both = [row for row in results.rows if row.key in before]
        if not both:
            message = f"{self._options.check} has nothing that was measured now"
            raise SettingsError(message, WHERE, "name the kernels and the sizes that it has")

        def slower(rows: Sequence[Row]) -> list[Row]:
            return [row for row in rows if row.slower_than(before[row.key], self._most)]

        if suspects := slower(both):
            names = {row.key for row in suspects}
            again = self.results({row.work for row in suspects}).rows
            suspects = slower([row for row in again if row.key in names])
        for row in suspects:
            then = before[row.key]
            print(f"SLOWER: {', '.join(row.work)}, {row.what}: {_figure(row.us)} us, was {_figure(then.us)} us")
        if missing := len(before.keys() - {row.key for row in results.rows}):
            print(f"{missing} rows of {self._options.check} were not measured now")
        print(f"{len(both)} of {len(results.rows)} rows compared, {len(suspects)} slower by more than {self._most:.1%}")
        return 1 if suspects else 0


def _used(tuner: Tuner, choice: Choice, candidates: Sequence[Candidate]) -> set[int]:
    """The numbers of the candidates that may run: the default, the preferred one, and what the table chooses."""
    table = table_of(tuner) if tuner.origin.settings.tuning else None
    config = table.of(choice.config) if table else None
    points = [*(rule.tune for rule in config.rules)] if config else [choice.preferred.get(tuner.arch)]
    return {DEFAULT, *(number_of(candidates, point) for point in points)}


def _required(built: Built | KernelwrightError) -> Built:
    if isinstance(built, KernelwrightError):
        raise built
    return built


def _require_same_work(now: Built, before: Built, revision: str, where: Where) -> None:
    """Raise a SettingsError if a variant of a revision has other arguments, so that calls do another work."""
    here, there = ([(a.kind, a.dtype, a.shape) for a in one.request.signature.arguments] for one in (now, before))
    if here != there:
        texts = (
            ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for _, dtype, shape in one) for one in (there, here)
        )
        message = f"at {revision} its arguments are other ones: {' there, '.join(texts)} here"
        raise SettingsError(message, where, "name a revision in which they are the same, or leave --against out")


def _package(path: Path, stack: contextlib.ExitStack) -> Path:
    """The folder of a package: itself, or what is in a wheel."""
    if path.suffix != ".whl":
        return path.absolute()
    folder = stack.enter_context(_scratch())
    try:
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
        (manifest,) = folder.glob("*/manifest.json")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SettingsError(f"{path} is no wheel with one package of kernels: {error}", WHERE, "name one") from error
    return manifest.parent


@contextlib.contextmanager
def _worktree(root: Path, revision: str) -> Iterator[Path]:
    """The project's folder as it was at a revision."""
    with _scratch() as parent:
        folder = parent / TREE
        git = partial(subprocess.run, cwd=root, capture_output=True, text=True)
        try:
            added = git(["git", "worktree", "add", "--detach", str(folder), revision])
            prefix = git(["git", "rev-parse", "--show-prefix"]).stdout.strip()
            if added.returncode:
                message = f"{shown(revision)} is no package, no wheel, and no revision of git: {added.stderr.strip()}"
                raise SettingsError(message, WHERE, "name one: --against dist/acme-1.0.whl, or --against main")
            yield folder / prefix
        finally:
            _remove_tree(folder)


def _scratch() -> contextlib.AbstractContextManager[Path]:
    """A folder for the time of a run."""
    place = place_of(BENCH).parent / BENCH
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        message = f"{place} cannot be made: {error.strerror}"
        raise SettingsError(message, WHERE, "remove it, or set TMPDIR to a folder of your own") from error
    return scratch_folder(place)


def _sweep() -> None:
    """Remove the folders of runs that were killed."""

    def remove(folder: Path) -> None:
        _remove_tree(folder / TREE)
        shutil.rmtree(folder, ignore_errors=True)

    remove_unlocked((place_of(BENCH).parent / BENCH).glob(f"{SCRATCH}*"), os.O_DIRECTORY, remove, YOUNG_S)


def _remove_tree(folder: Path) -> None:
    """Remove a working tree, so that its repository does not go on listing it."""
    if folder.is_dir():
        command = ["git", "-C", str(folder), "worktree", "remove", "--force", str(folder)]
        subprocess.run(command, capture_output=True, check=False)


def _cells(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    first = next(one for one in rows if one.work == row.work)
    ratio = median(now / then for now, then in zip(row.rounds, first.rounds))  # noqa: B905 (a noisy round is missing)
    times = (_figure(row.us), f"{row.spread:.0%}", f"{ratio:.2f}", _figure(row.gb_s))
    return (*row.key, *times, _figure(row.gflop_s) if row.gflop_s else "-")


def _figure(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _profiled(options: argparse.Namespace) -> int:
    """Run this command again under a profiler; returns its exit status."""
    device = device_of(options.device or ("cuda:0" if cuda_devices() else "cpu"))
    tool = "perf" if device.target == "llvm" else "ncu"
    if shutil.which(tool) is None:
        remedy = PROFILERS[tool]
        raise SettingsError(f"--profile needs {tool}, which is not on the PATH", WHERE, remedy)
    output = Path("build", "profile", "-".join(options.kernels) or "all")
    output.parent.mkdir(parents=True, exist_ok=True)
    begin = {
        "perf": [tool, "record", "-g", "-o", f"{output}.data"],
        "ncu": [tool, "--target-processes", "all", "--import-source", "yes", "-f", "-o", str(output)],
    }[tool]
    command = [*begin, sys.executable, "-m", "kernelwright", *(word for word in sys.argv[1:] if word != "--profile")]
    print(f"kernelwright: {shlex.join(command)}", file=sys.stderr)
    status = subprocess.call(command, env=environment_of())
    shown_by = f"perf report -i {output}.data" if tool == "perf" else f"ncu-ui {output}.ncu-rep"
    print(f"kernelwright: look at it with: {shown_by}", file=sys.stderr)
    return status


def _drawing() -> Callable[[Results, Path], None]:
    """What draws results; asked before anything is measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("--plot needs Matplotlib", WHERE, "pip install matplotlib") from error
    return partial(_plot, Figure)


def _plot(Figure: Any, results: Results, path: Path) -> None:
    """Draw the times of a call as bars, a group for each work."""
    works = list(dict.fromkeys(row.work for row in results.rows))
    figure = Figure(figsize=(8, 1 + 0.25 * (len(results.rows) + len(works))), layout="constrained")
    axes = figure.subplots()
    labels: list[str] = []
    for place, work in enumerate(works):
        for row in (one for one in results.rows if one.work == work):
            axes.barh(len(labels), row.us, color=f"C{place % 10}")
            labels.append(", ".join(word for word in row.key if word != "-"))
    axes.set(xscale="log", xlabel="microseconds of a call", title=f"{results.device.name} ({results.device.arch})")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    figure.savefig(path)
