"""Lowers a Source: writes the CUDA source that includes it, and has TVM make the host code that launches it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from ...core.errors import DefinitionError, Where
from ..declared_launch import lower_launches
from ..launches import DeclaredLaunch
from ..sequence import Launches
from ..unit import LoweredKernel, Unit
from .parameters import TYPES, comparisons, entries
from .source import Source
from .struct import structures_in


def lower(returned: Source | Launches[Source], unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Raises:
        DefinitionError: its arguments do not fit, or there is no such file.
        LoweringError: TVM cannot make the host code.
    """
    unit = returned.checked(unit)
    sources = returned.items if isinstance(returned, Launches) else (returned,)
    progress("making host code")
    launches = [
        DeclaredLaunch(
            *(entry, s.arguments, list(s.launch()), s.shared, s.cooperative, s.dependent),
            structures=structures_in(s.parameters),
        )
        for entry, s in zip(entries(sources), sources, strict=True)
    ]
    lowered = lower_launches(returned.declared, launches, unit)
    return replace(lowered, files={**lowered.files, "device.cu": _device_code(sources, unit).encode()})


def _device_code(sources: Sequence[Source], unit: Unit) -> str:
    """The CUDA source: that of the author, comparisons of parameters and arguments, and the pointers to the functions.

    Raises:
        DefinitionError: there is no such file, or a macro has two values.
    """
    texts = [source.text or f"#include {_quoted(_file_of(source, unit))}\n" for source in sources]
    pointers = [
        f'extern "C" __device__ decltype(&{source.function}) {entry} = &{source.function};'
        for entry, source in zip(entries(sources), sources, strict=True)
    ]
    return "\n".join(
        [
            f"// {unit.kernel}/{unit.slug}: {', '.join(source.function for source in sources)}",
            *(f"#define {name} {value}" for name, value in _macros(sources, unit.where).items()),
            *dict.fromkeys(texts),
            TYPES,
            *comparisons(sources, unit),
            *pointers,
            "",
        ]
    )


def _macros(sources: Sequence[Source], where: Where) -> dict[str, str]:
    """The macros of all sources, which are one file to the compiler; raises a DefinitionError if they disagree."""
    macros: dict[str, str] = {}
    for name, value in (pair for source in sources for pair in source.defines.items()):
        if macros.setdefault(name, _macro(value)) != _macro(value):
            message = f"two launches define {name}, as {macros[name]} and as {_macro(value)}"
            raise DefinitionError(message, where, "give both the same value, or make it a parameter of a template")
    return macros


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
