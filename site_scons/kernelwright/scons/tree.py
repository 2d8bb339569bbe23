"""The tree that a run works in: its lock, the folders that builds write into, and what is known of their files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from ..core.errors import KernelwrightError, Where
from ..core.files import linked_folder, open_lock, remove_stale_scratch
from ..core.once import shared_property
from ..stages.execution import remove, tell_of_alteration
from ..state.journal import Journal


class Tree:
    """The tree below one top folder.

    Arguments:
        top: the folder of the top SConstruct.
        note: shows a line.
        verify: whether outputs are compared by content each time, and not by their times and sizes.
    """

    def __init__(self, top: Path, note: Callable[[str], None], verify: bool) -> None:
        self.top = top
        self.state = top / "build" / ".kernelwright"
        self.discovery = self.state / "discovery"
        self.bases = {str(top / "build")}
        self._note = note
        self._verify = verify
        self._lock: TextIO | None = None
        self._checked: set[str] = set()

    @shared_property
    def journal(self) -> Journal:
        """SCons's signatures and the contents of the outputs."""
        return Journal(self.state / "journal", self.top, verify=self._verify)

    @property
    def _records(self) -> list[Path]:
        """The folders of what this run keeps for the next one, and of what it works on."""
        names = ("scratch", "discovery", "journal", "settled", "pch", "headers")
        return [self.state / name for name in names]

    def lock(self, wait: bool) -> None:
        """Take the tree for this run; the lock ends with the process, however it ends.

        Arguments:
            wait: whether to wait for another scons that works in this tree.

        Raises:
            KernelwrightError: another scons works in it, and ``wait`` is false; or a folder of records is a link.
        """
        if self._lock is not None:
            return
        self.require_folders(str(folder) for folder in self._records)
        lock = os.fdopen(open_lock(self.state / "lock"), "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                remedy = "wait for it to end, or leave --no-wait out"
                raise KernelwrightError("another scons works in this tree", Where(stage="settings"), remedy) from None
            self._note("kernelwright: another scons works in this tree, waiting for it to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock
        self.journal.writable = True

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock. A process that has it as well keeps the tree locked until it ends."""
        assert self._lock is not None
        return self._lock.fileno()

    def require_folders(self, folders: Iterable[str]) -> None:
        """Raise a KernelwrightError if a folder of outputs is a link: builds must not change what it leads to.

        Arguments:
            folders: absolute paths. They need not exist yet, and those outside of all build folders are not looked at.
        """
        for folder in dict.fromkeys(folders):
            base = min((base for base in self.bases if folder.startswith(base + os.sep)), key=len, default="")
            if base and (link := linked_folder(base, folder)):
                message = f"{os.path.relpath(link, self.top)} is a symbolic link, where builds have a folder"
                remedy = f"remove the link; only {os.path.relpath(base, self.top)} itself may be one"
                raise KernelwrightError(message, Where(stage="settings"), remedy)

    def prepare(self, outputs: list[str], logs: str) -> None:
        """Remove the outputs of a stage that somebody changed, before SCons looks at them: then it makes them again.

        Arguments:
            logs: a file in the folder of the stage's logs.

        Raises:
            KernelwrightError: the folder of an output is a link.
        """
        folders = {os.path.dirname(path) for path in (*outputs, logs)} - self._checked  # noqa: PTH120
        self.require_folders(folders)
        self._checked |= folders
        for path in outputs:
            if os.path.exists(path) and not self.journal.intact(path):  # noqa: PTH110
                # Nothing is told of an output that no finished stage made: it is left from a run that was killed.
                if self.journal.output(path) is not None:
                    tell_of_alteration(path, self.top, self._note)
                remove(path)

    def sweep(self) -> None:
        """Remove what killed runs have left of their work."""
        for folder in (self.state.parent, self.state, *self._records):
            remove_stale_scratch(folder)
