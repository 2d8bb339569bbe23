"""Prints what took how long in runs of the tests, from the files that ``pytest --junitxml=FILE`` has written.

    python tests/support/times.py FILE... [--skips]

With ``--skips`` it ends with 1 if a test was skipped for a reason that what ``.ci/run`` installs should have removed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

LONG_S = 20.0
"""A test that takes longer has to say in its docstring why."""

NOT_HERE = (
    *("GPU", "CUDA device", "CuTe DSL", "TILELANG", "there is no Python", "no headers of Python", "this CPU has no"),
    *(
        *("file system", "small disk", "only root", "root's right", "azurite", "Bazel", "glibc has nothing newer"),
        "too old",
    ),
    *("there is a GPU", "levels of x86-64", "the variant is built", "checked where records", "no cases in", "nginx"),
    *("that environment has no", "KERNELWRIGHT_DRILLS", "chromium", "root may", "clang is not installed", "aarch64"),
)
"""What reasons say of things that ``.ci/run`` does not install, or cannot where it is not root."""


@dataclass(frozen=True)
class Test:
    """One test of a run: its file, its name, its time in seconds, and why it was skipped; empty: it was not."""

    file: str
    name: str
    seconds: float
    skipped: str


def read_tests(paths: Sequence[Path]) -> Iterator[Test]:
    """The tests of some runs."""
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            skip = case.find("skipped")
            # A file that is skipped as a whole has no class, and its reason is in the text.
            parts = (case.get("classname") or case.get("name", "")).split(".")
            file = "/".join(parts[: next((n for n, p in enumerate(parts, 1) if p.startswith("test_")), len(parts))])
            reason = "" if skip is None else f"{skip.get('message')}: {skip.text}"
            yield Test(f"{file}.py", case.get("name", ""), float(case.get("time", 0)), reason)


def table(tests: Sequence[Test]) -> str:
    """Time by folder, the ten slowest files, and the tests that take long."""
    folders: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for test in tests:
        folders["/".join(test.file.split("/")[:2])] += test.seconds  # type: ignore[assignment]
        files[test.file] += test.seconds  # type: ignore[assignment]
    long = sorted((t for t in tests if t.seconds > LONG_S), key=lambda t: -t.seconds)
    rows = [
        *(f"{seconds:8.1f} s  {name}" for name, seconds in folders.most_common()),
        "the slowest files:",
        *(f"{seconds:8.1f} s  {name}" for name, seconds in files.most_common(10)),
        f"tests of more than {LONG_S:.0f} s:",
        *(f"{test.seconds:8.1f} s  {test.file}::{test.name}" for test in long),
    ]
    return "\n".join(rows)


def unexpected(tests: Sequence[Test]) -> list[str]:
    """Tests that were skipped though nothing is missing here, with the reason."""
    allowed = re.compile("|".join(map(re.escape, NOT_HERE)), re.IGNORECASE)
    return [f"{t.file}::{t.name}: {t.skipped}" for t in tests if t.skipped and not allowed.search(t.skipped)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--skips", action="store_true")
    options = parser.parse_args()
    tests = list(read_tests(options.files))
    print(table(tests))
    wrong = unexpected(tests) if options.skips else []
    for line in wrong:
        print(f"skipped, though it should not be: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
