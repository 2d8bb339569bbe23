"""What the stages of one compile run in: the second implementation of ``stages.runs.Run``, without SCons."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..processes.tools import RunsTools, ToolCall, ToolResult
from ..state.journal import Journal

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from ..stages.partial import Partial
    from ..state.cache import BuildCache
    from .session import Session


class OnDemandRun:
    """One compile. Its outputs are in a scratch folder, so nothing of an earlier run is there.

    Arguments:
        session: workers, compilers and caches.
        note: shows a line.
    """

    strict = False
    partial: Partial | None = None

    def __init__(self, session: Session, note: Callable[[str], None]) -> None:
        self.top = session.root
        self.state, self.discovery = session.state, session.discovery
        self.journal = Journal(session.state / "journal", self.top)
        self.session = session
        self.note = note
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    @property
    def pool(self) -> WorkerPool:
        """The workers."""
        return self.session.pool

    @property
    def compilers(self) -> RunsTools:
        """What runs compilers; if the session is verbose, it shows what it does."""
        compilers = self.session.compilers
        return Shown(compilers, self.note) if self.session.verbose else compilers

    @property
    def cache(self) -> BuildCache | None:
        """The cache of finished stages."""
        return self.session.stages

    def note_once(self, text: str) -> None:
        """Show a line unless this compile has shown it."""
        with self._lock:
            is_new = text not in self._noted
            self._noted.add(text)
        if is_new:
            self.note(text)

    def started(self, line: str) -> None:
        """Show that a stage begins, or comes out of the cache."""
        if self.session.verbose:
            self.note(line)

    def require_folders(self, folders: Iterable[str]) -> None:
        """Not needed: nobody else has put anything into the scratch folder."""


class Shown:
    """Runs tools, and shows their commands and what they print.

    Arguments:
        tools: what runs them.
        note: shows a line.
    """

    def __init__(self, tools: RunsTools, note: Callable[[str], None]) -> None:
        self._tools = tools
        self._note = note

    @property
    def project_root(self) -> Path:
        """The folder of the project."""
        return self._tools.project_root

    def run(self, call: ToolCall) -> ToolResult:
        """Run a tool; see ``ToolRunner.run``."""
        self._note(f"$ cd {shlex.quote(str(call.folder))} && {shlex.join(call.command)}")
        result = self._tools.run(call)
        if result.output.strip():
            self._note(result.output.rstrip())
        return result
