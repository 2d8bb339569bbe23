"""``scons --partial``: a package of what is well. What failed is left out, listed in the manifest, and kept as a log.

SCons makes nothing of sources that failed. So with ``--partial`` a stage that fails ends well as far as SCons is
concerned, and leaves no outputs. The stages that follow ask here which of their sources are lacking: those of the same
variant are left out as well, and those that put a kernel together take the rest. What lacks something has it in its
signature and is not kept in the build cache, so that a later run never takes it for complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Script
import SCons.Script.Main

from ..core.errors import KernelwrightError, printable
from ..core.files import write_atomically
from ..core.private import private_folders, private_pattern

if TYPE_CHECKING:
    from .stage import Stage

OF_VARIANT = ("LOWER", "CUBIN", "PTX", "FATBIN")
"""Stages that make code of one variant: a kernel can do without."""

TOLERATED = ("DISCOVER", *OF_VARIANT, "WRAP", "CC", "EXT", "ENTRY", "LINK")
"""Stages that may fail: without the others there is no package."""

LONGEST = 300
"""Characters that the manifest has of an error."""


class Partial:
    """What failed in this run, and what is not made because of that. Called from several threads.

    Arguments:
        top: the project's folder, which no text in a manifest may name.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._lacking: dict[Any, tuple[Stage, ...]] = {}
        self._unmade: set[Any] = set()
        self._errors: dict[Stage, KernelwrightError] = {}

    def lacks(self, node: Any) -> bool:
        """Whether a node was not made."""
        return node in self._lacking

    def lacking(self, stage: Stage) -> list[list[Any]]:
        """The sources of a stage that were not made, and why, for its signature."""
        return [[str(node), self.behind([node])] for node in stage.sources if node in self._lacking]

    def behind(self, nodes: Iterable[Any]) -> list[dict[str, Any]]:
        """The failures because of which some nodes were not made, as the manifest lists them.

        A stage may put no others into what it makes: only these are in its signature.
        """
        return self.gaps(self._causes(nodes))

    def _causes(self, nodes: Iterable[Any]) -> tuple[Stage, ...]:
        return tuple(dict.fromkeys(cause for node in nodes for cause in self._lacking.get(node, ())))

    def skips(self, stage: Stage) -> bool:
        """Whether a stage cannot be done without the sources that it lacks; then its outputs are lacking, too."""
        lacking = self.lacking(stage)
        enough = not lacking if stage.rest is None else stage.rest()
        if not enough or any(node in self._unmade for node in stage.sources):
            self._leave_out(stage, self._causes(stage.sources))
            return True
        stage.cacheable = stage.cacheable and not lacking
        return False

    def tolerates(self, stage: Stage, error: KernelwrightError) -> bool:
        """Whether the run can do without a stage that failed. Then the error is shown and kept, and it ends with 2."""
        if stage.label not in TOLERATED or stage.logs is None:
            return False
        self._errors[stage] = error
        self._leave_out(stage, (stage,))
        sys.stderr.write(f"scons: *** [{stage.nodes[0]}] {error}\n")
        with contextlib.suppress(OSError):  # it has been shown, and the manifest has its first line
            write_atomically(log_of(stage, stage.logs), f"{error}\n")
        SCons.Script.Main.exit_status = SCons.Script.Main.this_build_status = 2
        return True

    def _leave_out(self, stage: Stage, causes: tuple[Stage, ...]) -> None:
        if stage.label not in OF_VARIANT:
            self._unmade.update(stage.nodes)
        self._lacking.update(dict.fromkeys(stage.nodes, causes))

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
        return [self._gap(stage) for stage in stages if stage in self._errors]

    def _gap(self, stage: Stage) -> dict[str, Any]:
        error = self._errors[stage]
        found = {
            "kernel": stage.where.kernel or error.where.kernel,
            "variant": stage.where.variant,
            "archs": list(stage.archs),
            "stage": error.where.stage or stage.label.lower(),
            "location": self._public(printable(error.where.location or stage.where.location or "")),
            "error": self._first_line(error),
        }
        return {name: value for name, value in found.items() if value}


def log_of(stage: Stage, folder: Path) -> Path:
    """The file that keeps the error of a stage."""
    return folder / (re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"{stage.label.lower()} {stage.subject}")[:200] + ".txt")


def keep_going() -> None:
    """Have SCons go on after an error, as with ``-k``."""
    SCons.Script.Main.OptionsParser.values.keep_going = True
