"""Looks into the definition files of a package, and makes stages of the kernels that they declare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import backends, frontends
from ..core.errors import DefinitionError, KernelwrightError, SettingsError, Where
from ..stages.code import code_digest
from ..stages.context import NATIVE_ONLY, KernelContext, told
from ..stages.package import named_backends
from ..stages.stage import Stage
from ..state.settled import SettledKernel
from ..toolchain.tvm import Lowerer
from .package import Package

if TYPE_CHECKING:
    from ..define.record import DefinitionRecord, KernelRecord
    from ..stages.discovery import DefinitionRecords
    from ..stages.kernel import KernelBuild
    from ..stages.selection import KernelSelection


@dataclass(frozen=True)
class Unsettled:
    """A definition file that is looked into in this run.

    Arguments:
        definition: its record.
        kernels: the stages of those kernels that are built.
        notes: the lines that the run shows about them.
        tables: the tuning tables of its kernels, with their digests.
        elsewhere: the names of its kernels that are in other shards.
    """

    definition: DefinitionRecord
    kernels: dict[str, KernelBuild] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)

    @property
    def digests(self) -> dict[str, str]:
        """All that decides what its kernels are, with digests."""
        digests = {**dict(self.definition.known), **self.tables}
        for build in self.kernels.values():
            for stage in (*build.stages, *build.common, *build.checks):
                digests |= {**stage.later, **stage.outside}
        return digests


class Definitions:
    """What the definition files of a package declare, as far as this run has looked into them.

    ``files`` are the files without errors, ``kernels`` the stages of all kernels that are built, by name, and ``ir``
    the stages that write the IR of these kernels, also by name.
    """

    def __init__(self, package: Package) -> None:
        self.files: list[Unsettled] = []
        self.kernels: dict[str, KernelBuild] = {}
        self.ir: dict[str, list[Stage]] = {}
        self.names: set[str] = set()
        """The kernels that the files declare, be they built or not."""
        self._package = package
        self._required: set[str] = set()
        self._common: set[Stage] = set()

    def begin(self) -> None:
        """Start workers in the first build of a tree, unless it is known what the files declare.

        The import of TVM takes a second. So do the probes of the tools, and compiling the launcher: all run at once.
        """
        package, run = self._package, self._package.run
        run.caches.require()
        # One file is enough: if the cache knows what it declares, it knows most others, and finished kernels.
        first = [run.top / file for file in package.files[:1]]
        if not self._records(run.toolchain.lowerer()).are_known(first):
            run.pool.warm_up(len(package.files))
            needed = not package.asked.targets and not run.shards.only_merged
            if needed and any(backend.library for backend in named_backends(package.settings)):
                from ..stages import launcher

                package.begun_launcher = launcher.begin(package.context)

    def _records(self, lowerer: Lowerer) -> DefinitionRecords:
        """The records of definition files."""
        from ..stages.discovery import DefinitionRecords

        package, run = self._package, self._package.run
        declared = "".join(f" {name}" for name in sorted(package.settings.environment))
        identity = f"{lowerer.identity} {code_digest('DISCOVER')}{' strict' if run.strict else ''}{declared}"
        return DefinitionRecords(run.top, run.discovery, identity, run.caches.answers)

    def look_into(self, files: Sequence[str], settled: Mapping[str, SettledKernel]) -> list[KernelwrightError]:
        """Make the stages of the kernels in some files, and return the errors of the others.

        Arguments:
            settled: kernels that stay as they are, also if they are in these files.
        """
        package, run = self._package, self._package.run
        run.caches.require()
        with run.progress.ahead("reading the definition files"):
            records, errors = self._records(package.tools.lowerer).discover(
                [run.top / file for file in files],
                lambda: run.pool,
                others={name: kernel.file for name, kernel in settled.items()},
                strict=run.strict,
                note=lambda name, start, end, failed: run.trace.span("DISCOVER", name, start, end, failed=failed),
            )
        for record in records:
            file = Unsettled(record, notes=told(record.file, record.untracked, self._unnamed(record)))
            # Kernels whose names other files have taken: they are among the errors already.
            twice = {kernel.name for kernel in record.kernels if kernel.name in settled or kernel.name in self.names}
            wrong: list[KernelwrightError] = []
            for kernel in record.kernels:
                if kernel.name not in twice:
                    self.names.add(kernel.name)
                    self._add(file, kernel, wrong)
            package.note_outside(file.digests)
            if not wrong and not twice:
                self.files.append(file)
            errors += wrong
            package.tell(file.notes)
        return errors

    def _unnamed(self, record: DefinitionRecord) -> Sequence[str]:
        """The files that a definition reads and that have no name on other machines, if other machines get results."""
        return record.unnamed if self._package.run.caches.has_remote else ()

    def _add(self, file: Unsettled, kernel: KernelRecord, wrong: list[KernelwrightError]) -> None:
        """Make the stages of a kernel if it is built in this run; its errors are added to ``wrong``.

        Raises:
            ToolchainError: what a backend needs is missing. This ends the run, as it is no error of one definition.
        """
        shard = self._package.run.shards.shard
        if shard and not shard.has(kernel.name):
            file.elsewhere.append(kernel.name)
            return
        try:
            selection = self._selected(kernel, file)
        except KernelwrightError as error:
            wrong.append(error)
            return
        for name in selection.backends:
            if name not in self._required:
                backends.get(name).require_build()
                self._required.add(name)
        file.notes.extend(_notes(selection))
        if selection.archs:
            with _noted(wrong):
                file.kernels[kernel.name] = self.add_kernel(file.definition, selection)

    def _selected(self, kernel: KernelRecord, file: Unsettled) -> KernelSelection:
        """What is built of a kernel.

        Raises:
            KernelwrightError: it cannot be built as it is declared.
        """
        from ..stages.selection import require_archs, select

        package, where = self._package, Where(kernel.name, stage="discover", location=kernel.location)
        if kernel.remark and package.run.strict:
            raise DefinitionError(kernel.remark, where)
        configured = package.configured.applied(kernel, file.definition) if package.configured else kernel
        selection = self._tuned(select(configured, package.settings), kernel, file)
        package.tools.of_front_end(configured.options.frontend, where)  # here, what a plug-in raises has its place
        why = frontends.of(configured).native_only
        if package.family and why and selection.archs:
            raise DefinitionError(f"it cannot be built for {package.family} here: {why}", where, NATIVE_ONLY)
        if package.tools.cuda is not None:
            known = {*package.tools.cuda_archs, *package.run.known_archs}
            require_archs(kernel, package.tools.cuda, known)
        return selection

    def _tuned(self, selection: KernelSelection, declared: KernelRecord, file: Unsettled) -> KernelSelection:
        """The variants of a kernel that its tuning tables choose. What they name that is not declared becomes a note.

        Raises:
            TuningError: a table is malformed; or, with ``--strict``, it names what is not declared any more.
        """
        names, run = self._package.tables.get(declared.name, ()), self._package.run
        if not declared.choices and not names:
            return selection
        from ..stages import tuned

        read = tuned.read_tables(run.top, names)
        file.tables.update(read.digests)
        chosen = tuned.choose(selection, read.tables, declared)
        if run.strict and chosen.stale:
            raise chosen.stale[0]
        if not declared.choices:
            file.notes.extend(f"kernelwright: {name} has no effect: {declared.name} has no space" for name in names)
        file.notes.extend(map(tuned.note_of, chosen.stale))
        return chosen.selection

    def add_kernel(self, definition: DefinitionRecord, selection: KernelSelection) -> KernelBuild:
        """Make the stages of a kernel, with nodes of SCons."""
        from ..stages import ir, kernel

        package, name = self._package, selection.record.name
        context = KernelContext(package.context, definition, selection, frontends.of(selection.record))
        build = kernel.make(context, package.glibc_stage, package.launcher_stage, package.asked.listings)
        written = ir.make_all(context) if package.asked.ir else []
        new = [stage for stage in build.common if stage not in self._common]
        self._common.update(new)
        for stage in (*new, *build.stages, *build.checks, *build.listings, *written):
            package.add_stage(stage)
        self.kernels[name], self.ir[name] = build, written
        return build


@contextlib.contextmanager
def _noted(errors: list[KernelwrightError]) -> Iterator[None]:
    """Put what is wrong with one kernel into a list, so that ``-k`` can build the others."""
    try:
        yield
    except (DefinitionError, SettingsError) as error:
        if not error.where.kernel:
            raise
        errors.append(error)


def _notes(selection: KernelSelection) -> list[str]:
    """What a run says about targets that a kernel is not built for."""
    name = selection.record.name
    if not selection.archs and not selection.left_out:
        return [f"kernelwright: {name} is left out: it is for other targets"]
    why = "the package has none of its archs"
    notes = [f"kernelwright: {name} is not built for {t}: {why}" for t in selection.left_out]
    notes += [f"kernelwright: {selection.record.remark}"] if selection.record.remark else []
    return notes + [f"kernelwright: {name} has no target that backend {b} can call" for b in selection.unused]
