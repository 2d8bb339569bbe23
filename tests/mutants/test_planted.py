"""Every planted bug fits the code, wherever its function is, and names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

from mutants.mutations import NO_BUILDS, SOURCES, TESTS_OF, TESTS_OF_RULES, is_program, occurrences, texts_of
from mutants.planted import PLANTED

ROOT = Path(__file__).resolve().parents[2]


def test_each_planted_bug_fits_one_place_and_its_tests_are_there():
    texts = texts_of(ROOT / SOURCES)
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^\s*def (test_\w+)\(", tests, re.M))
    wrong = [f"{bug.bug} There is no test {test}." for bug in PLANTED for test in bug.tests if test not in there]
    for bug in PLANTED:
        found = occurrences(bug.function, bug.old, bug.new, texts)
        if len(found) != 1:
            wrong.append(f"{bug.bug} {bug.function} has {bug.old!r} {len(found)} times, not once: write it anew.")
        elif found[0].path.endswith(".py"):
            text, change = texts[found[0].path], found[0]
            if not is_program(text[: change.start] + change.text + text[change.end :], text):
                wrong.append(f"{bug.bug} This is no other program.")
    assert len(PLANTED) > 0 and not wrong, "\n".join(wrong)


def test_what_calls_the_code_in_c_is_told_by_words_that_files_have_in_their_names():
    files = [path.name for folder in NO_BUILDS for path in (ROOT / folder).glob("test_*.py")]
    words = {word for listed in (*TESTS_OF.values(), *TESTS_OF_RULES.values()) for word in listed.split("|")}
    assert [word for word in words if not any(word in file for file in files)] == []
    assert [part for part in TESTS_OF if not list((ROOT / SOURCES).glob(f"{part}*"))] == []
