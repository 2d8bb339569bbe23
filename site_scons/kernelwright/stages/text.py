"""TEXT: writes sources that a definition makes, so that compilers, editors and people can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .stage_run import StageRun


@dataclass(frozen=True)
class Texts:
    """What the files of a folder say.

    Arguments:
        files: name of each file -> its content.
    """

    files: Mapping[str, str]

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write the files."""
        for name, text in self.files.items():
            (scratch / name).write_text(text, encoding="utf-8", newline="")
