"""What stages ask of whatever runs them, which is a run of SCons or a compile on demand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from ..processes.tools import RunsTools
    from ..state.cache import BuildCache
    from ..state.journal import Journal
    from .partial import Partial


class Services(Protocol):
    """What the function of a stage works with. It is called from several threads."""

    top: Path
    """The project's folder."""
    state: Path
    """The folder of what the build keeps for the next one."""
    partial: Partial | None
    """What failed, if the run goes on without it."""

    @property
    def compilers(self) -> RunsTools:
        """What runs compilers."""

    @property
    def pool(self) -> WorkerPool:
        """The workers."""

    def note(self, text: str) -> None:
        """Show a line."""

    def note_once(self, text: str) -> None:
        """Show a line unless this run has shown it."""

    def require_folders(self, folders: Iterable[str]) -> None:
        """Raise a KernelwrightError if a folder of outputs is a link."""


class Engine(Services, Protocol):
    """What a stage is looked up, run and noted with; see :mod:`.execution`."""

    @property
    def journal(self) -> Journal:
        """What is known of the outputs of stages."""

    @property
    def cache(self) -> BuildCache | None:
        """The build cache, if there is one."""

    def started(self, line: str) -> None:
        """Show that a stage begins."""


class Run(Engine, Protocol):
    """What the stages of a package and of a kernel are made with."""

    strict: bool
    """Whether it is an error that a definition reads what it does not declare."""

    @property
    def discovery(self) -> Path:
        """The folder of the records of definition files."""


def lacks(run: Services, path: str | None) -> bool:
    """Whether a file was not made, and the run went on without it."""
    return run.partial is not None and path is not None and run.partial.lacks(path)
