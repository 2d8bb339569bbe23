"""Runs all that needs a GPU within a budget of seconds, and writes one JSON file; see ``run_all.sh``.

The parts that say most come first. Each has a time limit and a process group of its own, and one that fails stops no
other. What is known so far is written after every group of parts, so that an early end loses little. With ``--dry-run``
the CPU plays the device, which tries the same code where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

BUDGET_S = 570.0
LEAST_S = 5.0
"""Seconds below which no part is started any more."""

BACKENDS = ("tvm_ffi", "cython", "cuda_core", "torch", "jax")
GROUPS = ("tests", "experiments", "languages", "benchmarks", "sanitizer")
"""What ``--only`` can name. Wheels are always installed, because everything else needs them."""

STANDIN = ROOT / "site_scons/kernelwright/testing/cuda.c"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

DISTRIBUTIONS: tuple[str, ...] = ("torch", "triton", "jax", "jaxlib", "jax-cuda13-plugin", "cupy-cuda13x", "numpy")
DISTRIBUTIONS += ("apache-tvm-ffi", "jax-tvm-ffi", "cuda-core", "cuda-bindings", "pytest")
"""Whose versions the results name."""


@dataclass(frozen=True)
class Outcome:
    """How a part went.

    Arguments:
        name: the part.
        status: ``passed``, ``failed``, ``timed out`` or ``not run``.
        seconds: what it took.
        counts: how many of what.
        message: what went wrong, or what one has to know.
    """

    name: str
    status: str
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    message: str = ""


Reader = Callable[[int, str], tuple[bool, dict[str, int], str]]
"""Makes of a status and an output: whether all is well, counts, and a message."""


@dataclass(frozen=True)
class Part:
    """Something to run.

    Arguments:
        name: of the part.
        command: the words of it; none: it cannot be run, and ``problem`` says why.
        limit_s: seconds after which it is killed, with what it has started.
        read: looks at how it ended.
        environment: further variables.
        problem: why there is no command.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    read: Reader
    environment: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass
class Running:
    """A part that was started, with the file that its output goes to."""

    part: Part
    process: subprocess.Popen[bytes]
    output: Path
    start: float


