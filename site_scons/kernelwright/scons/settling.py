"""Finds the kernels of a package that need no nodes, and writes down at the end of a run which kernels are finished.

A kernel needs no nodes if it is settled (see ``state.settled``), or if the build cache has all of it (see
``restored``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.commands import LIBRARIES
from ..core.dependencies import is_portable
from ..core.surroundings import OUTSIDE
from ..stages.object import FOLDER
from ..stages.package import Built, Part, remove_unknown
from ..stages.stage import Stage
from ..state.settled import Settled, SettledKernel, is_current, read_settled, stamps_of, trusted_stamps, write_settled
from . import command_line, compat
from .definitions import Definitions, Unsettled
from .package import Package

if TYPE_CHECKING:
    from ..stages.kernel import KernelBuild
    from .restored import RestoredKernels


class Settling:
    """The kernels of a package that need no nodes.

    ``kernels`` are those, by name, and ``before`` is what the run before has written.
    """

    def __init__(self, package: Package) -> None:
        self.package = package
        self.kernels: dict[str, SettledKernel] = {}
        self.restored: RestoredKernels | None = None
        # A shard leaves kernels out, so its files are not settled for other runs.
        shard = package.run.shards.shard
        self._key = f"{package.key} shard {shard}" if shard else package.key
        self.before = read_settled(record_of(package), self._key)

    def take(self) -> list[str]:
        """Find the kernels that need no nodes; the definition files that have to be looked into are returned."""
        package = self.package
        files = self.take_settled()
        if files and package.asked.restored:
            self.restored = restored = new_restored(package)
            files = restored.take_all(files, self.kernels.keys(), package.tables)
            self.kernels |= restored.kernels
            for stamps in restored.files.values():
                package.note_outside(stamps or {})
        return files

    def take_settled(self) -> list[str]:
        """Find the kernels that the run before has settled; the other definition files are returned."""
        package, before = self.package, self.before
        if not package.asked.settled:
            return package.files
        files: list[str] = []
        for file in package.files:
            stamps = before.files.get(file)
            kernels = before.of_file.get(file, {})
            intact = {name: kernel for name, kernel in kernels.items() if self._is_intact(kernel)}
            new = stamps and any(table not in stamps for name in kernels for table in package.tables.get(name, ()))
            if not stamps or new or len(intact) < len(kernels) or not is_current(package.top, stamps):
                files.append(file)
            else:
                self.kernels |= intact
                package.note_outside(stamps)
                package.tell(before.notes.get(file, ()))
        return files

    def _is_intact(self, kernel: SettledKernel) -> bool:
        top, asked = self.package.top, self.package.asked
        # Only the stages compare what another machine is now.
        if asked.check and (self.package.machine or not (kernel.checks and is_current(top, kernel.check_outputs))):
            return False
        return is_current(top, kernel.outputs)

    def count(self) -> None:
        """Count the stages of the settled kernels among those that the run has reused."""
        restored = self.restored.kernels if self.restored else {}
        for name, kernel in self.kernels.items():
            if name not in restored:
                checks = kernel.checks if self.package.asked.check else 0
                self.package.run.outcome.settled += kernel.stages + checks

    # ---- the end of the run ----

    def write(self, definitions: Definitions, copies: Mapping[str, Any]) -> None:
        """Write down which kernels are finished now.

        Arguments:
            copies: what is known of the copies in the package; see ``stages.package.Assembly``.
        """
        before, new = self.before, {file.definition.file for file in definitions.files}
        kept = {file for file in self.package.files if file in before.files} - new
        after = Settled(self._key, copies=dict(copies), kernels=dict(self.kernels))
        after.files = {file: before.files[file] for file in before.files if file in kept}
        after.notes = {file: notes for file, notes in before.notes.items() if file in kept}
        if self.restored:
            after.files |= {file: stamps for file, stamps in self.restored.files.items() if stamps}
            after.notes |= {file: self.restored.notes[file] for file in self.restored.files}
        finished = set(self.kernels)
        for file in definitions.files:
            kernels = {name: self.finished(file.definition.file, build) for name, build in file.kernels.items()}
            done = {name: kernel for name, kernel in kernels.items() if kernel}
            finished |= done.keys()
            stamps = self.stamps(file) if len(done) == len(kernels) else None
            self._share(file, done)
            if stamps:
                after.files[file.definition.file], after.notes[file.definition.file] = stamps, file.notes
                after.kernels |= done
        if command_line.is_passive():
            return
        if after != before:
            write_settled(record_of(self.package), after)
        self._remove_logs(finished, definitions.kernels.keys() - finished)

    def finished(self, file: str, build: KernelBuild) -> SettledKernel | None:
        """The record of a kernel, if SCons has made all of it or found it up to date; otherwise None.

        Arguments:
            file: its definition file.
        """
        stages = (*build.stages, *build.common)
        if not all(map(self._is_done, stages)):
            return None
        top, journal = self.package.top, self.package.run.journal
        checks = list(filter(self._is_done, build.checks))
        part = new_part(self.package, build)
        outputs = {b.source: journal.output(b.path) for b in (part.entry, *part.products.values()) if b.path}
        if not all(outputs.values()):
            return None
        digests = {source: output[1] for source, output in outputs.items() if output}
        return SettledKernel(
            file,
            stages=len(build.stages),
            outputs=stamps_of(top, [*(path for stage in stages for path in stage.paths), *build.products.values()]),
            checks=len(checks) if len(checks) == len(build.checks) else 0,
            check_outputs=stamps_of(top, (path for stage in checks for path in stage.paths)),
            backends=list(build.backends),
            products={path: (built.source, digests[built.source]) for path, built in part.products.items()},
            entry=digests[part.entry.source],
        )

    def _is_done(self, stage: Stage) -> bool:
        """Whether SCons has made all of a stage, or found it up to date."""
        run = self.package.run
        done = all(map(compat.is_done, run.nodes.nodes_of(stage)))
        return done and not (run.partial and any(map(run.partial.lacks, stage.paths)))

    def stamps(self, file: Unsettled) -> Any:
        """Stamps of all that decides what the kernels of a definition file are; None: they could miss a change."""
        return trusted_stamps(self.package.top, {n: d for n, d in file.digests.items() if n != OUTSIDE})

    def _share(self, file: Unsettled, done: Mapping[str, SettledKernel]) -> None:
        """Note a definition file's finished kernels for other trees, if those can check all that decides."""
        package = self.package
        is_whole = len(done) == len(file.kernels) and not file.elsewhere
        # What has device code from another package cannot be restored without that.
        if package.first or not (done and is_whole and file.definition.shared and self.restored):
            return
        if all(map(is_portable, file.digests)):
            common = [stage for stage in (package.glibc_stage, package.launcher_stage) if stage is not None]
            common += dict.fromkeys(stage for build in file.kernels.values() for stage in build.common)
            stages = [*common, *(stage for build in file.kernels.values() for stage in build.stages)]
            self.restored.keep(file.definition.file, done, file.notes, stages, file.digests)

    def _remove_logs(self, finished: Collection[str], unfinished: Collection[str]) -> None:
        """Remove the errors that partial builds kept of kernels that are finished now, or exist no more."""
        work = self.package.work.get_abspath()
        for name in os.listdir(work) if os.path.isdir(work) else ():  # noqa: PTH112, PTH208
            logs = f"{work}/{name}/failed"
            gone = name in finished or (not self.package.failing and name not in unfinished)
            if gone and os.path.isdir(logs):  # noqa: PTH112
                remove_unknown(Path(logs), ())
                with contextlib.suppress(OSError):  # it has other things in it
                    os.rmdir(f"{work}/{name}")  # noqa: PTH106


