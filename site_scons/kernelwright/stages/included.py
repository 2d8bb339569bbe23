"""The files that a run of a CUDA compiler depends on besides its source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.dependencies import EDITED, dependency_name, path_of, present_digest
from ..toolchain.headers import sought_in_vain
from ..toolchain.host_code import ObjectJob
from ..toolchain.nvcc_run import DeviceJob


def included(
    top: Path, headers: Iterable[str], job: DeviceJob | ObjectJob, begun: int, *sources: Path
) -> dict[str, str]:
    """The headers that a run has read, and those that it looked for in vain, with their digests.

    Arguments:
        top: the project's folder.
        headers: names as ``CompiledCode.headers`` has them.
        job: what was run.
        begun: when it began, in nanoseconds; what was edited since may have been read before, and is no known file.
        sources: what stages have made, and what includes headers. Nobody puts headers into the folders of these.
    """
    paths = {name: path_of(top, name) for name in headers}
    read = {n: EDITED if _is_edited(path, begun) else present_digest(top, n) for n, path in paths.items()}
    vain = sought_in_vain({*sources, *paths.values()}, job.flags, job.folder, top, job.packages, begun)
    made = tuple(f"{dependency_name(source.parent, top, {})}/" for source in sources)
    return {**{name: "" for name in vain if not name.startswith(made)}, **read}


def _is_edited(path: Path, begun: int) -> bool:
    try:
        return path.stat().st_ctime_ns > begun
    except OSError:
        return False
