"""A stage that is being run: what its function works with besides its request. Nothing here decides what is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import KernelwrightError, Where
from .context import whole
from .runs import Services, lacks

if TYPE_CHECKING:
    from ..backends.files import VariantFiles
    from ..processes.tools import Elsewhere, RunsTools, ToolResult
    from ..toolchain.nvcc_run import CompiledCode
    from .stage import Stage


@dataclass(frozen=True)
class StageRun:
    """What the function of a stage works with.

    Arguments:
        run: what runs it.
        stage: the stage; its sources are read, and what it took is noted in it.
    """

    run: Services
    stage: Stage

    @property
    def where(self) -> Where:
        """The place for error messages."""
        return self.stage.where

    @property
    def tools(self) -> RunsTools:
        """What runs compilers."""
        return self.run.compilers

    @property
    def sources(self) -> list[str]:
        """The sources that there are: all, but for a run that goes on without what fails."""
        return [path for path in self.stage.sources if not lacks(self.run, path)]

    @property
    def late(self) -> Any:
        """What is known only now that everything is done that the stage waits for."""
        return self.stage.late() if self.stage.late else None

    @property
    def gaps(self) -> list[dict[str, Any]]:
        """The failures because of which sources are lacking; see :meth:`.partial.Partial.behind`."""
        return self.run.partial.behind(self.stage.sources) if self.run.partial else []

    def whole(self, variants: tuple[VariantFiles, ...]) -> tuple[VariantFiles, ...]:
        """The variants with what was made of them; see :func:`.context.whole`."""
        return whole(self.run, variants)

    def took(self, *results: ToolResult) -> None:
        """Note what runs of tools took."""
        self.stage.measured.add(sum(done.cpu_seconds for done in results), max(done.peak_kib for done in results))

    def tool(
        self,
        command: list[str],
        folder: Path,
        scratch: Path,
        remedy: str,
        *,
        kind: str,
        elsewhere: Elsewhere | None = None,
        called: str = "",
    ) -> None:
        """Run a tool for the stage, and note what it took.

        Raises:
            KernelwrightError: as :meth:`ToolRunner.run`.
        """
        # Imported here, because a run with nothing to do runs no tools.
        from ..processes.tools import ToolCall

        about: Any = {"kind": kind, "subject": self.stage.subject, "elsewhere": elsewhere, "called": called}
        self.took(self.tools.run(ToolCall(command, folder, scratch, self.where, remedy, **about)))

    def compiled(self, done: CompiledCode) -> None:
        """Note what the run of a CUDA compiler took, and tell what there is to say about it."""
        self.took(done.result)
        for note in done.notes:
            self.run.note_once(f"kernelwright: {note}")

    def asked(self, request: Any) -> Any:
        """What a worker answers to a request. The files that it depends on are remembered.

        Raises:
            KernelwrightError: the worker says so, or it has executed something else than what was discovered.
        """
        if self.stage.ask is None:
            raise KernelwrightError(f"{self.stage.label} has nobody to ask", self.where, "report this as a defect")
        result = self.stage.ask(request, self.where)
        self.stage.remember(result.dependencies)
        self.stage.measured.cpu_seconds = getattr(result, "cpu_seconds", None)
        return result
