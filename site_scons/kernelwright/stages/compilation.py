"""What the stages that run a CUDA compiler have in common: a job, and the headers that it turns out to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from ..core.dependencies import EDITED, dependency_name, path_of, present_digest
from ..core.request import ASIDE
from ..core.surroundings import FOLDER
from ..toolchain.headers import sought_in_vain
from ..toolchain.host_code import ObjectJob
from ..toolchain.nvcc_run import CompiledCode, DeviceJob
from ..toolchain.plain_flags import ALL, DEBUG, has_debug_information
from .context import require_folders, require_no_device_linker
from .stage_run import StageRun

AnyJob = TypeVar("AnyJob", bound=DeviceJob | ObjectJob)


@dataclass(frozen=True)
class Compilation(Generic[AnyJob]):
    """How one source is compiled.

    Arguments:
        job: what is compiled, with stand-ins for paths of this machine.
        real: the same with those paths.
        folders: folders of headers by their names among ``includes``, but for those in packages.
        place: the folder that it is compiled in, if the compiler writes that into its output, which counts only there
            then; else empty.
    """

    job: AnyJob
    real: AnyJob = field(metadata=ASIDE)
    folders: Mapping[str, Path] = field(metadata=ASIDE)
    place: str

    @property
    def arch(self) -> str:
        """The arch that code is made for, if that is one."""
        return getattr(self.job, "arch", "")

    @staticmethod
    def place_in(folder: Path, flags: Sequence[str], parted: bool) -> str:
        """The value of ``place``.

        Arguments:
            parted: whether nvcc's programs are run one by one, and lines of sources are given portable names.
        """
        return str(folder) if has_debug_information(flags, ALL if parted else DEBUG) else ""

    def outside(self, top: Path) -> dict[str, str]:
        """The value of ``outside`` of the stage: the project's folder, if the output counts only there.

        Arguments:
            top: that folder.
        """
        return {FOLDER: present_digest(top, FOLDER)} if self.place else {}

    def require_sound(self, top: Path) -> None:
        """Raise a DefinitionError if a folder of headers cannot be taken, or a flag asks for a device linker.

        Arguments:
            top: the project's folder.
        """
        require_folders(self.folders, top, self.real.where)
        require_no_device_linker(self.real.flags, self.real.where)

    def note(self, done: CompiledCode, begun: int, stage: StageRun, *sources: Path) -> None:
        """Note what a run took, and what it has read since it began, in nanoseconds.

        Arguments:
            sources: as of :func:`included`.
        """
        stage.compiled(done)
        stage.stage.remember(included(stage.run.top, done.headers, self.real, begun, *sources))


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
    generated = tuple(f"{dependency_name(source.parent, top, {})}/" for source in sources)
    return {**{name: "" for name in vain if not name.startswith(generated)}, **read}


def _is_edited(path: Path, begun: int) -> bool:
    try:
        return path.stat().st_ctime_ns > begun
    except OSError:
        return False
