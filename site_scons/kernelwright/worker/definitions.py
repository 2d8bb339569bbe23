"""Executes a definition file inside a worker, once, and notes every file that it depends on.

A definition is Python and may change anything in its process: a function of TVM or NumPy, a hook that TVM calls when it
generates code, a module in ``sys.modules``, the environment. So no process that has executed one file executes another,
nor the same one again after an edit: such a request is refused with :class:`SpentError`, and the pool, which
hands requests of a file to the worker of that file, has a new process do it. Project modules have a finder and a loader
of their own (see ``imports``), because bytecode files may be stale: they are told apart by size and second.
"""

from __future__ import annotations

import ast
import errno
import linecache
import os
import posixpath
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import frontends
from ..core.dependencies import is_portable, present_digest
from ..core.errors import DefinitionError, EditedError, KernelwrightError, Where
from ..core.project import Project
from ..core.surroundings import FOLDER, INSTALLED, OUTSIDE, PASSED_ON, VARIABLE, distributions_of, surrounding_digest
from ..define.configs import Variant
from ..define.kernel import Kernel
from ..processes.serving import SpentError
from .environment import Variables
from .reads import Reads
from .watch import Watch, text_of


@dataclass
class Definition:
    """An executed definition file.

    Arguments:
        file: path relative to the project root, with forward slashes.
        reads: what it has read so far.
        kernels: its kernels, in order.
    """

    file: str
    reads: Reads
    kernels: tuple[Kernel, ...] = ()

    @property
    def dependencies(self) -> dict[str, str]:
        """What it depends on: name as for ``dependency_digest`` -> digest of what was used, in sorted order."""
        return dict(sorted(self.reads.files.items()))

    @property
    def recorded(self) -> dict[str, str]:
        """The files that ``recorded()`` looked for -> digest of what was used."""
        return dict(sorted(self.reads.recorded.items()))

    def find(self, kernel: str, slug: str) -> tuple[Kernel, Variant]:
        """The kernel and the variant of these names.

        Raises:
            EditedError: there is no such variant any more.
        """
        for candidate in self.kernels:
            for variant in candidate.variants:
                if (candidate.name, variant.slug) == (kernel, slug):
                    return candidate, variant
        raise self._absent(f"kernel {kernel!r} with a variant {slug!r}", Where(kernel, slug, location=self.file))

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name.

        Raises:
            EditedError: there is no such kernel any more.
        """
        for candidate in self.kernels:
            if candidate.name == name:
                return candidate
        raise self._absent(f"kernel {name!r}", Where(name, location=self.file))

    def _absent(self, what: str, where: Where) -> EditedError:
        return EditedError(f"{self.file} has no {what}", where, "the file was probably edited meanwhile: try again")


class Definitions:
    """The definition file that this process executes. There must be one object of this class in a process.

    Arguments:
        root: the project root.
        variables: which variables of the environment definitions see.
    """

    def __init__(self, root: Path, variables: Variables) -> None:
        self._watch = Watch(root, variables)
        self.project = self._watch.project
        self._seen = (*PASSED_ON, *variables.declared)
        self._begun = False
        self._known: Definition | None = None
        self._before: frozenset[str] = frozenset()
        self._variables: dict[str, str] = {}
        self._owners: dict[frozenset[str], list[str] | None] = {}

    def load(self, file: str, strict: bool = False, configs: bool = False) -> Definition:
        """The executed definition file; it is executed by the first call, and never again.

        Arguments:
            strict: whether what it reads without declaring it is an error, here and in later calls.
            configs: whether it matters that its configs are those which are recorded by now.

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
            raise DefinitionError(
                message, Where(location=file), f"give yourself the right to read it: chmod u+r {file}"
            )
        if not self._begun:
            self._begun = True  # from here on, even if the file fails
            self._before = frozenset(sys.modules)
            self._variables = {name: surrounding_digest(VARIABLE + name) or "" for name in self._seen}
            self._known = self._execute(path, Definition(name, Reads(strict)))
            return self._known
        known = self._known
        if (
            known is None
            or (known.file, known.reads.strict) != (name, strict)
            or not self._is_current(known.reads.files)
        ):
            raise SpentError
        if configs and not self._is_current(known.reads.recorded):
            raise SpentError
        return known

    def surroundings_of(self, definition: Definition) -> dict[str, str]:
        """What the definition depends on besides files of the project: name -> digest (see ``core.surroundings``)."""
        asked = sorted(definition.reads.variables.intersection(self._variables))
        installed = [INSTALLED + name for name in self._distributions() or ()]
        # The values are those that it was started with: it may have set others.
        variables = {VARIABLE + name: self._variables.get(name, "") for name in {*asked, *definition.reads.absent}}
        return {**variables, **{name: surrounding_digest(name) or "" for name in installed}}

    def is_shareable(self, definition: Definition) -> bool:
        """Whether all that the definition depends on is known, so that others can tell whether it is the same there."""
        known = not definition.reads.outside and self._distributions() is not None
        return known and all(map(is_portable, definition.reads.files))

    def untracked(self, definition: Definition) -> list[str]:
        """What the definition did that no digest can tell, so that nobody would notice another result: for users."""
        found = ((self.project.location(f.location) or definition.file, f.text) for f in definition.reads.outside)
        return [f"{location}: {text}" for location, text in found]

    def seen_by(self, definition: Definition) -> dict[str, str]:
        """All that the definition depends on, what its functions turned out to see when they were called included."""
        shareable = {} if self.is_shareable(definition) else {OUTSIDE: ""}
        return {**definition.dependencies, **self.surroundings_of(definition), **shareable}

    def places_in(self, made: Iterable[bytes]) -> dict[str, str]:
        """What a definition depends on, if what it declares or makes has a path of the project in it."""
        return {FOLDER: present_digest(Path(self.project.root), FOLDER)} if any(map(self.project.is_in, made)) else {}

    def _distributions(self) -> list[str] | None:
        """The distributions that the definition has loaded modules of; None: one is of none that is recorded."""
        files = frozenset(self._installed_files())
        if files not in self._owners:  # the records of all that is installed are read for that
            self._owners[files] = distributions_of(sorted(files))
        return self._owners[files]

    def _installed_files(self) -> list[str]:
        """The files of installed modules that this process has loaded since it began with the definition."""
        new = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] not in self._before]
        files = [getattr(module, "__file__", None) or "" for module in new]
        others = [file for file in files if self._watch.recorder.name_of(file) is None]
        return [file for file in others if self._watch.installation.is_package_code(file)]

    def require_recorded(self, definition: Definition) -> None:
        """Find out whether a definition has the configs that are recorded by now, when one of them is missing.

        Raises:
            SpentError: other ones are recorded by now.
        """
        if not self._is_current(definition.reads.recorded):
            raise SpentError

    def call(
        self, definition: Definition, kernel: Kernel, what: str, function: Callable[[], Any], by_tool: bool = False
    ) -> Any:
        """Call one of a definition's functions, with the files that it reads recorded.

        Arguments:
            what: which of the kernel's functions it is, for errors: ``definition``, ``reference``, ``inputs`` or
                ``sizes``.
            by_tool: whether the compiler of a front end calls it.

        Raises:
            DefinitionError: the function raised something, or did what strict mode forbids.
        """
        where = Where(kernel.name, location=self.project.location(kernel.location))
        definition.reads.findings.clear()
        definition.reads.by_tool = by_tool
        with self._watch.recording(definition.reads):
            result = self._guarded(definition, f"the {what} of {kernel.name}", where, function)
        self._require_declared(definition, f"the {what} of {kernel.name}", where)
        return result

    def note_read(self, definition: Definition, files: Mapping[str, str]) -> None:
        """Note the files that another process read for a definition, as ``LoweredKernel.read`` has them."""
        definition.reads.files = {**files, **definition.reads.files}

    def _is_current(self, files: Mapping[str, str]) -> bool:
        root = Path(self.project.root)
        return all(present_digest(root, name) == digest for name, digest in files.items())

    def _execute(self, path: str, definition: Definition) -> Definition:
        folder, module_name = module_name_of(path)
        where = Where(location=definition.file)
        with self._watch.recording(definition.reads):
            module = self._guarded(
                definition, "the file", where, lambda: self._watch.execute(path, folder, module_name)
            )
            self._watch.recorder.note_candidate(path)
            definition.kernels = kernels_of(module)
            self._note_declared(definition)
        self._check_kernels(definition, path)
        self._require_declared(definition, "the file", where)
        return definition

    def _note_declared(self, definition: Definition) -> None:
        """Note what the kernels say they read: it is a dependency whether or not anything is seen to read it."""
        for kernel in definition.kernels:
            if kernel.recorded is not None:
                name = self._declared_name(definition, kernel, kernel.recorded, "recorded() names")
                if name.startswith("../"):
                    where = Where(kernel.name, location=self.project.location(kernel.location))
                    message = f"recorded() names {kernel.recorded!r}, which is outside of the project"
                    raise DefinitionError(message, where, "copy it into the project")
            for pattern in kernel.options.reads:
                self._watch.recorder.note_declared(self._declared_name(definition, kernel, pattern))

    def _declared_name(
        self, definition: Definition, kernel: Kernel, pattern: str, subject: str = "reads contains"
    ) -> str:
        """A pattern of ``reads``, or the path of ``recorded()``, relative to the project root, or absolute."""
        name = posixpath.normpath(posixpath.join(posixpath.dirname(definition.file), pattern))
        where = Where(kernel.name, location=self.project.location(kernel.location))
        if (Path(self.project.root) / name).is_dir():
            remedy = f'write "{pattern.rstrip("/")}/**" for all files in it'
            raise DefinitionError(f"{subject} {pattern!r}, which is a folder", where, remedy)
        return name

    def _require_declared(self, definition: Definition, subject: str, where: Where) -> None:
        """Raise an error for what strict mode forbids, even if the user's code has swallowed what came of it."""
        reads = definition.reads
        if error := self._watch.strict.error(reads.findings, reads.declared, definition.file, subject, where):
            # The next call would not find the same: now modules are loaded and caches full. A new process does.
            self._known = None
            raise error

    def _check_kernels(self, definition: Definition, path: str) -> None:
        where = Where(location=definition.file)
        if not definition.kernels:
            raise DefinitionError(
                "the file declares no kernel",
                where,
                "decorate a function with @kernel; begin a helper file's name with _, or take it out of the sources",
            )
        places: dict[str, str | None] = dict(repeated_definitions(path, {k.name for k in definition.kernels}))
        for kernel in definition.kernels:
            location = self.project.location(kernel.location)
            if kernel.name in places:
                earlier = places[kernel.name]
                raise DefinitionError(
                    f"a kernel named {kernel.name!r} is also defined at {self.project.location(earlier)}",
                    Where(kernel.name, location=location),
                    "rename one of the two",
                )
            places[kernel.name] = location
            where = Where(kernel.name, location=location)
            frontends.of(kernel, where).check(kernel, where)

    def _guarded(self, definition: Definition, subject: str, where: Where, function: Callable[[], Any]) -> Any:
        """Call user code; whatever it raises becomes a DefinitionError at the user's line."""
        try:
            result = function()
        except BaseException as error:  # user code may raise anything, SystemExit included
            self._require_allowed(definition, subject, where)
            self._blame_strict(definition, subject, where, error)
            if isinstance(error, KernelwrightError):
                raise
            raise self._watch.error(error, subject, where) from error
        self._require_allowed(definition, subject, where)
        return result

    def _require_allowed(self, definition: Definition, subject: str, where: Where) -> None:
        """Raise the error for what no definition may do, even if the user's code has swallowed what came of it."""
        if (found := definition.reads.refused) is not None:
            self._known = None
            place = replace(where, location=self.project.location(found.location) or where.location)
            raise DefinitionError(f"{subject} {found.text}", place, found.remedy)

    def _blame_strict(self, definition: Definition, subject: str, where: Where, error: BaseException) -> None:
        """Raise an error for what strict mode never allows: it may be why the code failed, as without a network.

        What a failing file would have declared further down is not known.
        """
        never = {finding: None for finding in definition.reads.findings if finding.name is None}
        if found := self._watch.strict.error(never, set(), definition.file, subject, where):
            raised = f"then it raised {type(error).__name__}: {text_of(error)}"
            found.detail = self.project.shorten(f"{found.detail}\n{raised}" if found.detail else raised)
            raise found from error


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
    for value in vars(module).values():
        if isinstance(value, Kernel) and not is_imported(value):
            forward = value.forward or value
            unique.setdefault(id(forward), forward)
            if forward.backward_kernel is not None:
                unique.setdefault(id(forward.backward_kernel), forward.backward_kernel)
    return tuple(unique.values())


def repeated_definitions(path: str, names: set[str]) -> Iterator[tuple[str, str]]:
    """The earlier places of decorated functions of a file that have one of the names and are defined again below.

    The module itself only knows the last of them.
    """
    content = "".join(linecache.getlines(path)) or Path(path).read_text(encoding="utf-8")
    seen: dict[str, str] = {}
    for node in ast.parse(content).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.decorator_list and node.name in names:
            if node.name in seen:
                yield node.name, seen[node.name]
            seen[node.name] = f"{path}:{node.decorator_list[0].lineno}"


__all__ = ["Definition", "Definitions", "Project"]
