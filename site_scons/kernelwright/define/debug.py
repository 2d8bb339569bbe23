"""What a build keeps for debuggers and profilers: the levels of the setting ``debug``, and nvcc's flags for each."""

from __future__ import annotations

NO, LINEINFO, FULL = LEVELS = ("no", "lineinfo", "full")
"""The levels: nothing; lines of sources, in code that is optimised as ever; and all, in code that is not."""

FLAGS = {NO: (), LINEINFO: ("-lineinfo",), FULL: ("-G",)}
"""Level -> flags of nvcc, which are NVRTC's as well."""

FOLDER = "debug-"
"""How the folder of a package begins that is built with the setting; its level follows."""
