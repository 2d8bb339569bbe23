"""Executes definition files inside a worker: always fresh, with exactly the project files that were read on record.

A long-lived process that executes files which are being edited has several ways to use an old version of one: modules
that stay in ``sys.modules``, bytecode files (they are told apart by size and second), cached source lines and cached
folder listings. All are closed here: project modules have a loader of their own that reads the source each time, and
each definition file has its own set of modules.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import re
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..declare import Kernel, Variant
from ..errors import DefinitionError, KernelwrightError, Where

KEPT = 16
"""How many executed definition files a worker keeps, so that the variants of one file execute it once."""

MAX_DETAIL = 6000
"""Longest text in characters that an error shows of an exception."""


@dataclass
class Definition:
    """An executed definition file, with everything that its functions need when they are called later.

    Arguments:
        file: path relative to the project root, with forward slashes.
        kernels: its kernels, in order.
        dependencies: project files that were read so far -> SHA-256 of the content that was used.
    """

    file: str
    kernels: tuple[Kernel, ...] = ()
    dependencies: dict[str, str] = field(default_factory=dict)
    modules: dict[str, ModuleType] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    sources: dict[str, Any] = field(default_factory=dict)
    sys_path: list[str] = field(default_factory=list)

    def find(self, kernel: str, slug: str) -> tuple[Kernel, Variant]:
        """The kernel and the variant of these names.

        Raises:
            DefinitionError: there is no such variant (any more).
        """
        for candidate in self.kernels:
            for variant in candidate.variants:
                if (candidate.name, variant.slug) == (kernel, slug):
                    return candidate, variant
        raise DefinitionError(
            f"{self.file} has no kernel {kernel!r} with a variant {slug!r}",
            Where(kernel, slug, location=self.file),
            "the file was probably edited during the build: run scons again",
        )


class Project:
    """Tells the files of the project from those of installed packages.

    Arguments:
        root: the project root.
    """

    def __init__(self, root: Path) -> None:
        self._names: dict[str, str | None] = {}
        self.root = os.path.abspath(root)  # noqa: PTH100 (symlinks stay: they are part of the names users know)
        own_package = str(Path(__file__).parents[1])
        self._foreign = tuple(
            folder + os.sep for folder in (own_package, sys.prefix, sys.exec_prefix) if self._is_inside(folder)
        )

    def relative(self, path: str) -> str | None:
        """The name of a project file relative to the root, with forward slashes; None for any other file."""
        if path.startswith("<"):
            return None  # code without a file, such as "<frozen importlib._bootstrap>"
        if path not in self._names:
            full = os.path.abspath(path)  # noqa: PTH100
            if full != path:
                return self._relative(full)  # relative to a working folder that may change
            self._names[path] = self._relative(path)
        return self._names[path]

    def _relative(self, full: str) -> str | None:
        if not self._is_inside(full) or full.startswith(self._foreign):
            return None
        name = os.path.relpath(full, self.root).replace(os.sep, "/")
        parts = name.split("/")
        installed = "site-packages" in parts or "dist-packages" in parts or "__pycache__" in parts
        return None if installed else name

    def owns(self, module: ModuleType) -> bool:
        """Whether a module comes from a project file, or is a namespace package of project folders."""
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            return self.relative(file) is not None
        spec = getattr(module, "__spec__", None)
        folders = list(getattr(spec, "submodule_search_locations", None) or [])
        return bool(folders) and all(self.relative(folder) is not None for folder in folders)

    def shorten(self, text: str) -> str:
        """Text with the root removed from paths in it, and cut if it is very long."""
        text = text.replace(self.root + os.sep, "")
        return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "\n[cut]"

    def location(self, location: str | None) -> str | None:
        """``path:line`` with the path relative to the root where it is a project file."""
        if location is None:
            return None
        path, colon, line = location.rpartition(":")
        name = self.relative(path) if colon else self.relative(location)
        return location if name is None else name + (f":{line}" if colon else "")

    def _is_inside(self, path: str) -> bool:
        return path.startswith(self.root.rstrip(os.sep) + os.sep)


class Definitions:
    """The definition files that this process has executed. There must be one object of this class in a process.

    Arguments:
        root: the project root.
    """

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        self._cache: OrderedDict[str, Definition] = OrderedDict()
        self._recorder = _ReadRecorder(self.project)
        self._finder = _ProjectFinder(self.project, self._recorder.note)
        self._environment = dict(os.environ)
        self._sys_path = list(sys.path)
        sys.addaudithook(self._recorder.hook)
        sys.meta_path.insert(0, self._finder)

    def load(self, file: str) -> Definition:
        """The executed definition file: from memory if nothing that it consists of has changed since.

        Raises:
            DefinitionError: the file cannot be read or executed, or declares no kernel.
        """
        path = os.path.join(self.project.root, file)  # noqa: PTH118
        name = self.project.relative(path)
        if name is None or not os.path.isfile(path):  # noqa: PTH113
            what = "is outside of the project" if name is None else "does not exist"
            raise DefinitionError(f"the definition file {file} {what}", Where(location=file))
        known = self._cache.pop(name, None)
        if known is None or not self._is_current(known):
            known = self._execute(path, name)
        self._cache[name] = known
        while len(self._cache) > KEPT:
            self._cache.popitem(last=False)
        return known

    def call(self, definition: Definition, kernel: Kernel, what: str, function: Callable[[], Any]) -> Any:
        """Call one of a definition's functions: with its modules in place, and with the files that it reads recorded.

        Arguments:
            what: which of the kernel's functions it is, for errors: ``definition``, ``reference`` or ``inputs``.

        Raises:
            DefinitionError: the function raised something.
        """
        where = Where(kernel.name, location=self.project.location(kernel.location))
        with self._active(definition):
            return self._guarded(f"the {what} of {kernel.name}", where, function)

    def _is_current(self, definition: Definition) -> bool:
        def current(name: str) -> str | None:
            try:
                return hashlib.sha256((Path(self.project.root) / name).read_bytes()).hexdigest()
            except OSError:
                return None

        return all(current(name) == digest for name, digest in definition.dependencies.items())

    def _execute(self, path: str, name: str) -> Definition:
        folder, module_name = module_name_of(path)
        folders = list(dict.fromkeys([folder, self.project.root]))
        definition = Definition(name, folders=folders, sys_path=list(self._sys_path))
        where = Where(location=name)
        with self._active(definition):
            importlib.invalidate_caches()
            module = self._guarded("the file", where, lambda: self._import(path, module_name))
            self._recorder.note_file(path)
            definition.kernels = kernels_of(module)
        self._check_kernels(definition, path)
        return definition

    def _import(self, path: str, name: str) -> ModuleType:
        top = name.partition(".")[0]
        taken = top in sys.modules or top in sys.stdlib_module_names
        if "." in name:
            if taken:
                raise DefinitionError(f"the package {top!r} has the name of another module", remedy="rename its folder")
            return importlib.import_module(name)
        # Nothing imports a definition file by its name, so it may be called copy.py.
        name = f"kernelwright_definition_{name}" if taken else name
        spec = ModuleSpec(name, _ProjectLoader(name, path, self._recorder.note), origin=path)
        spec.has_location = True
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # TVMScript looks for the source of its functions through their module
        if spec.loader is not None:
            spec.loader.exec_module(module)
        return module

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

    @contextlib.contextmanager
    def _active(self, definition: Definition) -> Iterator[None]:
        """Put a definition's modules, sources and search path in place, and save them afterwards."""
        self._purge()
        sys.modules.update(definition.modules)
        linecache.cache.update(definition.sources)
        self._finder.folders = definition.folders
        sys.path[:] = definition.sys_path
        os.chdir(self.project.root)
        try:
            with self._recorder.recording(definition.dependencies):
                yield
        finally:
            definition.modules = {n: m for n, m in sys.modules.items() if self.project.owns(m)}
            definition.sources = {f: s for f, s in linecache.cache.items() if self.project.relative(f) is not None}
            definition.sys_path = list(sys.path)
            definition.dependencies = dict(sorted(definition.dependencies.items()))
            self._restore()

    def _purge(self) -> None:
        """Forget all project modules and their sources."""
        for name in [name for name, module in sys.modules.items() if self.project.owns(module)]:
            del sys.modules[name]
        for file in [file for file in linecache.cache if self.project.relative(file) is not None]:
            del linecache.cache[file]

    def _restore(self) -> None:
        """Undo what user code did to the process."""
        sys.path[:] = self._sys_path
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self.project.root)

    def _guarded(self, subject: str, where: Where, function: Callable[[], Any]) -> Any:
        """Call user code; whatever it raises becomes a DefinitionError at the user's line."""
        try:
            return function()
        except KernelwrightError:
            raise
        except BaseException as error:  # user code may raise anything, SystemExit included
            raise self.error(error, subject, where) from error

    def error(self, error: BaseException, subject: str, where: Where) -> DefinitionError:
        """The error for an exception of user code: its own line, and its traceback without our frames and TVM's."""
        if isinstance(error, SyntaxError) and error.filename:
            return self._syntax_error(error, where)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if self.project.relative(f.filename) is not None]
        location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else where.location
        text = str(error).strip().removeprefix("error: ")
        place = re.search(r"^ *--> (.+):(\d+):\d+$", text, re.MULTILINE)
        if place and self.project.relative(place[1]) and Path(place[1]).is_file():
            # TVMScript names the line inside the function, the traceback only the decorator's. Errors of TE name a file
            # of TVM's own sources, which does not exist here.
            location = f"{place[1]}:{place[2]}"
        first = next(iter(text.splitlines()), "")
        lines = [*traceback.format_list(frames), f"{type(error).__name__}: {text}"]
        return DefinitionError(
            f"{subject} {self._verb(error)}" + (f": {self.project.shorten(first)}" if first else ""),
            replace(where, location=self.project.location(location)),
            "a definition must not end the process" if isinstance(error, SystemExit) else None,
            self.project.shorten("".join(lines)),
        )

    @staticmethod
    def _verb(error: BaseException) -> str:
        return "called sys.exit" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"

    def _syntax_error(self, error: SyntaxError, where: Where) -> DefinitionError:
        location = f"{error.filename}:{error.lineno}" if error.lineno else str(error.filename)
        text = (error.text or "").rstrip("\n")
        caret = " " * max(0, (error.offset or 1) - 1) + "^"
        return DefinitionError(
            f"{type(error).__name__}: {error.msg}",
            replace(where, location=self.project.location(location)),
            detail=f"{text}\n{caret}" if text else None,
        )


