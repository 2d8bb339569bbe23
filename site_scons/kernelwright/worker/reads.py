"""Notes what a definition reads, and what it looks for and does not find, with digests of the contents that it used.

Two modules see what it does: ``events`` sees what it opens, lists and starts, and ``questions`` what it asks without
opening anything.
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
from .check_functions import CheckFunctions
from .patterns import pattern_files
from .strict import Finding, Findings, Strict


@dataclass
class Reads:
    """What a definition has read so far.

    Arguments:
        strict: whether strict mode holds, so that what it does not allow goes into ``findings``.
        files: what it depends on: name as for ``dependency_digest`` -> digest of what was used.
        modules: names of the files that were imported.
        declared: names of the files that it declares.
        recorded: project files that ``recorded()`` looked for -> digest of what was used. They decide which configs
            there are, but not what a variant is lowered to.
        made: paths of files and folders that it made itself: what is in them is no input.
        findings: what it did against strict mode since its last call began.
        outside: what it did without strict mode and whose result no digest covers: it may differ on other machines.
        variables: the environment variables that it asked for.
        absent: the variables that its own code asked for, and that are not set where the build was started.
        refused: the first thing that it did and that no mode allows; its code may have caught the exception.
        by_tool: whether the compiler of a front end calls it. What the compiler does by itself is a part of the
            compiler's identity.
        reads_itself: whether it has looked into its own file.
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
    reads_itself: bool = False

    def has_made(self, path: str) -> bool:
        """Whether the definition made a file itself, or the folder that it is in."""
        parent = os.path.dirname(path)  # noqa: PTH120
        return bool(self.made) and (path in self.made or (parent != path and self.has_made(parent)))


class _Own(threading.local):
    """Whether this thread is in our own code, whose reads are not the definition's."""

    busy = False


class ReadRecorder:
    """Notes what a definition uses. A process must have only one object of this class.

    Arguments:
        project, installation: tell which files are the user's, and which are installed.
        strict: judges what a strict definition does.

    ``own`` is the name of the definition file itself, and ``functions`` those of it that only checks call.
    """

    def __init__(self, project: Project, installation: Installation, strict: Strict) -> None:
        self.own = ""
        self.functions: CheckFunctions | None = None
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
        """Where to note something; None: nothing is recorded, or our own code did it. The block counts as our code."""
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

        None also for what is outside of the project, if an installed module uses it while it is imported, or if the
        compiler of a front end does by itself.
        """
        name = self.name_of(full)
        is_own = name is None or not _is_outside(name) or (self.counts(reads) and self._strict.is_own_doing())
        return name if is_own else None

    def counts(self, reads: Reads) -> bool:
        """Whether the definition does what happens outside of the project, and not a front end's compiler by itself."""
        return not reads.by_tool or self._strict.is_by_project()

    def beyond(self, reads: Reads) -> Findings:
        """Where to note what is done outside of the project."""
        if not self.counts(reads):
            return {}
        return reads.findings if reads.strict else reads.outside

    def note(self, reads: Reads, name: str) -> None:
        """Note the present digest of a name, unless the name is noted already."""
        if name not in reads.files:
            with self.noting():
                reads.files[name] = present_digest(self._root, name)

    def note_content(self, reads: Reads, name: str) -> None:
        """Note a file that is looked into, or may be, and not imported."""
        reads.reads_itself = reads.reads_itself or name == self.own
        self.note(reads, name)

    def note_listing(self, reads: Reads, name: str) -> None:
        """Note the names in a folder, if they count."""
        parts = name.split("/")
        hidden = any(part.startswith(".") for part in parts if part not in (".", ".."))
        if _is_outside(name) or (parts[0] not in OUTPUT_FOLDERS and not hidden):
            self.note(reads, name + "/")

    def note_module(self, path: str, content: bytes) -> str | None:
        """Note a module with the digest of its content, and return the text that is compiled; None: the content."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self._reads.files[name] = hashlib.sha256(content).hexdigest()
            self._reads.modules.add(name)
        if name != self.own:
            return None
        self.functions = CheckFunctions(path, content)
        return self.functions.text

    def note_candidate(self, path: str) -> None:
        """Note a file, or with a slash at the end a folder, that an import asks for, whether or not it is there."""
        name = self.name_of(path)
        if name is not None and self._reads is not None:
            self.note(self._reads, name + "/" if path.endswith(os.sep) else name)
            if self._reads.files.get(name):
                self._reads.modules.add(name)

    def note_declared(self, pattern: str) -> None:
        """Note the files that a definition declares: a pattern relative to the project root, or absolute."""
        with self.noting() as reads:
            if reads is not None:
                parts = pattern.split("/")
                matches = pattern_files(self._root, *((".", parts) if parts[0] else ("/", parts[1:])))
                names = [self._canonical(name) for name in matches]
                for name in names:
                    self.note_content(reads, name)
                reads.declared.update(names)

    def _canonical(self, name: str) -> str:
        """The name that is noted when a file is read, given any name that leads to the file."""
        path = os.path.normpath(os.path.join(self._root, name))  # noqa: PTH118
        return (self.name_of(path) or name.rstrip("/")) + ("/" if name.endswith("/") else "")


def _is_outside(name: str) -> bool:
    """Whether a name is that of a file outside of the project."""
    return name.startswith(("/", "../")) or name == ".."


__all__ = ["ReadRecorder", "Reads"]
