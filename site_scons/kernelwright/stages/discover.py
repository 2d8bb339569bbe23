"""DISCOVER: fails in place of a definition file that cannot be executed, so that ``-k`` builds the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import KernelwrightError, printable
from ..core.request import ASIDE
from .context import Context
from .stage import Stage, files_in
from .stage_run import StageRun


@dataclass(frozen=True)
class Failure:
    """An error, and its text."""

    text: str
    error: KernelwrightError = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Raise the error."""
        raise self.error


def make(context: Context, number: int, error: KernelwrightError) -> Stage:
    """The stage for the error of one definition file.

    Arguments:
        number: a number for the file, no other error's.
    """
    place = printable(error.where.location or "definition")
    outputs = files_in(context.work, [f"{number}.failed"])
    return Stage("DISCOVER", place, error.where, Failure(str(error), error), outputs, [], cacheable=False)
