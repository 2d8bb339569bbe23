"""Executes a definition file inside a worker, once, and notes every file that it depends on.

A definition is Python and may change anything in its process: a function of TVM or NumPy, a hook that TVM calls when it
generates code, a module in ``sys.modules``, the environment. So a process that has executed one file never executes
another, nor the same file after an edit. It refuses such a request with :class:`SpentError`, and the pool, which gives
the requests for a file to the worker of that file, starts a new process for it. Project modules have a finder and a
loader of their own (see ``imports``), because Python may take stale bytecode: it compares only the size and the second
of the source.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import itertools
import linecache
import os
import posixpath
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from .. import frontends
from ..core import plugins
from ..core.dependencies import is_portable, present_digest, whole_name
from ..core.errors import DefinitionError, EditedError, KernelwrightError, Where, text_of
from ..core.need import metadata_name
from ..core.project import Project
from ..core.surroundings import (
    FOLDER,
    INSTALLED,
    OUTSIDE,
    PASSED_ON,
    VARIABLE,
    distributions_of,
    installed_record,
    surrounding_digest,
)
from ..define.configs import Variant
from ..define.kernel import Kernel, Kernels
from ..processes.protocol import CheckRequest, LowerRequest, SourcesRequest
from ..processes.serving import SpentError
from .check_functions import DECORATORS
from .environment import Variables
from .reads import Reads
from .watch import Watch

Returned = TypeVar("Returned")


class Uses:
    """What a definition depends on, as far as that has been seen.

    Arguments:
        file: the definition file, relative to the project root.
        reads: what the definition has read.
        watch: watches the definition.
        seen: names of the environment variables that the definition can see.
    """

    def __init__(self, file: str, reads: Reads, watch: Watch, seen: Iterable[str]) -> None:
        self._file = file
        self._reads = reads
        self._watch = watch
        self._project = watch.project
        self._before = frozenset(sys.modules)
        self._variables = {name: surrounding_digest(VARIABLE + name) or "" for name in seen}
        self._owners: dict[frozenset[str], list[str] | None] = {}
        self._installed: dict[str, tuple[tuple[str, int, int, int] | None, str]] = {}
        self.needed: set[str] = set()
        """The distributions of the plug-ins that its kernels are written in, and those that these need."""

    @property
    def files(self) -> dict[str, str]:
        """The files that it depends on: name as for ``dependency_digest`` -> digest of what was used, sorted."""
        return dict(sorted(self._reads.files.items()))

    @property
    def lowered(self) -> str:
        """The digest of what lowerings depend on of the definition file: all but what only checks execute."""
        functions = self._watch.recorder.functions
        if self._may_read_itself or functions is None or functions.text is None:
            return self._reads.files[self._file]
        return hashlib.sha256(functions.text.encode()).hexdigest()

    @property
    def _may_read_itself(self) -> bool:
        """Whether it looks into its own file, or does what nobody sees: a process that it starts may look into it."""
        return self._reads.reads_itself or bool(self._reads.outside)

    @property
    def recorded(self) -> dict[str, str]:
        """The files that ``recorded()`` looked for -> digest of what was used."""
        return dict(sorted(self._reads.recorded.items()))

    @property
    def surroundings(self) -> dict[str, str]:
        """What it depends on besides files of the project: name -> digest (see ``core.surroundings``)."""
        asked = sorted(self._reads.variables.intersection(self._variables))
        installed = [INSTALLED + name for name in sorted({*(self._distributions() or ()), *self.needed})]
        # The values at the start of the worker count: the definition may have set others since.
        variables = {VARIABLE + name: self._variables.get(name, "") for name in {*asked, *self._reads.absent}}
        for name in installed:
            if name not in self._installed:
                self._installed[name] = _stamp(name), surrounding_digest(name) or ""
        return {**variables, **{name: self._installed[name][1] for name in installed}}

    @property
    def is_shareable(self) -> bool:
        """Whether all that it depends on is known, so that other machines can tell whether they have the same."""
        known = not self._reads.outside and self._distributions() is not None
        return known and all(map(is_portable, self._reads.files))

    @property
    def untracked(self) -> tuple[str, ...]:
        """What it did whose result no digest covers, as texts for users: nobody would notice if the result changed."""
        places = ((self._project.location(f.location) or self._file, f.text) for f in self._reads.outside)
        return tuple(f"{location}: {text}" for location, text in places)

    def seen(self, made: Iterable[bytes]) -> dict[str, str]:
        """All that it depends on, with what its functions have used in their calls so far.

        Arguments:
            made: contents of the files that were made from it; see :meth:`places_in`.
        """
        shareable = {} if self.is_shareable else {OUTSIDE: ""}
        whole = {whole_name(self._file): self.files[self._file]} if self._may_read_itself else {}
        return {**self.files, **self.surroundings, **shareable, **whole, **self.places_in(made)}

    def places_in(self, made: Iterable[bytes]) -> dict[str, str]:
        """The project's folder as a dependency, if its path is in the given contents; otherwise nothing."""
        root = Path(self._project.root)
        return {FOLDER: present_digest(root, FOLDER)} if any(map(self._project.is_in, made)) else {}

    def _distributions(self) -> list[str] | None:
        """The distributions whose modules it has loaded; None: one of the modules is in no distribution's record."""
        files = frozenset(self._installed_files())
        if files not in self._owners:  # slow: the records of all installed distributions are read
            self._owners[files] = distributions_of(sorted(files))
        return self._owners[files]

    def _installed_files(self) -> list[str]:
        """The files of installed modules that this process has loaded since it began with the definition."""
        new = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] not in self._before]
        files = [getattr(module, "__file__", None) or "" for module in new]
        others = [file for file in files if self._watch.recorder.name_of(file) is None]
        return [file for file in others if self._watch.installation.is_package_code(file)]

    def are_current(self, files: Mapping[str, str]) -> bool:
        """Whether files still have these digests, and what is installed is what this process has imported of it."""
        root = Path(self._project.root)
        is_installed = all(_stamp(name) == stamp for name, (stamp, _) in self._installed.items())
        return is_installed and all(present_digest(root, name) == digest for name, digest in files.items())


