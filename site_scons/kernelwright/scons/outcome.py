"""What became of the stages of a run, and the last lines that say so."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import SCons.Script

from ..core.errors import KernelwrightError, shown
from ..core.pipeline import KINDS, LISTINGS
from ..stages.stage import Stage
from . import command_line, compat
from .nodes import Nodes
from .progress import Progress

if TYPE_CHECKING:
    from ..stages.partial import Partial

TARGETS = (*LISTINGS, "check", "compile_commands", "ir", "tune", "wheel")
"""Targets beside kernels and files; some exist only where they are asked for."""


class Outcome:
    """Counts the stages of a run, and notes what failed.

    Arguments:
        nodes: those of all stages.
        partial: what a partial build goes on without; None: the build is not partial.
    """

    def __init__(self, progress: Progress, nodes: Nodes, partial: Partial | None) -> None:
        self.settled = 0
        """Stages of kernels that are settled, so that SCons has no nodes of them."""
        self.restored = 0
        """Stages of kernels that the build cache had as a whole."""
        self._progress = progress
        self._nodes = nodes
        self._partial = partial
        self._failures: list[str] = []
        self._refused = 0
        self._tolerable = False
        self._shown: set[tuple[str | None, ...]] = set()
        self._tables: dict[str, str] = {}
        self._used_tables: set[str] = set()

    def failed(self, stage: Stage, error: KernelwrightError) -> None:
        """Note a failure for the last lines of the run."""
        self._tolerable |= KINDS[stage.label].tolerated
        first = next(iter(error.message.splitlines()), "")
        self._failures.append(f"{stage.line}: {first}")
        self._progress.finished(stage.line)
        self._progress.erase()

    def stopped(self, errors: int = 1) -> None:
        """Note that so many errors which are of no stage end the run; the caller shows them."""
        self._refused = max(self._refused, errors)
        self._progress.erase()

    def text_of(self, error: KernelwrightError) -> str:
        """The text of a stage's error, without the details if another stage had the same error.

        The same goes for the remedy of an error that several variants of a kernel have.
        """
        of_kernel = error.where.kernel if error.detail is None else None
        key = error.message, error.detail, error.remedy, of_kernel
        shortened = "its remedy is" if error.detail is None else "its details are"
        if key not in self._shown or (error.detail is None and (of_kernel is None or error.remedy is None)):
            self._shown.add(key)
            return str(error)
        return f"{str(error).splitlines()[0]} ({shortened} shown once)"

    def note_tables(self, tables: Mapping[str, Iterable[str]], kernels: set[str] | None) -> None:
        """Note the tuning tables that a package looked for.

        Arguments:
            tables: name of a kernel -> files.
            kernels: the kernels that the package has; None: they are not known, because there are errors.
        """
        for name, files in tables.items():
            self._tables |= dict.fromkeys(files, name)
            if kernels is None or name in kernels:
                self._used_tables.update(files)

    @property
    def counts(self) -> dict[str, Any]:
        """How many stages were built, taken from the cache, reused and failed, and the time of the run in seconds."""
        nodes, stages = self._nodes, self._nodes.stages
        firsts = [nodes.node_of(stage) for stage in stages]
        lacking = sum(self._partial.lacks(stage.paths[0]) for stage in stages) if self._partial else 0
        return {
            "built": sum(map(compat.was_built, firsts)) - lacking + self.restored,
            "cached": sum(stage.cached for stage in stages) + self.restored,
            "reused": self.settled + sum(map(compat.was_up_to_date, firsts)),
            "failed": len(self._failures) + self._refused,
            "seconds": round(self._progress.seconds, 3),
        }

    def tell(self, only_merged: bool) -> None:
        """Show the last lines.

        Arguments:
            only_merged: whether the run compiles nothing.
        """
        # Tuning tables of kernels that no package has, such as a kernel that was renamed.
        for file in sorted(self._tables.keys() - self._used_tables):
            self._progress.note(f"kernelwright: {file} has no effect: no kernel {self._tables[file]!r} is built")
        tell_of_targets()
        # Without -k the one failure has just been shown.
        failures = self._failures if SCons.Script.GetOption("keep_going") else []
        self._progress.summary(self.counts, failures)
        wheel = "wheel" in command_line.targets()
        if self._tolerable and not self._partial and not only_merged and (failures or wheel):
            makes = "scons --partial wheel makes a wheel" if wheel else "scons --partial makes a package"
            sys.stderr.write(f"kernelwright: {makes} of what can be built\n")


def tell_of_targets() -> None:
    """Suggest names for a misspelt target: SCons says only that it cannot make it."""
    for name in compat.unknown_targets():
        if name == "wheel":
            remedy = "write env.KernelWheel(PACKAGE) into the build file"
            sys.stderr.write(f"kernelwright: there is no target 'wheel'; {remedy}\n")
            continue
        near = difflib.get_close_matches(name, {*compat.aliases(), *TARGETS} - {name}, 3, 0.7)
        if near:
            sys.stderr.write(f"kernelwright: there is no target {shown(name)}; did you mean {' or '.join(near)}?\n")
