"""Checks the paths of a kernel's sources with host code, and of its folders of headers."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, Where

ENDINGS = (".cu", ".cc", ".cpp", ".cxx")
"""Endings of files that nvcc compiles."""

BESIDE = "give paths relative to the folder of the definition file"


def check_sources(sources: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for a name that is not one of a source beside the definition."""
    for source in sources:
        if not is_relative(source.removeprefix(IN_PACKAGE)) or not source.endswith(ENDINGS):
            message = f"sources contains {source!r}, which is no path of a source"
            raise DefinitionError(message, where, f"{BESIDE}, of files that end in {', '.join(ENDINGS)}")


def check_includes(includes: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for a name that is not one of a folder of headers."""
    for folder in includes:
        if not is_relative(folder.removeprefix(IN_PACKAGE)):
            message = f"includes contains {folder!r}, which is no path of a folder"
            raise DefinitionError(
                message, where, f'{BESIDE}, or in an installed package: "{IN_PACKAGE}cutlass/include"'
            )


def is_relative(path: str) -> bool:
    """Whether a path is a relative one that commands can have: those of nvcc are read by a shell."""
    return bool(path.strip("/. ")) and path[0] not in "/-" and not set(path) & set('\0\n$`"\\')
