"""Reads the error that a front end's compiler raised: its first line, and the line of the definition that it is in."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

MAX_MESSAGE = 6000
"""Longest text in characters that is shown of an exception of a compiler."""


def first_line(error: BaseException, text: str | None = None) -> str:
    """The first line of an error's text that is not blank, cut if it is very long; without one, the error's class.

    Arguments:
        text: what is shown in place of the text of the error.
    """
    lines = (str(error) if text is None else text).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)[:300]


def line_of(error: BaseException, compiler: str) -> str | None:
    """The innermost line in an error's traceback that is neither ours nor the compiler's: ``path:line``.

    Arguments:
        compiler: the folder of its modules.
    """
    ours = str(Path(__file__).resolve().parent.parent)
    frames = traceback.extract_tb(error.__traceback__)
    # A folder of the project may have the compiler's name, too.
    installed = re.compile(rf"-packages/(.*/)?{compiler}/")
    theirs = [f for f in frames if not f.filename.startswith((ours, "<")) and not installed.search(f.filename)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