def _stamp(name: str) -> tuple[str, int, int, int] | None:
    """What tells whether a distribution was installed anew: of its record, which lists the digests of its files."""
    record = installed_record(name.removeprefix(INSTALLED))
    try:
        found = record.stat() if record else None
    except OSError:
        found = None
    return (str(record), found.st_mtime_ns, found.st_size, found.st_ino) if found else None


class Definition:
    """An executed definition file.

    Arguments:
        file: path relative to the project root, with forward slashes.
        strict: whether it is an error if the file reads something without declaring it.
        watch: watches the file.
        seen: names of the environment variables that the file can see.

    ``kernels`` are its kernels, in order. ``reads`` is what it has read so far, and ``uses`` what it therefore depends
    on. ``is_spoiled``: it has failed, and might not fail again in this process, where modules are loaded and caches
    full; a new process sees the failure again. ``has_checked``: a function has run that only checks call, and may have
    changed what the others use.
    """

    def __init__(self, file: str, strict: bool, watch: Watch, seen: Iterable[str]) -> None:
        self.file = file
        self.reads = Reads(strict)
        self.kernels: tuple[Kernel, ...] = ()
        self.is_spoiled = self.has_checked = False
        self._watch = watch
        self._project = watch.project
        self.uses = Uses(file, self.reads, watch, seen)

    def find(self, request: LowerRequest | CheckRequest | SourcesRequest) -> tuple[Kernel, Variant]:
        """The kernel and the variant of a request.

        Raises:
            DefinitionError: there is no such variant (any more), or none can be made of the config.
            SpentError: the recorded configs have changed since the file was executed.
        """
        try:
            kernel = self.kernel(request.kernel)
            if not request.listed:
                variant, _ = kernel.unlisted(request.config)
                self.require_same(request.slug, variant.slug == request.slug)
                return kernel, variant
            for variant in kernel.variants:
                if variant.slug == request.slug:
                    return kernel, variant
            raise self._edited(f"has no kernel {kernel.name!r} with a variant {request.slug!r}")
        except DefinitionError:
            self.require_recorded()
            raise

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; raises as :meth:`find`."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise self._edited(f"has no kernel {name!r}")

    def require_same(self, slug: str, is_same: bool) -> None:
        """Raise an EditedError if a variant is not the one that was discovered."""
        if not is_same:
            raise self._edited(f"has another config for variant {slug!r} than when the kernels were discovered")

    def _edited(self, what: str) -> EditedError:
        message = f"{self.file} {what}"
        return EditedError(message, Where(location=self.file), "the file was probably edited meanwhile: try again")

    def require_recorded(self) -> None:
        """Raise a SpentError if the recorded configs have changed since the file was executed."""
        if not self.uses.are_current(self.reads.recorded):
            raise SpentError

    def call(self, kernel: Kernel, what: str, function: Callable[[], Returned], by_tool: bool = False) -> Returned:
        """Call one of a kernel's functions, and note the files that it reads.

        Arguments:
            what: which of the kernel's functions it is, for errors: ``definition``, ``reference``, ``inputs`` or
                ``sizes``.
            by_tool: whether the compiler of a front end calls the function.

        Raises:
            DefinitionError: the function raised something, or did what strict mode forbids.
        """
        subject, where = f"the {what} of {kernel.name}", self._where(kernel)
        self.reads.findings.clear()
        self.reads.by_tool = by_tool
        is_of_check, functions = what in DECORATORS, self._watch.recorder.functions
        self.has_checked = self.has_checked or is_of_check
        bodies = functions.with_bodies(self.kernels) if functions and is_of_check else nullcontext()
        with self._watch.recording(self.reads), bodies:
            result = self._guarded(subject, where, function)
        self._require_declared(subject, where)
        return result

    def note_read(self, files: Mapping[str, str]) -> None:
        """Note the files that another process read for it, as ``LoweredKernel.read`` has them."""
        self.reads.files = {**files, **self.reads.files}
        self.reads.reads_itself = self.reads.reads_itself or self.file in files

    def execute(self, path: str) -> None:
        """Execute the file, once."""
        folder, name = module_name_of(path)
        where = Where(location=self.file)
        self._watch.recorder.own = self.file
        with self._watch.recording(self.reads):
            module = self._guarded("the file", where, lambda: self._watch.execute(path, folder, name))
            self._watch.recorder.note_candidate(path)
            self.kernels = kernels_of(module)
            self._load_plugins()
            self._note_declared()
        self._check_kernels(path)
        self._require_declared("the file", where)

    def _where(self, kernel: Kernel) -> Where:
        return Where(kernel.name, location=self._project.location(kernel.location))

    def _load_plugins(self) -> None:
        """Import the plug-ins that kernels are written in: they are dependencies, like all that the file imports."""
        for kernel in self.kernels:
            if kernel.options.frontend in frontends.names():
                continue
            where = self._where(kernel)
            with self._watch.recorder.noting():  # finding it reads what the definition does not
                front_end = frontends.of(kernel, where)
            for need in front_end.needs:
                if not need.is_installed:
                    raise DefinitionError(f"definitions in {front_end.name} need {need.name}", where, need.install)
            self._guarded(f"the front end {front_end.name!r}", where, front_end.load)
            self._project.leave_out(plugins.folders_of(front_end))
            self.uses.needed.update(
                map(metadata_name, [front_end.distribution, *(need.name for need in front_end.needs)])
            )

    def _note_declared(self) -> None:
        """Note the files that kernels declare: they are dependencies even if nothing is seen to read them."""
        for kernel in self.kernels:
            if kernel.recorded is not None:
                name = self._declared_name(kernel, kernel.recorded, "recorded() names")
                if name.startswith("../"):
                    message = f"recorded() names {kernel.recorded!r}, which is outside of the project"
                    raise DefinitionError(message, self._where(kernel), "copy it into the project")
            for pattern in kernel.options.reads:
                self._watch.recorder.note_declared(self._declared_name(kernel, pattern))

    def _declared_name(self, kernel: Kernel, pattern: str, subject: str = "reads contains") -> str:
        """A pattern of ``reads``, or the path of ``recorded()``, relative to the project root, or absolute."""
        name = posixpath.normpath(posixpath.join(posixpath.dirname(self.file), pattern))
        if (Path(self._project.root) / name).is_dir():
            remedy = f'write "{pattern.rstrip("/")}/**" for all files in it'
            raise DefinitionError(f"{subject} {pattern!r}, which is a folder", self._where(kernel), remedy)
        return name

    def _check_kernels(self, path: str) -> None:
        if not self.kernels:
            raise DefinitionError(
                "the file declares no kernel",
                Where(location=self.file),
                "decorate a function with @kernel; begin a helper file's name with _, or take it out of the sources",
            )
        places: dict[str, str | None] = dict(repeated_definitions(path, {k.name for k in self.kernels}))
        for kernel in self.kernels:
            where = self._where(kernel)
            if kernel.name in places:
                earlier = self._project.location(places[kernel.name])
                message = f"a kernel named {kernel.name!r} is also defined at {earlier}"
                raise DefinitionError(message, where, "rename one of the two")
            places[kernel.name] = where.location
            frontends.of(kernel, where).check(kernel, where)

    def _guarded(self, subject: str, where: Where, function: Callable[[], Returned]) -> Returned:
        """Call user code; whatever it raises becomes a DefinitionError at the user's line."""
        try:
            result = function()
        except BaseException as error:  # user code may raise anything, SystemExit included
            self._require_allowed(subject, where)
            self._blame_strict(subject, where, error)
            if isinstance(error, KernelwrightError):
                raise
            raise self._watch.error(error, subject, where) from error
        self._require_allowed(subject, where)
        return result

    def _require_declared(self, subject: str, where: Where) -> None:
        """Raise an error if something was done that strict mode forbids, even if the user's code hides its failure."""
        reads = self.reads
        if error := self._watch.strict.error(reads.findings, reads.declared, self.file, subject, where):
            self.is_spoiled = True
            raise error

    def _require_allowed(self, subject: str, where: Where) -> None:
        """Raise an error if something was done that no definition may do, even if the user's code caught it then."""
        if (finding := self.reads.refused) is not None:
            self.is_spoiled = True
            place = replace(where, location=self._project.location(finding.location) or where.location)
            raise DefinitionError(f"{subject} {finding.text}", place, finding.remedy)

    def _blame_strict(self, subject: str, where: Where, error: BaseException) -> None:
        """Raise an error for what strict mode never allows: it may be why the code failed, as without a network.

        Undeclared reads do not count here: a file that fails may declare them further down.
        """
        never = {finding: None for finding in self.reads.findings if finding.name is None}
        if forbidden := self._watch.strict.error(never, set(), self.file, subject, where):
            raised = f"then it raised {type(error).__name__}: {text_of(error)}"
            forbidden.detail = self._project.shorten(f"{forbidden.detail}\n{raised}" if forbidden.detail else raised)
            raise forbidden from error


