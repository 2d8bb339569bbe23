"""Lowers an Exported: TVM makes host code that checks the arguments. The exported function makes the launches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from ...core.errors import DefinitionError
from ...core.files import pretty_json
from ..declared_launch import lower_launches
from ..unit import LoweredKernel, Unit
from .exported import Exported

LOGIC = "its sources have host code of their own"
"""Why a backend without host code cannot call such a kernel."""


def lower(exported: Exported, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Raises:
        DefinitionError: its arguments cannot be those of a kernel, or each arch is to have its own source.
        LoweringError: TVM cannot make the host code.
    """
    if unit.per_arch:
        message = f"function {exported.function!r} launches by itself, and is compiled for all archs together"
        raise DefinitionError(message, unit.where, "leave per_arch out; device code can ask for __CUDA_ARCH__")
    unit = exported.checked(unit)
    progress("making the checks of arguments")
    lowered = lower_launches(exported.declared, (), unit)
    signature = json.loads(lowered.files["signature.json"]) | {
        "launches": None,
        "host_logic": LOGIC,
        "exported": exported.function,
        **({"opaque": True} if exported.is_opaque else {}),
    }
    files = {**lowered.files, "signature.json": pretty_json(dict(sorted(signature.items()))).encode()}
    return replace(lowered, files=files)
