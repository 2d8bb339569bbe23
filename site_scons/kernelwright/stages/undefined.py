"""The error for a library that needs what nothing has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..core.errors import LoweringError, ToolError
from ..toolchain.undefined import nothing_has
from .stage_run import StageRun


def refuse(
    symbols: Sequence[str], command: Sequence[str], top: Path, scratch: Path, stage: StageRun, remedy: str
) -> NoReturn:
    """Raise the error, with what the linker says: which function of which source calls it.

    Arguments:
        symbols: what nothing has.
        command: links the library again.
        top: the folder in which the linker runs.
    """
    try:
        stage.tool([*command, "-Wl,-z,defs"], top, scratch, remedy, kind="link")
    except ToolError as error:
        raise LoweringError(nothing_has(symbols), stage.where, remedy, error.detail) from error
    raise LoweringError(nothing_has(symbols), stage.where, remedy)