class Definitions:
    """The definition file that this process executes. A process must have only one object of this class.

    Arguments:
        root: the project root.
        variables: which environment variables definitions see.
    """

    def __init__(self, root: Path, variables: Variables) -> None:
        self._watch = Watch(root, variables)
        self.project = self._watch.project
        self._seen = (*PASSED_ON, *variables.declared)
        self._begun = False
        self._known: Definition | None = None

    def load(self, file: str, strict: bool = False, configs: bool = False, checks: bool = False) -> Definition:
        """The executed definition file; the first call executes it, and no other call does.

        Arguments:
            strict: whether it is an error if the file reads something without declaring it, now or later.
            configs: whether its configs have to be those that are recorded now.
            checks: whether it is for a check, and not for what the build is made of.

        Raises:
            DefinitionError: the file cannot be read or executed, declares no kernel, or does what strict mode forbids.
            SpentError: this process has executed something else.
        """
        path = os.path.join(self.project.root, file)  # noqa: PTH118
        name = self.project.relative(path)
        if name is None or not os.path.isfile(path):  # noqa: PTH113
            what = "is outside of the project" if name is None else "does not exist"
            remedy = 'name a file of the project; a pattern is written as Glob("kernels/*.py")'
            raise DefinitionError(f"the definition file {file} {what}", Where(location=file), remedy)
        if not os.access(path, os.R_OK):
            message = f"the definition file {file} cannot be read: {os.strerror(errno.EACCES)}"
            remedy = f"give yourself the right to read it: chmod u+r {file}"
            raise DefinitionError(message, Where(location=file), remedy)
        if not self._begun:
            self._begun = True  # from here on, even if the file fails
            definition = Definition(name, strict, self._watch, self._seen)
            definition.execute(path)
            self._known = definition
            return definition
        known = self._known
        if known is None or known.is_spoiled or (known.has_checked and not checks):
            raise SpentError
        if (known.file, known.reads.strict) != (name, strict):
            raise SpentError
        if not known.uses.are_current(known.reads.files):
            raise SpentError
        if configs:
            known.require_recorded()
        return known


