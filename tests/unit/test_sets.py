"""The two sets of tests: what is slow exists, and together they are all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import ROOT
from support.slow import FAST, SlowTests
from support.times import LONG_S, read_tests, table, unexpected


def test_every_line_of_the_list_names_tests_and_none_twice() -> None:
    names = SlowTests().names
    assert names
    for name in names:
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), f"{name} is not there"
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{name} is not there"
        wholes = [str(place) for place in Path(path).parents if str(place) in names] + ([path] if function else [])
        assert not names.intersection(wholes), f"{name} is slow anyway"


def test_the_two_commands_have_all_tests() -> None:
    assert f'pytest -n auto -m "{FAST}"\n' in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "pytest -n auto -m slow " in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_a_file_of_the_list_is_slow_and_a_function_of_it_with_all_its_cases(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# why\ntests/fuzz\n\ntests/unit/test_arch.py::test_a\n")
    slow = SlowTests(tmp_path / "list")
    assert slow.has_file(ROOT / "tests/fuzz/test_names.py") and not slow.has_file(ROOT / "tests/unit/test_arch.py")
    assert not slow.has_file(tmp_path / "tests/fuzz")


def test_times_and_wrong_skips_are_read_from_what_pytest_writes(tmp_path: Path, pytester_run: str) -> None:
    (tmp_path / "run.xml").write_text(pytester_run)
    tests = list(read_tests([tmp_path / "run.xml"]))
    assert next((t.file, t.name, t.seconds > LONG_S) for t in tests) == ("tests/unit/test_a.py", "test_x[1]", True)
    assert "tests/unit/test_a.py::test_x[1]" in table(tests)
    assert unexpected(tests) == ["tests/unit/test_a.py::test_z: nvcc is not installed: None"]


@pytest.fixture
def pytester_run() -> str:
    return """<testsuites><testsuite>
    <testcase classname="tests.unit.test_a" name="test_x[1]" time="21.5"/>
    <testcase classname="tests.unit.test_a" name="test_y" time="0.1"><skipped message="needs a GPU"/></testcase>
    <testcase classname="tests.unit.test_a" name="test_z" time="0"><skipped message="nvcc is not installed"/></testcase>
    </testsuite></testsuites>"""
