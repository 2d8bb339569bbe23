"""Where a definition was when the compiler of its front end raised an error."""

from __future__ import annotations

import re
import traceback
from pathlib import Path


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