class _ReadRecorder:
    """Notes which project files are opened for reading, and with which content."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._digests: dict[str, str] | None = None

    @contextlib.contextmanager
    def recording(self, digests: dict[str, str]) -> Iterator[None]:
        """Note files into ``digests`` in this block."""
        self._digests = digests
        try:
            yield
        finally:
            self._digests = None

    def note(self, path: str, content: bytes) -> None:
        """Note a file with the content that is being used."""
        name = self._project.relative(path)
        if name is not None and self._digests is not None:
            self._digests[name] = hashlib.sha256(content).hexdigest()

    def note_file(self, path: str) -> None:
        """Note a file with its present content, unless it is noted already."""
        name, digests = self._project.relative(path), self._digests
        if name is None or digests is None or name in digests:
            return
        self._digests = None  # reading it here is not a read of the user's
        try:
            with contextlib.suppress(OSError):
                digests[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        finally:
            self._digests = digests

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook: Python calls it for every file that is opened."""
        if event != "open" or self._digests is None:
            return
        path, mode, flags = arguments
        if not isinstance(path, (str, bytes)) or not _is_reading(mode, flags):
            return
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        if self._project.relative(full) is not None and os.path.isfile(full):  # noqa: PTH113
            self.note_file(full)


def _is_reading(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_DIRECTORY


class _ProjectLoader(SourceFileLoader):
    """Loads a project module from its source and never from bytecode."""

    def __init__(self, name: str, path: str, note: Callable[[str, bytes], None]) -> None:
        super().__init__(name, path)
        self._note = note

    def get_code(self, fullname: str) -> CodeType:
        """Compile what is in the file now; what is shown of it later is the same text."""
        content = self.get_data(self.path)
        self._note(self.path, content)
        code: CodeType = self.source_to_code(content, self.path)
        lines = importlib.util.decode_source(content).splitlines(keepends=True)
        linecache.cache[self.path] = (len(content), None, lines, self.path)  # without a time: never checked again
        return code


class _ProjectFinder(MetaPathFinder):
    """Finds project modules before Python's own finders do, except under the names of standard modules."""

    def __init__(self, project: Project, note: Callable[[str, bytes], None]) -> None:
        self._project = project
        self._note = note
        self.folders: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a project module, or None for any other."""
        if path is None:
            if fullname in sys.stdlib_module_names:
                return None
            path = self.folders
        elif not any(self._project.relative(folder) is not None for folder in path):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            return None
        if spec.origin is None:
            return None if self._is_installed(fullname) else spec
        if self._project.relative(spec.origin) is None:
            return None
        self._take_over(spec, spec.origin)
        return spec

    def _take_over(self, spec: ModuleSpec, origin: str) -> None:
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _ProjectLoader(spec.name, origin, self._note)
        else:
            self._note(origin, Path(origin).read_bytes())  # an extension module

    @staticmethod
    def _is_installed(name: str) -> bool:
        """Whether a module is installed: then a project folder of that name without __init__.py is not a package."""
        spec = PathFinder.find_spec(name) if "." not in name else None
        return spec is not None and spec.origin is not None


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
    """The kernels that a module declares, in order; not those that it imports from the module that declares them."""

    def is_imported(kernel: Kernel) -> bool:
        home = sys.modules.get(kernel.function.__module__)
        return home is not None and home is not module and any(value is kernel for value in vars(home).values())

    unique = {id(value): value for value in vars(module).values() if isinstance(value, Kernel)}
    return tuple(kernel for kernel in unique.values() if not is_imported(kernel))


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
