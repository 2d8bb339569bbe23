"""Which tests are slow: ``tests/slow.txt`` lists them, and ``pytest -m "not slow"`` leaves them out."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
FAST = "not slow"
"""The expression of ``-m`` with which files that are slow as a whole are not even imported."""


class SlowTests:
    """The list of slow tests.

    Arguments:
        file: has a folder, a file or a function of a file on each line, relative to the folder that has ``tests``.
    """

    def __init__(self, file: Path = TESTS / "slow.txt") -> None:
        self._file = file

    @cached_property
    def names(self) -> frozenset[str]:
        """The lines, without comments."""
        lines = (line.strip() for line in self._file.read_text(encoding="utf-8").splitlines())
        return frozenset(line for line in lines if line and not line.startswith("#"))

    def has_file(self, path: Path) -> bool:
        """Whether all tests below a path are slow."""
        if not path.is_relative_to(TESTS):
            return False
        relative = path.relative_to(TESTS.parent)
        return any(str(place) in self.names for place in (relative, *relative.parents))

    def has(self, item: pytest.Item) -> bool:
        """Whether a test is slow."""
        if not item.path.is_relative_to(TESTS):
            return False
        function = getattr(item, "originalname", item.name)
        return self.has_file(item.path) or f"{item.path.relative_to(TESTS.parent)}::{function}" in self.names
