"""Changes random places of the code, one at a time, and looks whether the tests find it.

``python tests/mutants/sample.py --random --count 300 --seed 7`` changes random statements, and ``--rules`` what would
give a wrong or an old result: a field that is left out of a key, a note, a lock or a second look that is dropped, two
steps that are swapped. ``--planted`` has the bugs of ``planted.py``, which no rule makes. With ``--part FOLDER`` the
changes are in a part of the code only, and with ``--fast`` only tests run that are not marked as slow. Every change is
printed with its place and the test that has found it, and at the end how many were found by rule and by folder. The
same seed chooses the same changes of a function until that is edited.

A change is looked at by the tests that execute its function: first by those of a file with the name of its module, then
by those that execute little else, and in all by as many as fit ``--budget``. It survives if all of these pass; what
other tests would find does not count. Which tests execute what is noted once, in the folder ``build/mutants``, by
``python tests/mutants/sample.py --record``, which runs all fast tests; ``TESTS_OF`` says it of the code in C. Tests
that run twice are noted twice.

With ``--json FILE`` the outcomes are written there, and what is in the file is not run again. Before, install mutmut,
whose changes the random ones in Python are: ``pip install --group mutants``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue

from mutations import (
    NO_BUILDS,
    SOURCES,
    TESTS_OF,
    TESTS_OF_RULES,
    Change,
    Source,
    c_changes,
    is_program,
    occurrences,
    random_changes,
    requests,
    rule_changes,
    texts_of,
)
from planted import PLANTED

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.forked import Starter

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / "build/mutants"
FIRST_S = 5
"""How long the tests of a change may take that run first; those that follow take four times as long, and so on."""
START_S, BUILDS_S = 1, 6
"""What a file of tests takes before its first test; one whose tests build something."""
PATIENCE = 8
"""How many times as long they may take. Then they are ended, which says nothing: the machine may be slow."""


@dataclass(frozen=True)
class Mutant:
    """A change, and how it is told from others: ``name`` stays while its function does."""

    name: str
    change: Change
    line: int
    diff: str
    tests: tuple[str, ...] = ()
    """The names of those that have to find it; empty: any may."""

    @property
    def folder(self) -> str:
        parts = Path(self.change.path).parts
        return "/".join(parts[: min(len(parts) - 1, 2)]) or "(top)"


@dataclass(frozen=True)
class Outcome:
    """What came of a mutant: it was ``found`` by ``test``, ``survived``, ``hung``, or ``broke`` the code."""

    name: str
    place: str
    function: str
    rule: str
    folder: str
    diff: str
    result: str
    test: str


# ---- the choice ----


def planted() -> list[Mutant]:
    """The bugs of ``planted.py``."""
    texts, mutants = texts_of(ROOT / SOURCES), []
    for bug in PLANTED:
        (change,) = occurrences(bug.function, bug.old, bug.new, texts)
        mutants.append(Mutant(bug.bug, change, texts[change.path].count("\n", 0, change.start) + 1, bug.new, bug.tests))
    return mutants


def choose(parts: Sequence[str], rules: bool, count: int, seed: int) -> list[Mutant]:
    """So many mutants: random ones of statements, each as likely as any other, or those of each rule in turn."""
    texts = texts_of(ROOT / SOURCES)
    python = {path: Source(path, text) for path, text in texts.items() if path.endswith(".py")}
    in_keys = requests(python.values()) if rules else set()
    ranked: dict[str, list[tuple[float, Callable[[], list[Change]]]]] = defaultdict(list)
    for path, text in texts.items():
        if not parts or any((SOURCES / path).is_relative_to(part) for part in parts):
            equal: Counter[str] = Counter()
            for rule, key, changes in places(python.get(path), path, text, in_keys if rules else None):
                equal[key] += 1
                ranked[rule].append((random.Random(f"{seed} {path} {key} {equal[key]}").random(), changes))
    turns = zip_longest(*(sorted(found, key=lambda pair: pair[0]) for _, found in sorted(ranked.items())))
    chosen: dict[str, Mutant] = {}
    for rank, changes in (pair for turn in turns for pair in turn if pair):
        if len(chosen) == count:
            break
        made = changes()
        for change in random.Random(rank).sample(made, len(made)):
            if mutant := as_mutant(change, texts[change.path]):
                chosen.setdefault(mutant.name, mutant)
                break
    return list(chosen.values())


def places(
    source: Source | None, path: str, text: str, in_keys: set[str] | None
) -> Iterator[tuple[str, str, Callable[[], list[Change]]]]:
    """Where a file may be changed: the rule, what the place is told by, and what gives the changes of it."""
    if source and in_keys is None:
        for scope in source.scopes():
            for node in scope.statements:
                key = f"{scope.name} {source.code(node).splitlines()[0]}"
                yield "random", key, partial(random_changes, source, scope, node)
        return
    if source:
        found = [[change] for scope in source.scopes() for change in rule_changes(source, scope, in_keys or set())]
    else:
        of_lines: dict[tuple[int, str], list[Change]] = defaultdict(list)
        for number, change in enumerate(c_changes(path, text, in_keys is not None)):
            line = number if in_keys is not None else text.count("\n", 0, change.start)
            of_lines[line, change.rule].append(change)
        found = list(of_lines.values())
    for changes in found:
        first = changes[0]
        key = f"{first.function} {text[first.start : first.end]} {first.text} {first.rule}"
        yield first.rule, key, partial(list, changes)


def as_mutant(change: Change, text: str) -> Mutant | None:
    """A change with its name; None if it leaves the program as it is, or is none that compiles."""
    new = text[: change.start] + change.text + text[change.end :]
    if new == text or (change.path.endswith(".py") and not is_program(new, text)):
        return None
    line = text.count("\n", 0, change.start) + 1
    old_line = " ".join(text[change.start : change.end].split())
    start = text.rindex("\n", 0, change.start) + 1
    around = text[start : change.start].strip()[-30:]
    diff = f"{around}[{old_line} -> {' '.join(change.text.split())}]{text[change.end :].splitlines()[0][:30]}"
    key = f"{change.path} {change.function} {change.rule} {diff} {text.count(diff, 0, start)}"
    return Mutant(hashlib.sha256(key.encode()).hexdigest()[:10], change, line, diff)


# ---- the tests of a function ----


class Notes:
    """Which tests execute which functions, and how long they take.

    Arguments:
        allowed: the tests that may be run.
        budget: how many seconds the tests of one change may take.
    """

    def __init__(self, allowed: set[str], budget: float) -> None:
        self.budget = budget
        times = [line.rsplit("\t", 1) for line in (NOTES / "times").read_text().splitlines()]
        self.times = {test: float(time) for test, time in times if test in allowed}
        self._direct: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._prepared: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        breadth: Counter[str] = Counter()
        with (NOTES / "calls").open(encoding="utf-8", errors="replace") as lines:
            # A test that fills the disk cuts lines.
            whole = (parts for line in set(lines) if len(parts := line.rstrip("\n").split("\t")) == 4)
            for phase, test, path, function in whole:
                name = function.split(".<lambda>")[0].split(".<listcomp>")[0].split(".<genexpr>")[0]
                if test in self.times:
                    self._direct[path][name].add(test)
                    breadth[test] += 1
                if phase == "setup":
                    self._prepared[path][name].add(file_of(test))
        if not self.times:
            raise SystemExit(f"{NOTES} says nothing of these tests: run sample.py --record first")
        self.price = {test: (breadth[test] + 20) * (time + 0.02) for test, time in self.times.items()}

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests for a change within the budget, those first that take little and execute little else."""
        if mutant.tests:
            return [test for test in self.times if test.rpartition("::")[2].partition("[")[0] in mutant.tests]
        change = mutant.change
        if not change.path.endswith(".py"):
            return self._within(self._called(next(TESTS_OF[part] for part in TESTS_OF if change.path.startswith(part))))
        name = change.function.removesuffix(".<locals>")
        direct, files = (self._executing(noted.get(change.path, {}), name) for noted in (self._direct, self._prepared))
        # What a fixture of several tests executes is executed for all of them, and few of them are about it.
        beside = {test for test in self.times if file_of(test) in files} - direct
        words = TESTS_OF_RULES.get(change.rule)
        first = self._within(self._called(words)) if words else []
        by_file: dict[str, list[str]] = defaultdict(list)
        for found in (direct, beside):
            for test in sorted(found, key=lambda test: (not test.startswith(NO_BUILDS), self.price[test], test)):
                by_file[file_of(test)].append(test)
        # All tests of a file that has the name of the module, since they are about it.
        module = Path(change.path).stem
        own = [t for file, tests in by_file.items() if module in file and file.startswith(NO_BUILDS) for t in tests]
        return list(dict.fromkeys([*first, *self._within([own], len(own) or 1), *self._within(list(by_file.values()))]))

    @staticmethod
    def _executing(of_path: Mapping[str, set[str]], name: str) -> set[str]:
        """The tests, or files, that execute a function; for what is in no function, all that execute the module."""
        return of_path.get(name) or set().union(*of_path.values())

    def _called(self, words: str) -> list[list[str]]:
        """The tests of each file that has one of the words in its name."""
        files = sorted({file for test in self.times if (file := file_of(test)).startswith(NO_BUILDS)})
        named = dict.fromkeys(file for word in words.split("|") for file in files if word in file)
        return [[test for test in self.times if test.startswith(f"{file}::")] for file in named]

    def _within(self, files: list[list[str]], step: int = 40) -> list[str]:
        """Some tests of each file in turn, until the time is over."""
        chosen: list[str] = []
        left = self.budget
        for turn in range(0, max(map(len, files), default=0), step):
            for tests in files:
                left -= start(tests[0]) * (turn == 0 and left > 0)
                for test in tests[turn : turn + step]:
                    if self.times[test] <= left:
                        left -= self.times[test]
                        chosen.append(test)
        return chosen

    def parts(self, tests: Sequence[str]) -> list[list[str]]:
        """Tests that run one after the other, each part four times as long as the one before it."""
        parts: list[list[str]] = []
        left, limit, files = 0.0, FIRST_S / 4, set[str]()
        for test in tests:
            if left <= 0:
                limit *= 4
                left, files = limit, set()
                parts.append([])
            left -= self.times[test] + start(test) * (file_of(test) not in files)
            files.add(file_of(test))
            parts[-1].append(test)
        return parts


