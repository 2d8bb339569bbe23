"""The files that a run of a CUDA compiler depends on besides its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..compilers.headers import sought_in_vain
from ..core.files import dependency_digest

EDITED = "edited while it was read"
"""In place of the digest of a file; no file has it, so that what was made of it is made again."""


def included(top: Path, headers: Iterable[str], flags: Sequence[str], folder: Path, begun: int) -> dict[str, str]:
    """The headers that a run has read, and those that it looked for in vain, with their digests.

    Arguments:
        top: the project's folder.
        headers: paths as ``CompiledCode.headers`` has them.
        flags, folder: of the run.
        begun: when it began, in nanoseconds; what was edited since may have been read before, and is no known file.
    """
    paths = {name: top / name for name in headers}
    read = {n: EDITED if _is_edited(path, begun) else dependency_digest(top, n) for n, path in paths.items()}
    return {**dict.fromkeys(sought_in_vain(paths.values(), flags, folder, top), ""), **read}


def _is_edited(path: Path, begun: int) -> bool:
    try:
        return path.stat().st_ctime_ns > begun
    except OSError:
        return False
