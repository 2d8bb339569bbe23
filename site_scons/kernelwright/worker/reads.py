"""What a definition reads or looks for in vain, with the digest of what it used, as far as it has been noted.

Two modules see what it does: ``events`` what it opens, lists and starts, and ``questions`` what it asks without opening
anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..core.dependencies import present_digest
from ..core.files import OUTPUT_FOLDERS
from ..core.project import Installation, Project
from .patterns import pattern_files
from .strict import Finding, Findings, Strict


@dataclass
class Reads:
    """What a definition has read so far.

    Arguments:
        strict: whether to note also what strict mode does not allow.
        files: what it depends on: name as for ``dependency_digest`` -> digest of what was used.
        modules: names of the files that were imported.
        declared: names of the files that it says it reads.
        recorded: project files that ``recorded()`` looked for -> digest of what was used. Which configs there are
            depends on them, and what a variant is lowered to does not.
        made: paths of files and folders that it made itself: what is in them is no input.
        findings: what it did since its last call began that strict mode does not allow.
        outside: what it did without strict mode and what no digest can tell: for others it may be another thing.
        variables: the variables of the environment that it asked for.
        absent: those that it asked for itself, and that are not set where the build was started.
        refused: the first thing that it did and may not do in any mode; its code may have swallowed the exception.
        by_tool: whether the compiler of a front end calls it. What that does by itself is a part of its identity.
    """

    strict: bool = False
    files: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    recorded: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    findings: Findings = field(default_factory=dict)
    outside: Findings = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    refused: Finding | None = None
    by_tool: bool = False

    def has_made(self, path: str) -> bool:
        """Whether the definition made a file itself, or the folder that it is in."""
        parent = os.path.dirname(path)  # noqa: PTH120
        return bool(self.made) and (path in self.made or (parent != path and self.has_made(parent)))


class _Own(threading.local):
    """Whether this thread is in our own code, whose reads are not the definition's."""

    busy = False


class ReadRecorder:
    """Notes what a definition uses. There must be one object of this class in a process.

    Arguments:
        project, installation: tell which files are the user's, and which are installed.
        strict: judges what a strict definition does.
    """

    def __init__(self, project: Project, installation: Installation, strict: Strict) -> None:
        self._project = project
        self._installation = installation
        self._root = Path(project.root)
        self._strict = strict
        self._reads: Reads | None = None
        self._own = _Own()

    @contextlib.contextmanager
    def recording(self, reads: Reads) -> Iterator[None]:
        """Note what happens in this block."""
        self._reads = reads
        try:
            yield
        finally:
            self._reads = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[Reads | None]:
        """Where to note something; None: nothing is recorded, or our own code does it. What this block does is ours."""
        if self._own.busy:
            yield None
            return
        self._own.busy = True
        try:
            yield self._reads
        finally:
            self._own.busy = False

    def name_of(self, path: str) -> str | None:
        """The name of a file of the user's, wherever it lies; see :meth:`core.project.Project.name`."""
        return self._project.name(path, self._installation)

    def used_name(self, reads: Reads, full: str) -> str | None:
        """The name of a file or folder of the user's that is being used.

        None also for what is outside of the project and is the affair of others: an installed module reads it while it
        is imported, or the compiler of a front end does.
        """
        name = self.name_of(full)
        is_own = name is None or not _is_outside(name) or (self.counts(reads) and self._strict.is_own_doing())
        return name if is_own else None

    def counts(self, reads: Reads) -> bool:
        """Whether what is done outside of the project is the definition's own doing."""
        return not reads.by_tool or self._strict.is_by_project()

    def beyond(self, reads: Reads) -> Findings:
        """Where what is done outside of the project is noted."""
        if reads.strict:
            return reads.findings
        return reads.outside if self.counts(reads) else {}

    def note(self, reads: Reads, name: str) -> None:
        """Note what is there now, unless it is noted already."""
        if name not in reads.files:
            with self.noting():
                reads.files[name] = present_digest(self._root, name)

    def note_listing(self, reads: Reads, name: str) -> None:
        """Note the names in a folder, if they count."""
        parts = name.split("/")
        hidden = any(part.startswith(".") for part in parts if part not in (".", ".."))
        if _is_outside(name) or (parts[0] not in OUTPUT_FOLDERS and not hidden):
            self.note(reads, name + "/")

    def note_module(self, path: str, content: bytes) -> None:
        """Note a module with the content that is being used."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self._reads.files[name] = hashlib.sha256(content).hexdigest()
            self._reads.modules.add(name)

    def note_candidate(self, path: str) -> None:
        """Note a file, or with a slash at the end a folder, that an import asks for, whether or not it is there."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self.note(self._reads, name + "/" if path.endswith(os.sep) else name)
            if self._reads.files.get(name):
                self._reads.modules.add(name)

    def note_declared(self, pattern: str) -> None:
        """Note the files that a definition says it reads: a pattern relative to the project root, or absolute."""
        with self.noting() as reads:
            if reads is not None:
                parts = pattern.split("/")
                found = pattern_files(self._root, *((".", parts) if parts[0] else ("/", parts[1:])))
                names = [self._canonical(name) for name in found]
                for name in names:
                    self.note(reads, name)
                reads.declared.update(names)

    def _canonical(self, name: str) -> str:
        """The name that a file has when it is read, given another one that leads to it."""
        path = os.path.normpath(os.path.join(self._root, name))  # noqa: PTH118
        return (self.name_of(path) or name.rstrip("/")) + ("/" if name.endswith("/") else "")


def _is_outside(name: str) -> bool:
    """Whether a name is that of a file outside of the project."""
    return name.startswith(("/", "../")) or name == ".."


__all__ = ["ReadRecorder", "Reads"]