def module_name_of(path: str) -> tuple[str, str]:
    """The folder to import a file from and its dotted name, as in pytest: folders with ``__init__.py`` are packages."""
    file = Path(path)
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return str(folder), ".".join(parts)


def kernels_of(module: ModuleType) -> tuple[Kernel, ...]:
    """The kernels that a module declares, in order; not those that it imports from the module that declares them.

    A backward kernel is one of them, whatever name it is bound to: it follows the kernel whose gradients it computes.
    """

    def is_imported(kernel: Kernel) -> bool:
        home = sys.modules.get(kernel.function.__module__)
        return home is not None and home is not module and any(value is kernel for value in vars(home).values())

    unique: dict[int, Kernel] = {}
    values = [[*value.values()] if isinstance(value, Kernels) else [value] for value in vars(module).values()]
    for value in itertools.chain.from_iterable(values):
        if isinstance(value, Kernel) and not is_imported(value):
            forward = value.forward or value
            unique.setdefault(id(forward), forward)
            if forward.backward_kernel is not None:
                unique.setdefault(id(forward.backward_kernel), forward.backward_kernel)
    return tuple(unique.values())


def repeated_definitions(path: str, names: set[str]) -> Iterator[tuple[str, str]]:
    """Name and place of each decorated function that the file defines again further down, if it has one of the names.

    The executed module has only the last function of a name.
    """
    content = "".join(linecache.getlines(path)) or Path(path).read_text(encoding="utf-8")
    seen: dict[str, str] = {}
    for node in ast.parse(content).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.decorator_list and node.name in names:
            if node.name in seen:
                yield node.name, seen[node.name]
            seen[node.name] = f"{path}:{node.decorator_list[0].lineno}"


__all__ = ["Definition", "Definitions", "Project"]
