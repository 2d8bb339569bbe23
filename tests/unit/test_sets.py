"""The two sets of tests: what is slow exists, and together they are all tests."""

from __future__ import annotations

from pathlib import Path

from support.project import ROOT
from support.slow import FAST, SlowTests


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


def test_files_in_one_kind_of_folder_have_names_of_their_own() -> None:
    """pytest imports the files of folders that are no packages by their names alone."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    names = [path.name for path in files]
    assert not {name for name in names if names.count(name) > 1}
