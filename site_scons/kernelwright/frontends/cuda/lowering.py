"""Lowers a Source: writes the CUDA source that includes it, and has TVM make the host code that launches it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from ...core.entry_name import ENTRY
from ...core.errors import DefinitionError
from ..declared_launch import lower_launch
from ..launches import DeclaredLaunch
from ..unit import LoweredKernel, Unit
from .parameters import TYPES, comparisons
from .source import Source


def lower(source: Source, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Raises:
        DefinitionError: its arguments do not fit, or there is no such file.
        LoweringError: TVM cannot make the host code.
    """
    unit = source.checked(unit)
    progress("making host code")
    sizes = list(source.launch())
    launch = DeclaredLaunch(ENTRY, source.arguments, sizes, source.shared, source.cooperative, source.dependent)
    lowered = lower_launch(launch, unit)
    return replace(lowered, files={**lowered.files, "device.cu": _device_code(source, unit).encode()})


def _device_code(source: Source, unit: Unit) -> str:
    """The CUDA source: that of the author, comparisons of parameters and arguments, and the pointer to the function.

    Raises:
        DefinitionError: there is no such file.
    """
    text = source.text or f"#include {_quoted(_file_of(source, unit))}\n"
    defines = [f"#define {name} {_macro(value)}" for name, value in source.defines.items()]
    return "\n".join(
        [
            f"// {unit.kernel}/{unit.slug}: {source.function}",
            *defines,
            text,
            TYPES,
            f"using kw_function = kw_function_of<decltype(&{source.function})>;",
            *comparisons(source, unit),
            f'extern "C" __device__ decltype(&{source.function}) {ENTRY} = &{source.function};',
            "",
        ]
    )


def _file_of(source: Source, unit: Unit) -> str:
    """The path that a source includes: as the definition has it, because the compiler looks into its folder."""
    path = PurePath(os.fspath(source.source))
    folder = Path(unit.location.rpartition(":")[0]).parent
    if not (folder / path).is_file():
        remedy = f"give a path relative to {folder.as_posix()}, or the source itself, in several lines"
        raise DefinitionError(f"there is no file {path.as_posix()!r} beside the definition", unit.where, remedy)
    return path.as_posix()


def _quoted(path: str) -> str:
    return f'"{path}"'


def _macro(value: bool | int | float | str) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
