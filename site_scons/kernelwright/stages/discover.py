"""DISCOVER: fails in place of a definition file that cannot be executed, so that ``-k`` builds the rest."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import KernelwrightError, printable
from .context import Context
from .stage import Stage, files_in


def make(context: Context, number: int, error: KernelwrightError) -> Stage:
    """The stage for the error of one definition file.

    Arguments:
        number: a number for the file, no other error's.
    """

    def fail(scratch: Path) -> None:
        raise error

    place = printable(error.where.location or "definition")
    outputs = files_in(context.work, [f"{number}.failed"])
    return Stage("DISCOVER", place, error.where, {"error": str(error)}, fail, outputs, [], cacheable=False)
