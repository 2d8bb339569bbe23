"""Lowers a Program: TileLang makes CUDA source in an environment of its own, and TVM the host code that launches it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...core.errors import DefinitionError, Where
from ...define.arguments import Scalar, Tensor, check_arguments
from ...define.sizes import Size
from ..declared_launch import DeclaredLaunch, EncodedMap, Given, Passed, lower_launches
from ..other_process import asked, source_of
from ..unit import LoweredKernel, Unit
from .program import ENVIRONMENT, Program
from .worker import Lowered, TileLangRequest

ALIGNMENT = 16
"""Bytes that tensors are aligned to: TileLang's code loads as many at once, and asks no one."""

WIDE = ("longlong4", "load_global_256", "store_global_256", "_global_256")
"""What is in source whose code loads 32 bytes at once."""


def lowered_by_tilelang(program: Program, unit: Unit) -> Lowered:
    """What TileLang makes of a function.

    Raises:
        DefinitionError: there is no such function, or its code is wrong.
        LoweringError: TileLang cannot lower it, or it has what launches here do not have.
        ToolchainError: there is no environment with TileLang.
    """
    program.check(unit.where)
    told = source_of(program.source, unit)
    request = TileLangRequest(**told, function=program.function, arguments=program.arguments)
    return asked(ENVIRONMENT, "tilelang.worker", request, unit)


def argument_names(program: Program, unit: Unit) -> list[str]:
    """The names of the arguments, in the order of a call; raises as :func:`lowered_by_tilelang`."""
    return [argument["name"] for argument in lowered_by_tilelang(program, unit).arguments]


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
    declared = dict(_arguments(data))
    outputs = unit.named(list(declared))
    _require_outputs(program, data, outputs, unit.where)
    check_arguments(declared, outputs, unit.where)
    unit = replace(unit, outputs=outputs)
    progress("making host code")
    maps = [EncodedMap(**value) for value in data.maps]
    lowered = lower_launches(declared, [_launch(launch, maps) for launch in data.launches], unit)
    files = {
        **lowered.files,
        "module.tir": data.module.encode(),
        # At the end, because what sources begin with is read once for all that begin with the same.
        "device.cu": f"{data.source.strip()}\n// {unit.kernel}/{unit.slug}: {program.function}\n".encode(),
        "flags.json": (json.dumps(data.flags) + "\n").encode(),
    }
    return replace(lowered, files=files, read=data.files)


def _arguments(data: Lowered) -> Iterator[tuple[str, Tensor | Scalar]]:
    alignment = 2 * ALIGNMENT if any(word in data.source for word in WIDE) else ALIGNMENT
    for argument in data.arguments:
        name, dtype, shape = argument["name"], argument["dtype"], argument["shape"]
        if shape is None:
            yield name, Scalar(dtype)
        else:
            sizes = [int(size) if size.isdigit() else size for size in shape]
            yield name, Tensor(dtype, *sizes, alignment=alignment, written=argument["written"])


def _require_outputs(program: Program, data: Lowered, outputs: tuple[str, ...], where: Where) -> None:
    """Raise a DefinitionError unless the outputs of the definition are those of the function."""
    own = data.outputs
    if own and outputs != own:
        message = (
            f"the outputs of {program.function} are {', '.join(own)}, those of the definition {', '.join(outputs)}"
        )
        listed = ", ".join(f'"{name}"' for name in own)
        raise DefinitionError(message, where, f"write outputs=[{listed}]")
    written = [argument["name"] for argument in data.arguments if argument.get("written")]
    for name in outputs:
        if name not in written:
            message = f"outputs lists {name!r}, and the function does not write it"
            raise DefinitionError(message, where, f"list what it writes: {', '.join(written)}")


def _launch(launch: Mapping[str, Any], maps: list[EncodedMap]) -> DeclaredLaunch:
    passed = {f"p{number}": _passed(value, maps) for number, value in enumerate(launch["passed"])}
    return DeclaredLaunch(
        launch["function"],
        passed,
        list(launch["sizes"].items()),
        _size(launch["shared"]),
        launch["cooperative"],
        launch["dependent"],
    )


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _passed(value: Mapping[str, Any], maps: list[EncodedMap]) -> Passed:
    if "map" in value:
        return maps[int(value["map"])]
    return Given(value["tensor"]) if "tensor" in value else Size(_size(value["size"]), value["dtype"])
