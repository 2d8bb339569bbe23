"""Plants small bugs, one at a time, and runs the tests that have to find each.

``python tests/mutants/run.py [-j N] [NAME ...]``. Every ``*.patch`` beside this file is one bug: a sentence that says
what is wrong, a line ``Found by: FILE::TEST`` for each test that has to fail, and the patch. The tests first run in a
copy of the sources as they are, where all have to pass; then, for each patch, in a fresh copy with the patch,
where each has to fail. Status 0 if all bugs are found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HANGS_AFTER = 900
"""Seconds after which the tests of one bug are ended: far more than any takes. Some bugs make a test hang."""


@dataclass(frozen=True)
class Mutant:
    """A bug to plant.

    Attributes:
        path: of the patch.
        bug: what is wrong, a sentence.
        tests: those that have to fail, as pytest names them, without parameters.
        files: the files that it changes, relative to the repository.
    """

    path: Path
    bug: str
    tests: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem


def read_mutant(path: Path) -> Mutant:
    """Read a patch; ``ValueError`` if it lacks the sentence, a test or a change."""
    text = path.read_text(encoding="utf-8")
    bug = text.partition("\n")[0]
    tests = tuple(re.findall(r"^Found by: (\S+)$", text, re.M))
    files = tuple(re.findall(r"^\+\+\+ b/(\S+)$", text, re.M))
    if not (bug and tests and files):
        raise ValueError(f"{path}: a patch starts with a sentence and with 'Found by: FILE::TEST'")
    return Mutant(path, bug, tests, files)


def all_mutants() -> list[Mutant]:
    """Every bug beside this file, in the order of their names."""
    return [read_mutant(path) for path in sorted(Path(__file__).parent.glob("*.patch"))]


def copy_of_the_tree(folder: Path) -> Path:
    """A copy of the files that git does not ignore, in a new folder below ``folder``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    top = Path(tempfile.mkdtemp(dir=folder))
    for name in filter(None, listed.decode().split("\0")):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, top / name, follow_symlinks=False)
    return top


def run_tests(top: Path, tests: Collection[str], *options: str) -> tuple[int, str]:
    """The status and the output of pytest in a copy; a run that does not end is ended and has status 1."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfEs", *options, *tests]
    variables = os.environ | {"PYTHONPATH": str(top / "site_scons")}
    try:
        done = subprocess.run(
            command, cwd=top, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANGS_AFTER
        )
    except subprocess.TimeoutExpired as error:
        hung = "".join(f"\nFAILED {test} - does not end" for test in tests)
        return 1, (error.stdout or b"").decode(errors="replace") + hung
    return done.returncode, done.stdout.decode(errors="replace")


def survives(mutant: Mutant, folder: Path) -> str | None:
    """Why the bug is not found, or None if each of its tests fails."""
    top = copy_of_the_tree(folder)
    try:
        applied = subprocess.run(["git", "apply", str(mutant.path)], cwd=top, capture_output=True, text=True)
        if applied.returncode:
            return f"the patch does not apply: {applied.stderr.strip()}"
        for name in mutant.files:
            if name.endswith(".py"):
                compile((top / name).read_bytes(), name, "exec")
        status, output = run_tests(top, mutant.tests)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    if status not in (0, 1):
        return f"pytest ended with {status}\n{output}"
    if not all(name.endswith(".py") for name in mutant.files) and re.search(
        r"\.(?:h|c|pyx|pxi):\d+:\d+: error: ", output
    ):
        return f"the changed code does not compile\n{output}"
    failed = {line.split("[")[0] for line in re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)}
    passed = [test for test in mutant.tests if test not in failed]
    return f"not found by {', '.join(passed)}" if passed else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its status."""
    parser = argparse.ArgumentParser(description="plant bugs and see whether the tests find them")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="bugs at a time")
    parser.add_argument("names", nargs="*", help="of patches, without .patch; default: all")
    given = parser.parse_args(arguments)
    mutants = [mutant for mutant in all_mutants() if not given.names or mutant.name in given.names]
    if unknown := set(given.names) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no patch {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        status, output = run_tests(copy_of_the_tree(Path(folder)), tests, "-n", str(given.j))
        if status or (skipped := re.findall(r"^SKIPPED .*", output, re.M)):
            print(output if status else "\n".join(skipped))
            print("the tests have to pass, and none may be skipped, before a bug is planted")
            return 1
        found = 0
        with ThreadPoolExecutor(given.j) as pool:
            for mutant, why in zip(mutants, pool.map(lambda m: survives(m, Path(folder)), mutants), strict=True):
                found += why is None
                print(f"{'SURVIVES' if why else 'found'}  {mutant.name}: {why or mutant.bug}", flush=True)
    print(f"{found} of {len(mutants)} bugs found")
    return 0 if found == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
