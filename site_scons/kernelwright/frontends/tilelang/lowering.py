"""Lowers a Program: TileLang makes CUDA source in an environment of its own, and TVM the host code that launches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from ...core.errors import DefinitionError, Where
from ...define.arguments import Tensor
from ...define.declared import check_arguments
from ..declared_launch import lower_launches
from ..other_process import asked, source_of
from ..unit import LoweredKernel, Unit
from .program import ENVIRONMENT, Program
from .worker import Lowered, TileLangRequest


def lowered_by_tilelang(program: Program, unit: Unit) -> Lowered:
    """What TileLang makes of a function.

    Raises:
        DefinitionError: there is no such function, or its code is wrong.
        LoweringError: TileLang cannot lower it, or it has what launches here do not have.
        ToolchainError: there is no environment with TileLang.
    """
    arguments = program.checked(unit.where)
    source = source_of(program.source, unit)
    request = TileLangRequest(**source, function=program.function, arguments=arguments)
    return asked(ENVIRONMENT, "tilelang.worker", request, unit)


def argument_names(program: Program, unit: Unit) -> list[str]:
    """The names of the arguments, in the order of a call; raises as :func:`lowered_by_tilelang`."""
    return list(lowered_by_tilelang(program, unit).arguments)


def lower(program: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Arguments:
        program: what the definition returned.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: there is no such function, its code is wrong, or it does not fit its decorator.
        LoweringError: TileLang or TVM cannot lower it, or it has what launches here do not have.
        ToolchainError: there is no environment with TileLang.
    """
    progress(f"lowering for {unit.arch} (TileLang)")
    data = lowered_by_tilelang(program, unit)
    outputs = unit.named(list(data.arguments))
    _require_outputs(program, data, outputs, unit.where)
    check_arguments(data.arguments, outputs, unit.where)
    unit = replace(unit, outputs=outputs)
    progress("making host code")
    lowered = lower_launches(data.arguments, data.launches, unit, "int32")
    files = {
        **lowered.files,
        "module.tir": data.module.encode(),
        # At the end, because what sources begin with is read once for all that begin with the same.
        "device.cu": f"{data.source.strip()}\n// {unit.kernel}/{unit.slug}: {program.function}\n".encode(),
        "flags.json": (json.dumps(data.flags) + "\n").encode(),
    }
    return replace(lowered, files=files, read=data.files)


def _require_outputs(program: Program, data: Lowered, outputs: tuple[str, ...], where: Where) -> None:
    """Raise a DefinitionError unless the outputs of the definition are those of the function."""
    own = data.outputs
    if own and outputs != own:
        message = (
            f"the outputs of {program.function} are {', '.join(own)}, those of the definition {', '.join(outputs)}"
        )
        names = ", ".join(f'"{name}"' for name in own)
        raise DefinitionError(message, where, f"write outputs=[{names}]")
    written = [name for name, value in data.arguments.items() if isinstance(value, Tensor) and value.written]
    for name in outputs:
        if name not in written:
            message = f"outputs lists {name!r}, and the function does not write it"
            raise DefinitionError(message, where, f"list what it writes: {', '.join(written)}")
