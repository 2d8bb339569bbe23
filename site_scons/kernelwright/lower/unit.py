"""What a front end makes of a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..define.unit import Unit

__all__ = ["IR_INDEX", "LoweredKernel", "Unit"]

IR_INDEX = "index.txt"
"""The file that lists those with the IR after each pass."""


@dataclass(frozen=True)
class LoweredKernel:
    """What a front end makes of a unit.

    Arguments:
        files: file name -> content, for all of ``FrontEnd.files``. Equal inputs give equal bytes, in any process,
            folder and order.
        schedule: what scheduled the function: the name of a rule, or ``as written``.
        read: paths of the files that another process used or looked for -> the digest of what it used; empty: there is
            none. A path with a slash at the end is that of a folder, and has no digest. Those of the project are
            dependencies.
    """

    files: Mapping[str, bytes]
    schedule: str
    read: Mapping[str, str | None] = field(default_factory=dict)
