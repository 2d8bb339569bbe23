"""The processes of one build: the workers, and those that run compilers. None is started before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.once import if_made, shared_property

if TYPE_CHECKING:
    from ..define.settings import Settings
    from .pool import WorkerPool
    from .protocol import Request
    from .runner import OtherMachines, ToolRunner


class BuildProcesses:
    """The processes of one build. Several threads may ask for them.

    Arguments:
        top: the project's folder.
        settings: limits of time and memory, and the variables that workers get.
        jobs: says how many processes work at once.
        measurements: gives the file of how much memory compilers took in earlier builds.
        on_output: shows what a definition printed.
        others: gives the machines that can do some runs of compilers, if there are any.
    """

    def __init__(
        self,
        top: Path,
        settings: Settings,
        jobs: Callable[[], int],
        measurements: Callable[[], Path],
        on_output: Callable[[Request[Any], str], None],
        others: Callable[[], OtherMachines | None] = lambda: None,
    ) -> None:
        self._top = top
        self._settings = settings
        self._jobs = jobs
        self._measurements = measurements
        self._on_output = on_output
        self._others = others
        self._variables = dict.fromkeys(settings.environment)
        self._limits = {"pool": settings.worker_timeout, "compilers": settings.tool_timeout}

    @shared_property
    def pool(self) -> WorkerPool:
        """The workers."""
        from .pool import WorkerPool

        pool = WorkerPool(self._jobs(), self._top, self._limits["pool"], on_output=self._on_output)
        pool.variables = tuple(self._variables)
        return pool

    @shared_property
    def compilers(self) -> ToolRunner:
        """What runs the compilers, with a limit for their time and their memory."""
        from .memory import governor_of
        from .runner import ToolRunner

        settings = self._settings
        governor = governor_of(settings.memory_limit, settings.nvcc_memory, self._measurements())
        return ToolRunner(self._jobs(), self._top, self._limits["compilers"], governor, self._others())

    def allow(self, settings: Settings) -> None:
        """Give all requests the time and the variables that one package asks for; packages share the processes."""
        self._variables |= dict.fromkeys(settings.environment)
        if pool := if_made(self, "pool"):
            pool.variables = tuple(self._variables)
        for name, seconds in (("pool", settings.worker_timeout), ("compilers", settings.tool_timeout)):
            self._limits[name] = max(self._limits[name], seconds)
            if processes := if_made(self, name):
                processes.timeout_s = self._limits[name]

    def save(self) -> None:
        """Keep how much memory compilers took, for later builds."""
        if compilers := if_made(self, "compilers"):
            compilers.save()

    def close(self) -> None:
        """End all processes, with everything that they started; requests fail from now on."""
        for name in ("pool", "compilers"):
            if processes := if_made(self, name):
                processes.close()