def record_of(package: Package) -> Path:
    """The file that says which kernels of a package are settled."""
    name = package.name(package.folder.get_abspath()).replace("/", ".")
    return package.run.state / "settled" / f"{name}.json"


def new_restored(package: Package) -> RestoredKernels:
    """An object that takes whole kernels out of the build cache; it has none yet."""
    # Imported here, because a run with nothing to do does not need it.
    from .restored import RestoredKernels

    shared = (package.context.glibc, LIBRARIES, FOLDER)
    return RestoredKernels(package.run, package.key, package.work.get_abspath(), shared)


def new_part(package: Package, build: KernelBuild) -> Part:
    """A kernel of the package, made by this run."""

    def built(path: str) -> Built:
        return Built(os.path.relpath(path, package.work.get_abspath()), path)

    products = {inside: built(path) for inside, path in build.products.items()}
    return Part(build.record.name, build.backends, built(build.entry), products, location=build.record.location)


def settled_part(name: str, kernel: SettledKernel) -> Part:
    """A kernel of the package, for which nothing has to be done."""
    products = {path: Built(source, None, digest) for path, (source, digest) in kernel.products.items()}
    entry = Built(f"{name}/entry.json", None, kernel.entry)
    return Part(name, tuple(kernel.backends), entry, products, kernel.outputs, location=kernel.file)
