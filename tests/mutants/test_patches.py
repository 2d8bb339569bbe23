"""Every planted bug still fits the sources, and names tests that there are; ``run.py`` beside this file plants them."""

from __future__ import annotations

import ast
import functools
import subprocess
from pathlib import Path

import pytest

from mutants.run import ROOT, Mutant, all_mutants


@functools.cache
def names_of_tests(path: Path) -> set[str]:
    """The test functions of a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_planted_bug_fits_the_sources(mutant: Mutant):
    done = subprocess.run(["git", "apply", "--check", mutant.path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{mutant.path.name} does not apply; write it anew\n{done.stderr}"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name in names_of_tests(ROOT / file), f"{mutant.path.name} names {test}, which is not there"
