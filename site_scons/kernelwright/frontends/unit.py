"""What a front end makes of a unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..define.unit import Unit

__all__ = ["IR_INDEX", "LoweredKernel", "Unit", "returned_in"]

IR_INDEX = "index.txt"
"""The file that lists those with the IR after each pass."""


@dataclass(frozen=True)
class LoweredKernel:
    """What a front end makes of a unit.

    Arguments:
        files: file name -> content, for all of ``FrontEnd.files``. Equal inputs give equal bytes, in any process,
            folder and order.
        schedule: what scheduled the function: the name of a rule, or ``as written``.
        read: the user's files that another process used or looked for, as dependencies: name -> digest.
    """

    files: Mapping[str, bytes]
    schedule: str
    read: Mapping[str, str] = field(default_factory=dict)


def returned_in(unit: Unit, arguments: Sequence[str]) -> dict[str, Any]:
    """The key ``outputs`` of ``signature.json``, if a call returns outputs in another order than that of the arguments.

    Arguments:
        arguments: the names of all arguments, in the order of a call.
    """
    named = unit.named(arguments)
    return {"outputs": list(named)} if list(named) != [name for name in arguments if name in named] else {}
