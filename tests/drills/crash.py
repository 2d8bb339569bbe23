"""Crash drills: builds of the kernel library that are killed at random moments, each followed by a plain ``scons``.

    python tests/drills/crash.py [--moments 200] [--seed 1] [--jobs 2] [--kernels softmax,gemm]

A moment is a random time in a build, and a victim: scons itself (SIGKILL or SIGINT), a worker, or a compiler (both
SIGKILL). Every fortieth is in a build from nothing; before the others two random kernels and the build cache are
removed, so that one takes seconds instead of a minute. A moment that comes too late, after the end of the build, does
not count, and the next ones come earlier; at least one has to come after the end of a stage. So it does not matter how
fast the machine is. After each moment this must hold:

- no process of the build is left;
- a plain ``scons`` succeeds, and all outputs are byte-identical to those of a clean build;
- no stage that had finished was made again: its entry of the build cache is the same file as before, and an answer
  says the same;
- a further ``scons`` has nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from support.moments import HANGS_AFTER_S, processes_of  # noqa: E402 (it is below that folder)

PACKAGE = "kw_kernels"
WORKER = "kernelwright.worker.forkserver"
COMPILERS = ("nvcc", "cicc", "ptxas", "cc1plus", "cudafe++")
VICTIMS = ("scons SIGKILL", "scons SIGINT", "worker SIGKILL", "nvcc SIGKILL")
SCONSTRUCT = f"""\
from kernelwright.scons import generate
env = Environment(tools=[generate])
env.Default(env.KernelPackage("{PACKAGE}", env.Glob("kernels/*.py")))
"""


class DrillError(Exception):
    """Something that must hold after a crash did not."""


@dataclass
class Tally:
    """What the drills came to."""

    moments: Counter[str] = field(default_factory=Counter)
    too_late: int = 0
    kept: int = 0
    made_after: int = 0

    def __str__(self) -> str:
        moments = ", ".join(f"{count} {victim}" for victim, count in sorted(self.moments.items()))
        return (
            f"drill: {self.moments.total()} moments ({moments}; {self.too_late} more came too late), "
            "all byte-identical to a clean build; "
            f"{self.kept} finished stages kept, 0 made again, {self.made_after} unfinished ones made"
        )


class Drill:
    """A copy of the kernel library, or of some of its definition files, in an empty folder.

    Arguments:
        settings: further words for scons, such as ``ARCHS=sm_80``.
    """

    def __init__(self, folder: Path, kernels: list[str], jobs: int, seed: int, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.settings = settings
        self.jobs = jobs
        self.random = random.Random(seed)
        self.tally = Tally()
        shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "SConstruct").write_text(SCONSTRUCT)
        for path in (folder / "kernels").glob("*.py"):
            if kernels and path.stem not in kernels and not path.name.startswith("_"):
                path.unlink()
        self.kernels = sorted(path.stem for path in (folder / "kernels").glob("[!_]*.py"))
        self.seconds = {"all": 60.0, "some": 6.0}

    @property
    def cache(self) -> Path:
        """The build cache."""
        return self.folder / "build/.kernelwright/cache"

    def start(self) -> subprocess.Popen[str]:
        """A build that runs on its own."""
        command = [sys.executable, "-m", "SCons", "-Q", f"-j{self.jobs}", *self.settings]
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "site_scons")}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def build(self) -> str:
        """A plain build, which must succeed; what it printed."""
        process = self.start()
        output = process.communicate()[0]
        if process.returncode != 0:
            raise DrillError(f"scons ended with {process.returncode} after a crash:\n{output}")
        return output

    def digests(self) -> dict[str, str]:
        """SHA-256 of all that was built."""
        tops = (self.folder / "build/kernels", self.folder / "build" / PACKAGE)
        files = (path for top in tops for path in sorted(top.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.folder)): _digest(path) for path in files if "__pycache__" not in path.parts}

    def prepare(self, number: int) -> str:
        """Remove what the next build has to make; how much that is."""
        if number % 40 == 0:
            shutil.rmtree(self.folder / "build", ignore_errors=True)
            return "all"
        shutil.rmtree(self.cache, ignore_errors=True)
        if self.random.random() < 0.1:
            shutil.rmtree(self.folder / "build/.kernelwright", ignore_errors=True)
        for kernel in self.random.sample(self.kernels, min(2, len(self.kernels))):
            shutil.rmtree(self.folder / "build/kernels" / PACKAGE / kernel, ignore_errors=True)
        return "some"

    def moment(self, number: int, clean: dict[str, str]) -> None:
        """One crash, and everything that must hold after it."""
        size = self.prepare(number)
        victim = self.victim(number)
        process = self.start()
        self.wait(process, size)
        struck = self._strike(process, victim)
        process.communicate()
        self._require_no_process()
        entries = self.entries()
        start = time.monotonic()
        output = self.build()
        if not struck:
            # It had ended before: the next moments come earlier.
            self.seconds[size] *= 0.9
        self._require_kept(entries)
        self._require_finished(clean)
        made = re.search(r"(\d+) built(?: \((\d+) from the cache\))?", output)
        self.tally.made_after += int(made[1]) - int(made[2] or 0) if made else 0
        self.tally.kept += len(entries) if struck else 0
        self.tally.moments[victim] += struck
        self.tally.too_late += not struck
        print(f"{number}: {victim}, then {output.splitlines()[-1]} ({time.monotonic() - start:.1f} s)", flush=True)

    def victim(self, number: int) -> str:
        """Whom a crash ends, and how."""
        return self.random.choice(VICTIMS)

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        """Let a build go on until the moment of its crash."""
        end = time.monotonic() + self.random.uniform(0.1, self.seconds[size])
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def _strike(self, process: subprocess.Popen[str], victim: str) -> bool:
        """Send the signal; whether there still was somebody to receive it."""
        name, sent = victim.split()
        while process.poll() is None:
            target = process.pid if name == "scons" else self._find(name)
            if target is not None:
                try:
                    os.kill(target, signal.Signals[sent])
                except ProcessLookupError:
                    continue  # it ended just now
                return True
            time.sleep(0.002)
        return False

    def _find(self, name: str) -> int | None:
        """A process of the build: a worker, or any program of nvcc."""
        found = [pid for pid, words in processes_of(self.folder) if _is(name, words)]
        return self.random.choice(found) if found else None

    def _require_no_process(self) -> None:
        end = time.monotonic() + HANGS_AFTER_S
        while left := processes_of(self.folder):
            if time.monotonic() > end:
                raise DrillError(f"left behind: {left}")
            time.sleep(0.02)

    def entries(self) -> dict[Path, int | str]:
        """What is finished: files of the build cache, and which files they are or, for answers, what they say.

        A build that is killed between an answer and the end finds it out once more, and writes it again. What a remote
        cache gives has the files that it refers to with it, so only the answer itself is compared.
        """
        paths = [path for path in self.cache.glob("??/*") if not path.name.startswith(".")]
        return {path: path.stat().st_ino if is_of_stage(path) else _answer(path) for path in paths}

    def _require_kept(self, before: dict[Path, int | str]) -> None:
        after = self.entries()
        again = [path for path, inode in before.items() if after.get(path) != inode]
        if again:
            names = "".join(f"\n{path}: {_line(path)[:200]}" for path in again)
            raise DrillError(f"{len(again)} finished stages were made again, or answers changed:{names}")

    def _require_finished(self, clean: dict[str, str]) -> None:
        built = self.digests()
        different = sorted(name for name in clean.keys() | built.keys() if clean.get(name) != built.get(name))
        if different:
            raise DrillError(f"differs from a clean build: {', '.join(different[:10])}")
        if "kernelwright: 0 built" not in (again := self.build()):
            raise DrillError(f"a further scons had something to do:\n{again}")

    def run(self, moments: int) -> Tally:
        """Build once for comparison, then crash as often as wanted."""
        start = time.monotonic()
        self.build()
        self.seconds["all"] = time.monotonic() - start
        self.seconds["some"] = min(self.seconds["all"], 1 + 2 * self.seconds["all"] / len(self.kernels))
        clean = self.digests()
        number = 0
        while self.tally.moments.total() < moments or not self.tally.kept:
            number += 1
            self.moment(number, clean)
        return self.tally


def is_of_stage(entry: Path) -> bool:
    """Whether an entry of the build cache has the outputs of a stage, and is neither a list nor an answer."""
    line = _line(entry)
    return b'"files"' in line and b'"name":"answer.json"' not in line


def _line(entry: Path) -> bytes:
    return entry.read_bytes().partition(b"\n")[0] if entry.exists() else b"gone"


def _answer(entry: Path) -> str:
    """Digest of what an answer says; empty: it is a list, which may get longer.

    The lines of finished kernels have times, and what scons showed, such as CACHED. Neither decides anything.
    """
    line, _, rest = entry.read_bytes().partition(b"\n")
    found = re.search(rb'"name":"answer.json","size":(\d+)', line)
    said = re.sub(rb'"timestamp":\d+|"bact":"[^"]*"', b"", rest[: int(found[1])]) if found else b""
    return hashlib.sha256(said).hexdigest() if found else ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is(name: str, words: list[str]) -> bool:
    if name == "worker":
        return WORKER in words
    return Path(words[0]).name in COMPILERS


def parser(text: str, jobs: int = 2) -> argparse.ArgumentParser:
    """The options that all these drills have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--jobs", type=int, default=jobs)
    made.add_argument("--kernels", default="", help="definition files to build, separated by commas; default: all")
    return made


def chosen(options: argparse.Namespace) -> tuple[list[str], int, int]:
    """What of them a drill gets."""
    return [name for name in options.kernels.split(",") if name], options.jobs, options.seed


def main() -> None:
    """Run the drills."""
    options = parser(__doc__)
    options.add_argument("--moments", type=int, default=200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(Drill(Path(folder), *chosen(given)).run(given.moments))


if __name__ == "__main__":
    main()
