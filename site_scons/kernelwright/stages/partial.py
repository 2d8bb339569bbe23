"""``scons --partial``: a package of what is well. What failed is left out, listed in the manifest, and kept as a log.

A stage that fails leaves no outputs. The stages that follow ask here which of their sources are lacking: those of the
same variant are left out as well, and those that put a kernel together take the rest. What lacks something has it in
its fingerprint and is not kept in the build cache, so that a later run never takes it for complete.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.errors import KernelwrightError, printable
from ..core.files import write_atomically
from ..core.pipeline import KINDS
from ..core.private import private_folders, private_pattern
from .stage import Stage

LONGEST = 300
"""Characters that the manifest has of an error."""


class Partial:
    """What failed in this run, and what is not made because of that. Called from several threads.

    Arguments:
        top: the project's folder, which no text in a manifest may name.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._lacking: dict[str, tuple[Stage, ...]] = {}
        self._unmade: set[str] = set()
        self._errors: dict[Stage, KernelwrightError] = {}

    def lacks(self, path: str) -> bool:
        """Whether a file was not made."""
        return path in self._lacking

    def lacking(self, stage: Stage) -> list[list[Any]]:
        """The sources of a stage that were not made, and why, for its fingerprint."""
        lacking = [path for path in stage.sources if path in self._lacking]
        return [[os.path.relpath(path, self._top), self.behind([path])] for path in lacking]

    def behind(self, paths: Iterable[str]) -> list[dict[str, Any]]:
        """The failures because of which some files were not made, as the manifest lists them.

        A stage may put no others into what it makes: only these are in its fingerprint.
        """
        return self.gaps(self._causes(paths))

    def _causes(self, paths: Iterable[str]) -> tuple[Stage, ...]:
        return tuple(dict.fromkeys(cause for path in paths for cause in self._lacking.get(path, ())))

    def skips(self, stage: Stage) -> bool:
        """Whether a stage cannot be done without the sources that it lacks; then its outputs are lacking, too."""
        lacking = self.lacking(stage)
        enough = not lacking if stage.rest is None else stage.rest()
        if not enough or any(path in self._unmade for path in stage.sources):
            self._leave_out(stage, self._causes(stage.sources))
            return True
        stage.cacheable = stage.cacheable and not lacking
        return False

    def tolerates(self, stage: Stage, error: KernelwrightError) -> bool:
        """Whether the run can do without a stage that failed. Then the error is kept in a file."""
        if not (KINDS[stage.label].tolerated and stage.shipped) or stage.logs is None:
            return False
        self._errors[stage] = error
        self._leave_out(stage, (stage,))
        with contextlib.suppress(OSError):  # it is shown, and the manifest has its first line
            write_atomically(log_of(stage, stage.logs), f"{error}\n")
        return True

    def _leave_out(self, stage: Stage, causes: tuple[Stage, ...]) -> None:
        if not KINDS[stage.label].of_variant:
            self._unmade.update(stage.paths)
        self._lacking.update(dict.fromkeys(stage.paths, causes))

    def _first_line(self, error: KernelwrightError) -> str:
        return self._public(next(iter(error.message.splitlines()), ""))[:LONGEST]

    def _public(self, text: str) -> str:
        """A text without folders of this machine, of which no wheel may tell."""
        text = text.replace(f"{self._top}/", "")
        return private_pattern(private_folders(self._top)).sub(b"...", os.fsencode(text)).decode("utf-8", "replace")

    def logs(self, stages: Iterable[Stage]) -> set[str]:
        """The files that keep the errors of those of some stages that failed."""
        return {str(log_of(stage, stage.logs)) for stage in stages if stage in self._errors and stage.logs}

    def gaps(self, stages: Iterable[Stage]) -> list[dict[str, Any]]:
        """What is missing because some of these stages failed, as the manifest lists it."""
        failed = [stage for stage in stages if stage in self._errors]
        return [self._gap(stage, *user) for stage in failed for user in _users(stage)]

    def _gap(self, stage: Stage, kernel: str | None, location: str | None) -> dict[str, Any]:
        error = self._errors[stage]
        gap = {
            "kernel": kernel or error.where.kernel,
            "variant": stage.where.variant,
            "archs": list(stage.archs),
            "stage": error.where.stage or stage.label.lower(),
            "location": self._public(printable((location if stage.users else error.where.location) or location or "")),
            "error": self._first_line(error),
        }
        return {name: value for name, value in gap.items() if value}


def _users(stage: Stage) -> Iterable[tuple[str | None, str | None]]:
    """The kernels that cannot be made without a stage, and where they are declared."""
    return stage.users.items() or [(stage.where.kernel, stage.where.location)]


def log_of(stage: Stage, folder: Path) -> Path:
    """The file that keeps the error of a stage."""
    return folder / (re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"{stage.label.lower()} {stage.subject}")[:200] + ".txt")