def file_of(test: str) -> str:
    return test.partition("::")[0]


def start(test: str) -> float:
    """How long it takes until the first test of its file runs."""
    return START_S if test.startswith(NO_BUILDS) else BUILDS_S


def record(tests: Sequence[str], jobs: int) -> int:
    """Run tests, and note what they execute beside what is noted of others."""
    NOTES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        top = copy_of_the_tree(Path(folder))
        text = (ROOT / "tests/mutants/recorder.py").read_text(encoding="utf-8").replace("THE_FOLDER", str(NOTES))
        (top / "site_scons/sitecustomize.py").write_text(text, encoding="utf-8")
        command = [*PYTEST, "-p", "sitecustomize", "-n", str(jobs), "--basetemp", f"{folder}/temp", *tests]
        status = subprocess.run(command, cwd=top, env=variables(top)).returncode
    for path in NOTES.glob("*.test"):
        path.unlink()
    return status


def copy_of_the_tree(folder: Path) -> Path:
    """A copy of the files that git does not ignore, in a new folder below ``folder``."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    top = Path(tempfile.mkdtemp(dir=folder))
    for name in filter(None, listed.decode().split("\0")):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed, and git has not been told
            shutil.copy2(ROOT / name, top / name, follow_symlinks=False)
    return top


# ---- runs ----

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


def variables(top: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(top / "site_scons")}


@dataclass(frozen=True)
class Place:
    """Where changes are planted, one at a time: a copy of the tree, and what runs tests in it.

    Most of what a few tests take is the start of pytest and of what they import. So a process has imported all that is
    not ours, and each run of tests is a fork of it.
    """

    top: Path
    starter: Starter

    def run(self, tests: Sequence[str], limit: float) -> tuple[str, str]:
        """What tests do: ``passed``, ``found``, ``hung`` or ``broke``, and the test that says so."""
        listed, group = (self.top.parent / f"{self.top.name}.{name}" for name in ("tests", "group"))
        listed.write_text("\n".join(tests))
        group.unlink(missing_ok=True)
        options = ["-x", "-n", "0", "-rfE", "--tb=short", "--basetemp", f"{self.top}.temp", f"@{listed}"]
        late = threading.Event()
        clock = threading.Timer(limit, lambda: (late.set(), end_group(group)))
        clock.start()
        path = [self.top, self.top / "site_scons", self.top / "tests"]
        done = self.starter.run(RUN, group, *options, env=variables(self.top), path=path, cwd=self.top, merged=True)
        clock.cancel()
        end_group(group)  # also what a failed test has left behind
        return ("hung", tests[0]) if late.is_set() else outcome(done.returncode, done.stdout)


RUN = """
import os, sys
os.setsid()
open(sys.argv[1], "w").write(str(os.getpid()))
for name in [name for name in sys.modules if name.partition(".")[0] in ("kernelwright", "support", "mutants")]:
    del sys.modules[name]
import pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[2:]]))
"""
IMPORTED = ("pytest", "xdist", "hypothesis", "_hypothesis_pytestplugin", "numpy", "tvm_ffi", "tvm", "SCons.Script")


def end_group(file: Path) -> None:
    """End all processes of a run of tests."""
    with contextlib.suppress(OSError, ValueError):
        os.killpg(int(file.read_text()), signal.SIGKILL)


def outcome(status: int, text: str) -> tuple[str, str]:
    """What the end of a run of tests says."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)(.*)", text, re.M)
    if status == 0:
        return "passed", ""
    if status == 1 and failed:
        return "broke" if re.search(r"\.[hc]:\d+:\d+: error: ", text) else "found", failed[1]
    return "broke", failed[1] if failed else text.strip()[-300:]


def look(mutant: Mutant, notes: Notes, places: SimpleQueue[Place]) -> Outcome:
    """Plant a change in a copy that nobody uses, and run its tests."""
    change, place = mutant.change, places.get()
    path = place.top / SOURCES / change.path
    original = path.read_text(encoding="utf-8")
    tests = notes.tests(mutant)
    result, by = "survived", f"{len(tests)} tests pass"
    try:
        # A changed file of the same size and second would not be seen.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(original[: change.start] + change.text + original[change.end :], encoding="utf-8")
        for part in notes.parts(tests):
            ended, test = place.run(part, 60 + PATIENCE * (sum(notes.times[t] for t in part) + 10))
            if ended != "passed":
                result, by = ended, test
                break
    finally:
        path.write_text(original, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        places.put(place)
    line = f"{SOURCES / change.path}:{mutant.line}"
    return Outcome(mutant.name, line, change.function, change.rule, mutant.folder, mutant.diff, result, by)


def report(outcomes: Sequence[Outcome], of: str) -> None:
    """Print how many were found, for each value of an attribute. What hung does not count, nor C that broke."""
    counted = [o for o in outcomes if o.result != "hung" and (o.result != "broke" or ".py:" in o.place)]
    for name in [*sorted({getattr(o, of) for o in counted}), "all"]:
        group = [o for o in counted if name in (getattr(o, of), "all")]
        found = sum(o.result != "survived" for o in group)
        print(f"{found:4} of {len(group):4} found, {100 * found / len(group):5.1f} %  {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its status."""
    parser = argparse.ArgumentParser(description="change random places, and see whether the tests find it")
    parser.add_argument("--count", type=int, default=300, help="changes")
    parser.add_argument("--seed", type=int, default=7, help="of the choice")
    parser.add_argument("--part", nargs="+", default=[], help="folders or files to change")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--random", action="store_true", help="change random statements (this is the default)")
    kind.add_argument("--rules", action="store_true", help="change what gives a wrong or an old result")
    kind.add_argument("--planted", action="store_true", help="plant the bugs of planted.py")
    kind.add_argument(
        "--record", nargs="*", metavar="TEST", help="run tests, by default all fast ones, and note what they execute"
    )
    parser.add_argument("--fast", action="store_true", help="with the tests only that are not marked as slow")
    parser.add_argument("--budget", type=float, default=90, help="seconds that the tests of one change may take")
    parser.add_argument("--json", type=Path, help="file of the outcomes, which is continued")
    parser.add_argument("--list", action="store_true", help="print the changes, and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="changes at a time")
    given = parser.parse_args(arguments)
    if given.record is not None:
        return record(given.record or ["-m", "not slow", "tests"], given.jobs)
    mutants = planted() if given.planted else choose(given.part, given.rules, given.count, given.seed)
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name} {mutant.change.path}:{mutant.line} {mutant.change.rule}: {mutant.diff}")
        return 0
    earlier = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    outcomes = {entry["name"]: Outcome(**entry) for entry in earlier}
    left = [mutant for mutant in mutants if mutant.name not in outcomes]
    notes = Notes(tests_there("not slow" if given.fast else ""), given.budget)
    places: SimpleQueue[Place] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        for _ in range(given.jobs):
            places.put(Place(copy_of_the_tree(Path(folder)), Starter(IMPORTED)))
        for outcome in pool.map(lambda mutant: look(mutant, notes, places), left):
            outcomes[outcome.name] = outcome
            print(f"{outcome.result:8} {outcome.name} {outcome.place} {outcome.function}: {outcome.rule}")
            print(f"         {outcome.diff}\n         {outcome.test}", flush=True)
            if given.json:
                given.json.write_text(json.dumps([asdict(o) for o in outcomes.values()], indent=1))
    results = [outcomes[mutant.name] for mutant in mutants]
    for attribute in ("rule", "folder"):
        report(results, attribute)
    return 0


def tests_there(marked: str) -> set[str]:
    """The tests of the tree with these marks."""
    command = [*PYTEST, "-n", "0", "--collect-only", "-m", marked, "tests"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


if __name__ == "__main__":
    sys.exit(main())
