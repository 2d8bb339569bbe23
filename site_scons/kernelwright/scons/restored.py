"""Takes the kernels of a fresh build folder out of the build cache, before SCons gets any nodes of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from ..core.dependencies import is_file, present_digest
from ..core.files import dependency_digest, sha256_of
from ..core.surroundings import interpreter
from ..stages.stage import Stage
from ..state import finished
from ..state.finished import Finished, FinishedStage
from ..state.settled import SettledKernel, trusted_stamps
from .run import BuildRun

AT_ONCE = 128
"""Definition files that the remote cache is asked for together: what comes is held in memory until it is written."""


@dataclass
class RestoredKernels:
    """The kernels of a package that came out of the build cache as a whole.

    Arguments:
        run: the run.
        key: digest of everything that all kernels of the package depend on.
        work: the folder of the package's kernels.
        shared: the folders in it that belong to no kernel.
        files: definition file -> stamps of all that its kernels depend on, for the next run; None: they would not tell
            the next change.
        notes: definition file -> what a run says about its kernels.
        kernels: the kernels.
    """

    run: BuildRun
    key: str
    work: str
    shared: Collection[str]
    files: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, SettledKernel] = field(default_factory=dict)
    _looked_at: set[str] = field(default_factory=set)
    _digests: dict[str, str] = field(default_factory=dict)

    def take_all(self, files: Sequence[str], taken: Collection[str], tables: Mapping[str, Sequence[str]]) -> list[str]:
        """Restore the kernels of some definition files; those files of which that cannot be done.

        The remote cache is asked for many of them at a time, and for the next ones while these are written.

        Arguments:
            taken, tables: as for :meth:`take`.
        """
        groups = [files[begin : begin + AT_ONCE] for begin in range(0, len(files), AT_ONCE)]
        left: list[str] = []
        for number, group in enumerate(groups):
            for ahead in groups[:2] if number == 0 else groups[number + 1 : number + 2]:
                self._ask_ahead(ahead)
            left += [file for file in group if not self.take(file, taken, tables)]
        return left

    def pull(self, files: Sequence[str]) -> int:
        """Have the build cache get the finished kernels of definition files; how many files it has them of."""
        build_cache, there = self.run.cache, 0
        if build_cache is None:
            return 0
        for begin in range(0, len(files), AT_ONCE):
            group = files[begin : begin + AT_ONCE]
            self._ask_ahead(group)
            asked = (finished.recall(build_cache, self._question(file), _present(self.run.top)) for file in group)
            found = [kernels for kernels in asked if kernels is not None]
            finished.fetch_common(build_cache, found)
            there += len(found)
        return there

    def _ask_ahead(self, files: Sequence[str]) -> None:
        if self.run.cache is not None and self.run.has_remote:
            self.run.cache.recall_ahead(map(self._question, files), _present(self.run.top))

    def take(self, file: str, taken: Collection[str], tables: Mapping[str, Sequence[str]]) -> bool:
        """Restore the kernels of a definition file, if the build cache has all of them and this tree has none.

        Arguments:
            taken: names of kernels that other files have.
            tables: name of a kernel -> its tuning tables.
        """
        build_cache, top = self.run.cache, str(self.run.top)
        if build_cache is None:
            return False
        present = _present(self.run.top)
        found = finished.recall(build_cache, self._question(file), present)
        if found is None or not self._may_take(found, taken, tables):
            return False
        start = time.monotonic()
        self._require_folders(found)
        written = finished.restore(build_cache, found, self.work, self.shared, self._digest)
        if written is None:
            return False
        lines = {path: stage.lines[name] for stage in written.stages for name, path in stage.outputs.items()}
        adopted = {path: (written.digests[path], line) for path, line in lines.items()}
        stamps = self.run.journal.adopt(self.work, adopted)
        self._tell(written.stages, start)
        # With the digests that it was found by: what has changed since then counts as a change in the next run.
        names = filter(is_file, found.names)
        self.files[file] = trusted_stamps(top, {name: present(name) for name in names})
        self.notes[file] = list(found.notes)
        for name, kernel in found.kernels.items():
            of_kernel = {path: [*stamp] for path, stamp in stamps.items() if path.startswith(f"{name}/")}
            outputs = {f"{self._place}/{path}": stamp for path, stamp in of_kernel.items()}
            self.kernels[name] = replace(kernel, outputs=outputs)
        return True

    def keep(
        self,
        file: str,
        kernels: Mapping[str, SettledKernel],
        notes: Sequence[str],
        stages: Sequence[Stage],
        digests: Mapping[str, str],
    ) -> None:
        """Note the finished kernels of a definition file for other trees.

        Arguments:
            stages: all that the kernels are made by, and what they have in common.
            digests: all that the kernels depend on.
        """
        build_cache = self.run.cache
        known = all(self.run.journal.line_of(path) is not None for stage in stages for path in stage.paths)
        if build_cache is not None and known and all(stage.cacheable for stage in stages):
            listed = tuple(self._stage(stage) for stage in stages)
            found = Finished(tuple(sorted(digests)), tuple(notes), kernels, listed)
            finished.remember(build_cache, self._question(file), found, digests)

    def _require_folders(self, found: Finished) -> None:
        """Raise a KernelwrightError if a folder that is written into is a link. Those of the kernels do not exist."""
        common = {path.rpartition("/")[0] for path in found.paths if path.partition("/")[0] in self.shared}
        folders = {self.work, *(f"{self.work}/{folder}" for folder in common)} - self._looked_at
        self.run.require_folders(folders)
        self._looked_at |= folders

    def _may_take(self, found: Finished, taken: Collection[str], tables: Mapping[str, Sequence[str]]) -> bool:
        folders = {*found.kernels, *self.shared}
        shard = self.run.shard
        return (
            all(shard is None or shard.has(name) for name in found.kernels)
            and all(path.partition("/")[0] in folders for path in found.paths)
            and not any(name in taken or os.path.lexists(f"{self.work}/{name}") for name in found.kernels)
            and all(table in found.names for name in found.kernels for table in tables.get(name, ()))
        )

    @cached_property
    def _surroundings(self) -> list[Any]:
        """What all questions have: it is read from files of installed distributions, once for all definition files."""
        return interpreter()

    @cached_property
    def _place(self) -> str:
        """The folder of the package's kernels, relative to the top."""
        return os.path.relpath(self.work, self.run.top)

    @cached_property
    def _digest(self) -> Callable[[Path], str]:
        """What gives the digest of a file that kernels have in common: once for all of them."""
        return cache(sha256_of)

    def _question(self, file: str) -> list[Any]:
        # The answer depends on the present content, too: a file that has changed since it was first asked is a miss.
        if file not in self._digests:
            self._digests[file] = dependency_digest(self.run.top, file)
        return ["finished", finished.SCHEMA, self.key, self._surroundings, file, self._digests[file]]

    def _stage(self, stage: Stage) -> FinishedStage:
        assert self.run.cache is not None
        key = stage.key or stage.cache_key(self.run.digest)
        entry = self.run.cache.entry_of(key, stage.options.get("later", {}))
        where, arch = stage.where, stage.options.get("arch")
        outputs = {name: os.path.relpath(path, self.work) for name, path in stage.outputs.items()}
        lines = {name: self.run.journal.line_of(path) or {} for name, path in stage.outputs.items()}
        kernel, variant = where.kernel or "", where.variant or ""
        return FinishedStage(entry, stage.label, stage.subject, kernel, variant, arch or "", outputs, lines)

    def _tell(self, stages: Sequence[FinishedStage], start: float) -> None:
        """Show the stages, and put them into the timeline."""
        end = time.monotonic()
        self.run.progress.restored(f"[ CACHED ] {stage.subject}" for stage in stages)
        self.run.restored_stages += len(stages)
        for stage in stages:
            belongs = {"kernel": stage.kernel, "variant": stage.variant, "arch": stage.arch}
            self.run.trace.span(
                stage.label, stage.subject, start, end, cached=True, **{n: v for n, v in belongs.items() if v}
            )


def _present(top: Path) -> Any:
    """What gives the present digest of something that kernels depend on."""

    return cache(partial(present_digest, top))
