"""A stage as an SCons action: its fingerprint as SCons's signature, its errors, and its progress."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import SCons.Errors

from ..core.errors import KernelwrightError
from ..core.files import canonical_json
from ..stages.execution import attempt
from ..stages.stage import Stage
from .command_line import is_passive
from .compat import ActionBase, fail_at_the_end

if TYPE_CHECKING:
    from .run import BuildRun


class StageAction(ActionBase):  # type: ignore[misc]
    """Runs a stage in one of SCons's threads.

    SCons's own FunctionAction would take the function's bytecode as its signature, which changes with the Python
    version and misses every helper that the function calls.
    """

    def __init__(self, stage: Stage, run: BuildRun) -> None:
        super().__init__()
        self.stage = stage
        self.run = run

    def __str__(self) -> str:
        return self.stage.line

    def __hash__(self) -> int:
        return id(self)

    def get_presig(self, target: Any, source: Any, env: Any, executor: Any = None) -> bytes:
        """The stage's fingerprint; in a partial build also the sources that the stage lacks."""
        lacking = self.run.partial.lacking(self.stage) if self.run.partial else []
        fingerprint = self.stage.fingerprint
        return (canonical_json([fingerprint, lacking]) if lacking else fingerprint).encode()

    def get_implicit_deps(self, target: Any, source: Any, env: Any, executor: Any = None) -> list[Any]:
        """None: every dependency of a stage is one of its sources, or in its fingerprint."""
        return []

    def strfunction(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:
        """The progress line."""
        return self.stage.line

    def print_cmd_line(self, text: str, target: Any, source: Any, env: Any) -> None:
        """Show the line with ``-n``; otherwise it is shown when it is known whether the cache has the outputs."""
        if is_passive():
            self.run.started(text)

    def execute(self, target: Any, source: Any, env: Any, executor: Any = None) -> Any:
        """Make the outputs; None, or a BuildError that shows the whole message."""
        run, stage = self.run, self.stage
        if run.partial and run.partial.skips(stage):
            run.journal.forget(stage.paths)
            return None
        start = time.monotonic()
        problem = attempt(stage, run) or run.shards.not_kept(stage)
        self._note_time(start, problem is not None)
        if problem is not None:
            return self._failed(problem)
        run.progress.finished(stage.line)
        return None

    def _note_time(self, start: float, failed: bool) -> None:
        """Put the stage, which ran just now, into the timeline."""
        stage, where, measured = self.stage, self.stage.where, self.stage.measured
        self.run.trace.span(
            stage.label,
            stage.subject,
            start,
            time.monotonic(),
            cached=stage.cached,
            failed=failed,
            cpu_seconds=measured.cpu_seconds,
            peak_kib=measured.peak_kib,
            kernel=where.kernel,
            variant=where.variant,
            arch=stage.arch or None,
        )

    def _failed(self, error: KernelwrightError) -> Any:
        run, stage = self.run, self.stage
        outcome, node = run.outcome, run.nodes.node_of(stage)
        outcome.failed(stage, error)
        if run.partial and run.partial.tolerates(stage, error):
            sys.stderr.write(f"scons: *** [{node}] {outcome.text_of(error)}\n")
            fail_at_the_end()
            run.journal.forget(stage.paths)
            return None
        return SCons.Errors.BuildError(node=node, errstr=outcome.text_of(error), status=2, exitstatus=2, action=self)
