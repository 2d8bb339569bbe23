"""What a build keeps for debuggers and profilers: the levels of the setting ``debug``, and nvcc's flags for each."""

from __future__ import annotations

NO, LINEINFO, FULL = LEVELS = ("no", "lineinfo", "full")
"""The levels: nothing; lines of sources, in code that is optimised as ever; and all, in code that is not."""

FLAGS = {NO: (), LINEINFO: ("-lineinfo",), FULL: ("-G",)}
"""Level -> flags of nvcc, which are NVRTC's as well."""


def folder_of(level: str) -> str:
    """The folder in the build folder of packages that are built with a level; empty: the build folder itself."""
    return "" if level == NO else f"debug-{level}"