class Session:
    """One run of everything.

    Arguments:
        options: the command line.
        work: a folder for what nobody needs afterwards.
    """

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        self._work = work
        self._start = time.monotonic()
        self._outcomes: list[Outcome] = []
        self.site, self.tools = work / "site", work / "tools"
        options.out.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "gpu.json", "log.txt"):
            (options.out / name).unlink(missing_ok=True)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return float(self._options.budget) - (time.monotonic() - self._start)

    def environment(self) -> dict[str, str]:
        """The variables of all parts."""
        bundle = self._options.bundle
        # Under pytest, this script's own runs of pytest would take themselves for workers of that one.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWRIGHT_", "PYTEST_"))}
        paths = [str(self.site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        kept |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        kept |= {"KERNELWRIGHT_TEST_GPU": "1", "KERNELWRIGHT_TEST_DEVICE": self.device}
        kept |= {
            "KERNELWRIGHT_TEST_PACKAGES": str(bundle / "packages"),
            "KERNELWRIGHT_TEST_CASES": str(bundle / "cases"),
        }
        kept |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONDONTWRITEBYTECODE": "1"}
        return kept | ({"JAX_PLATFORMS": "cpu"} if self._options.dry_run else {})

    @property
    def device(self) -> str:
        """What plays the device."""
        return "cpu" if self._options.dry_run else "cuda"

    def backends(self) -> list[str]:
        """The backends to test: all, or in a dry run those that the package has and the CPU can run."""
        if not self._options.dry_run:
            return list(BACKENDS)
        manifest = json.loads((self._options.bundle / "packages" / "kw_kernels" / "manifest.json").read_text())
        return [name for name in BACKENDS if name in manifest["backends"] and name != "cuda_core"]

    def run(self, parts: Sequence[Part]) -> None:
        """Run some parts at the same time, and write what is known then."""
        started: list[Running] = []
        for part in parts:
            if not part.command:
                self._outcomes.append(Outcome(part.name, "not run", message=part.problem))
            elif self.left_s < LEAST_S:
                self._outcomes.append(Outcome(part.name, "not run", message="no time was left of the budget"))
            else:
                started.append(self._started(part))
        for running in started:
            self._outcomes.append(self._finished(running))
        self.write()

    def _started(self, part: Part) -> Running:
        output = self._work / f"{len(list(self._work.iterdir()))}.log"
        with output.open("wb") as file:
            process = subprocess.Popen(
                list(part.command),
                cwd=ROOT,
                env=self.environment() | dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(part, process, output, time.monotonic())

    def _finished(self, running: Running) -> Outcome:
        """Wait for a part, no longer than it may take, and end what it has left running."""
        part, limit = running.part, min(running.part.limit_s, self._options.part_limit)
        limit = min(running.start + limit - time.monotonic(), self.left_s)
        timed_out = False
        try:
            running.process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        status = running.process.wait()
        seconds = time.monotonic() - running.start
        text = running.output.read_text(errors="replace")
        self._log(part, text)
        try:
            is_well, counts, message = part.read(status, text)
        except Exception as error:  # a result that cannot be read is a failure of that part, and of no other
            is_well, counts, message = False, {}, f"its result cannot be read: {type(error).__name__}: {error}"
        word = "timed out" if timed_out else "passed" if is_well else "failed"
        if timed_out:
            message = f"killed after {seconds:.0f} s; {message}"
        return Outcome(part.name, word, round(seconds, 1), counts, message)

    def _log(self, part: Part, text: str) -> None:
        with (self._options.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"==== {part.name}: {' '.join(part.command)}\n{text[-60_000:]}\n")

    def write(self) -> None:
        """Write the results."""
        out = self._options.out
        document = {
            "schema": 1,
            "device": self.device,
            "machine": machine(self.site),
            "budget_s": self._options.budget,
            "seconds": round(time.monotonic() - self._start, 1),
            "passed": self.passed,
            "parts": [asdict(outcome) for outcome in self._outcomes],
            "experiments": read_json(self._work / "experiments.json"),
            "experiments_with_standin": read_json(self._work / "experiments_with_standin.json"),
            "languages": read_json(self._work / "languages.json"),
        }
        partial = out / "result.new"
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        partial.replace(out / "result.json")

    @property
    def passed(self) -> bool:
        """Whether everything that was started so far is well."""
        return all(outcome.status == "passed" for outcome in self._outcomes)

    def table(self) -> str:
        """A line for each part."""
        lines = []
        for one in self._outcomes:
            counts = ", ".join(f"{count} {name}" for name, count in one.counts.items())
            lines.append(
                f"{one.name:22} {one.status:10} {one.seconds:6.1f} s  {counts}  {one.message.splitlines()[:1]}"
            )
        return "\n".join(lines)

    # ---- the parts

    def groups(self) -> Iterator[list[Part]]:
        """The parts in order; those of one group run at the same time."""
        yield self._wheels()
        for name in GROUPS:
            if name in self._options.only:
                yield from getattr(self, f"_{name}_groups")()

    def _tests_groups(self) -> Iterator[list[Part]]:
        # Imports take most of a dry run.
        backends = self.backends()
        yield [self._tests(name) for name in ([",".join(backends)] if self._options.dry_run else backends)]

    def _experiments_groups(self) -> Iterator[list[Part]]:
        yield [self._experiments()]
        if self._options.dry_run:
            yield [self._standin()]

    def _languages_groups(self) -> Iterator[list[Part]]:
        yield [self._languages()]

    def _benchmarks_groups(self) -> Iterator[list[Part]]:
        yield [self._benchmarks()]

    def _sanitizer_groups(self) -> Iterator[list[Part]]:
        yield [self._sanitizer(tool) for tool in (("none",) if self._options.dry_run else TOOLS)]

    def _wheels(self) -> list[Part]:
        """The installation of wheels: tools in a folder of their own, since NVIDIA's packages share one name."""
        wheels = sorted((self._options.bundle / "wheels").glob("*.whl"))
        tools = [wheel for wheel in wheels if wheel.name.startswith("nvidia_")]
        modules = [wheel for wheel in wheels if wheel not in tools]
        parts = [self._installation("wheels", modules, self.site)]
        return [*parts, self._installation("tools", tools, self.tools)] if tools else parts

    def _installation(self, name: str, wheels: Sequence[Path], target: Path) -> Part:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        command += ["--disable-pip-version-check", "--target", str(target), *map(str, wheels)]
        if not wheels:
            command = (
                [sys.executable, "-c", "print('no wheels; a dry run needs none')"] if self._options.dry_run else []
            )
        problem = f"no wheels in {self._options.bundle.name}: run tests/gpu/pack.py"
        return Part(name, command, 90, lambda status, text: read_pip(len(wheels), status, text), problem=problem)

    def _tests(self, backend: str) -> Part:
        report = self._work / f"tests_{backend}.jsonl"
        # In a folder of its own: at its end pytest removes those of earlier runs from the usual one, which may take
        # minutes.
        folder = f"--basetemp={self._work / f'tmp_{backend}'}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", folder, "tests/gpu"]
        if importlib.util.find_spec("xdist") is not None:  # a worker that lost its device is replaced
            command += ["-n", "0" if self._options.dry_run else "1", "--max-worker-restart", "30"]
        more = {"KERNELWRIGHT_TEST_BACKENDS": backend, "KERNELWRIGHT_TEST_REPORT": str(report)}
        return Part(f"tests, {backend}", command, 170, lambda status, text: read_tests(report, status, text), more)

    def _experiments(self) -> Part:
        results = self._work / "experiments.json"
        command = [sys.executable, str(HERE / "experiments.py"), "all", str(results)]
        return Part("experiments", command, 200, lambda status, text: read_experiments(results, status, text))

    def _standin(self) -> Part:
        """Experiments of CUDA with the driver that stands in."""
        results = self._work / "experiments_with_standin.json"
        command, more = self._with_standin([sys.executable, str(HERE / "experiments.py"), "all", str(results)])
        read = functools.partial(read_experiments, results)
        return Part("experiments, stand-in", command, 120, read, more)

    def _with_standin(self, program: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The command and the variables of a program with the driver that stands in, whose source is compiled here."""
        folder = self._work / f"standin{len(list(self._work.iterdir()))}"
        folder.mkdir()
        driver = folder / "libcuda.so.1"
        script = f"{shlex.join(['gcc', '-shared', '-fPIC', str(STANDIN), '-o', str(driver), '-ldl'])} && exec "
        more = {"KERNELWRIGHT_TEST_DEVICE": "standin", "KERNELWRIGHT_CUDA_DRIVER": str(driver)}
        more |= {"LD_LIBRARY_PATH": str(folder), "STANDIN_CAPABILITY": "90", "STANDIN_SHARED": "232448"}
        return ["sh", "-c", script + shlex.join(program)], more

    def _languages(self) -> Part:
        """Packages in other languages, and built in other ways; in a dry run with the driver that stands in."""
        folder, results = self._options.bundle / "languages", self._work / "languages.json"
        program, more = [sys.executable, str(HERE / "languages.py"), "all", str(results)], {}
        read = functools.partial(read_languages, results, folder / "left_out.json")
        problem = "" if folder.is_dir() else f"no languages in {self._options.bundle.name}: run tests/gpu/pack.py"
        if problem:
            program = []
        elif self._options.dry_run:
            program, more = self._with_standin(program)
        return Part("languages", program, 200, read, more, problem)

    def _benchmarks(self) -> Part:
        results = self._options.out / "gpu.json"
        command = [sys.executable, "-m", "benchmarks", "--only", "gpu", "--results", str(self._options.out)]
        command += ["--work", str(self._work / "benchmarks"), *(["--small"] if self._options.dry_run else [])]
        return Part("benchmarks", command, 250, lambda status, text: read_benchmark(results, status, text))

    def _sanitizer(self, tool: str) -> Part:
        program = [sys.executable, str(HERE / "sanitize.py")]
        found = None if tool == "none" else self.sanitizer()
        options = ["--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
        if tool == "memcheck":  # what frameworks try and expect to fail is no finding
            options += ["--report-api-errors", "no"]
        command = program if tool == "none" else [found, *options, *program] if found else []
        problem = "there is no compute-sanitizer here, and none among the wheels"
        return Part(f"sanitizer, {tool}", command, 200, read_sanitizer, problem=problem)

    def sanitizer(self) -> str | None:
        """compute-sanitizer: that of the machine, or that which was carried here."""
        carried = [*self.tools.glob("nvidia/*/bin/compute-sanitizer")]
        known = [shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer", *map(str, carried)]
        for path in filter(None, known):
            if Path(path).is_file():
                with contextlib.suppress(OSError):
                    Path(path).chmod(0o755)
                return path
        return None


# ---- reading what parts leave behind


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None."""
    return json.loads(path.read_text()) if path.exists() else None


def last_line(text: str) -> str:
    """The last line of an output that has a word in it."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def tail(text: str) -> str:
    """The end of an output."""
    return text.strip()[-1500:]


def read_pip(count: int, status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """Whether wheels were installed."""
    return status == 0, {"wheels": count}, last_line(text) if status else ""


def read_tests(report: Path, status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """What the tests of ``conftest.py`` have written: one line each."""
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    counts = {word: sum(line["outcome"] == word for line in lines) for word in ("passed", "failed", "skipped")}
    wrong = [f"{line['test']}: {line['message']}" for line in lines if line["outcome"] != "passed"]
    crashed = re.findall(r"^.*(?:does not answer any more|worker .* crashed).*$", text, re.M)
    is_well = status == 0 and not wrong and counts["passed"] > 0
    return is_well, counts, "\n".join([*wrong[:40], *crashed[:10]]) or ("" if is_well else tail(text))


def read_experiments(results: Path, status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """How many experiments went as expected."""
    found = read_json(results) or {}
    wrong = [f"{name}: {one['got']}" for name, one in found.items() if not one["passed"]]
    counts = {"passed": len(found) - len(wrong), "failed": len(wrong)}
    is_well = status == 0 and not wrong and bool(found)
    return is_well, counts, "\n".join(wrong) or ("" if is_well else tail(text))


def read_languages(results: Path, left_out: Path, status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """The same of the packages in other languages: what was left out is said as well, and what launches take."""
    is_well, counts, message = read_experiments(results, status, text)
    missing = read_json(left_out) or {}
    lines = [f"left out: {package}: {problem}" for package, problem in missing.items()]
    times = [f"{name}: {one['got']}" for name, one in (read_json(results) or {}).items() if "times" in name]
    return is_well, counts | {"left out": len(missing)}, "\n".join(filter(None, [message, *lines, *times]))


def read_benchmark(results: Path, status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """Whether everything was measured, and its results were right."""
    found = read_json(results)
    if found is None:
        return False, {}, tail(text)
    counts = {"rows": len(found["rows"]), "problems": len(found["skipped"])}
    is_well = status == 0 and bool(found["rows"]) and not found["skipped"]
    return is_well, counts, "\n".join(found["skipped"]) or ("" if is_well else tail(text))


def read_sanitizer(status: int, text: str) -> tuple[bool, dict[str, int], str]:
    """The number of errors that a tool of compute-sanitizer saw; without a tool, whether the program ran."""
    called = re.search(r'\{"variants": (\d+)\}', text)
    counts = {"variants": int(called[1])} if called else {}
    summary = re.search(r"SUMMARY: (\d+) ", text)
    if summary:
        counts["errors"] = int(summary[1])
    elif "=========" in text:
        return False, counts, tail(text)
    is_well = status == 0 and called is not None and not counts.get("errors")
    lines = [line for line in text.splitlines() if line.startswith("=========")]
    return is_well, counts, "" if is_well else "\n".join(lines[:60]) or tail(text)


def machine(site: Path) -> dict[str, Any]:
    """The GPU, its driver, and versions; no names of the machine."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        gpus = [line.strip() for line in done.stdout.splitlines()]
    except (OSError, subprocess.TimeoutExpired):
        gpus = []
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions(path=[str(site), *sys.path]):
        name = str(one.metadata["Name"]).lower().replace("_", "-")
        if name in DISTRIBUTIONS:
            found.setdefault(name, one.version)
    cores = len(os.sched_getaffinity(0))
    return {"gpus": gpus, "cores": cores, "python": sys.version.split()[0], "versions": dict(sorted(found.items()))}


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run_all.sh", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=ROOT / "build" / "gpu_bundle", help="what pack.py has made")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_results", help="where the results go")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for everything")
    parser.add_argument("--part-limit", type=float, default=BUDGET_S, help="seconds for each part at most")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"parts, with commas; of {', '.join(GROUPS)}")
    parser.add_argument("--dry-run", action="store_true", help="the CPU plays the GPU")
    options = parser.parse_args(words)
    options.bundle, options.out = options.bundle.absolute(), options.out.absolute()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(GROUPS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(GROUPS)}")
    if not (options.bundle / "packages" / "kw_kernels").is_dir():
        parser.error(f"no package in {options.bundle}: run tests/gpu/pack.py where the compilers are")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run everything; 0 if it ran and passed."""
    options = parsed(words)
    with tempfile.TemporaryDirectory(prefix="kernelwright-gpu-") as folder:
        session = Session(options, Path(folder))
        for parts in session.groups():
            session.run(parts)
        print(session.table())
        print(f"{'PASSED' if session.passed else 'NOT PASSED'}: {options.out / 'result.json'}")
        return 0 if session.passed else 1


if __name__ == "__main__":
    sys.exit(main())
