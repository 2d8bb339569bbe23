"""Kernels of a definition file, without executing the file in this process: a worker does that, once for its text."""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.errors import DefinitionError, KernelwrightError, Where
from ..core.project import Installation
from ..define.kernel import Kernel
from ..stages.code import loaded_code
from ..stages.context import KernelContext
from .build import LOCK_TIMEOUT_S
from .definition import Compilable, shortened
from .launcher import begin_launcher
from .options import Options, settings_for
from .origin import Origin, tables_of
from .session import Session

if TYPE_CHECKING:
    from ..define.record import DefinitionRecord
    from ..processes.pool import WorkerPool
    from .watched import Watch


class DefinitionFile:
    """The kernels of a definition file, as attributes.

    Arguments:
        path: the file.

    Raises:
        KernelwrightError: it cannot be read, or has an error.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self._path = path
        self._options = options
        self._kernels = {record.name: FileKernel(path, record.name, options) for record in self._record().kernels}

    def _record(self) -> DefinitionRecord:
        return record_of(self._path, self._options)[0]

    def __getattr__(self, name: str) -> FileKernel:
        kernels = vars(self).get("_kernels", {})  # a copy is asked for names before it has anything
        if name not in kernels:
            raise AttributeError(f"{vars(self).get('_path')} has no kernel {name!r}; it has {', '.join(kernels)}")
        kernel: FileKernel = kernels[name]
        return kernel

    def __deepcopy__(self, memo: Any) -> DefinitionFile:
        return copy(self)

    def __dir__(self) -> list[str]:
        return sorted(self._kernels)

    def __iter__(self) -> Iterator[FileKernel]:
        return iter(self._kernels.values())

    def __repr__(self) -> str:
        return f"<definition file {self._path}: {', '.join(self._kernels)}>"


class FileKernel(Compilable):
    """A kernel of a definition file.

    Arguments:
        path: the file.
        name: the kernel.
        options: how it is compiled.
    """

    def __init__(self, path: Path, name: str, options: Options) -> None:
        from .project import project_root

        self.name = name
        self.root = project_root(path)
        self._path = path
        self._options = options

    def __getitem__(self, grid: Any) -> NoReturn:
        """Refuse a launch: what was recorded of a program is called from a package."""
        message = f"{self.name} is called with a grid, which kernels that are compiled on demand do not take"
        raise DefinitionError(message, Where(self.name, stage="call"), "build a package, and import it from there")

    def _origin(self, watch: Watch | None = None) -> Origin:

        origin = origin_in(self._path, self.name, self._options, self.root)
        definition, folder = origin.definition, origin.settings.tuning
        if watch is not None:
            watch.rely_on({**definition.dependencies, **definition.recorded, **definition.surroundings})
            if origin.record.choices and folder:
                watch.look_at([f"{folder}/"])
                watch.look_at(tables_of(origin, origin.record))
        return origin

    def _watch(self, before: Watch | None = None) -> Watch:
        from .reached import Reached
        from .watched import Watch

        return Watch(self.root, Reached()) if before is None else before.anew(Reached())

    def _source_file(self) -> Path | None:
        return self._path

    @contextlib.contextmanager
    def _definition(self, origin: Origin) -> Iterator[Kernel]:
        """The definition itself, from the file, which this process executes now, with its helpers as they are now."""
        files = [name for name, digest in origin.definition.dependencies.items() if digest and not name.endswith("/")]
        with _executed(self._path, self.root, files) as module:
            for kernel in vars(module).values():
                if isinstance(kernel, Kernel) and kernel.name == self.name:
                    yield kernel
                    return
        message = f"there is no kernel {self.name!r} any more"
        raise DefinitionError(message, Where(self.name, location=str(self._path)), "load the file again")

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self._path}>"


def origin_in(path: Path, name: str, options: Options, root: Path | None = None) -> Origin:
    """What is known of a kernel of a definition file now.

    Arguments:
        root: the project's folder; None: it is looked for.

    Raises:
        KernelwrightError: the file has an error, or no such kernel.
    """

    definition, session, settings = record_of(path, options, root)
    record = next((record for record in definition.kernels if record.name == name), None)
    if record is None:
        message = f"there is no kernel {name!r} any more"
        raise DefinitionError(message, Where(name, location=str(path)), "load the file again")
    return Origin(definition, record, settings, session, lambda selection: (KernelContext, {}))


@contextlib.contextmanager
def _executed(path: Path, root: Path, files: Iterable[str]) -> Iterator[ModuleType]:
    """The module of a definition file, executed in this process; what is beside it can be imported meanwhile.

    Arguments:
        files: those that the definition is made from, relative to the root.
    """
    name = f"kernelwright_definition_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is no Python file", Where(stage="lower", location=str(path)))
    with _only_installed_modules(), _from_source(root / file for file in files):
        before = list(sys.path)
        sys.path[:0] = dict.fromkeys([str(path.parent), str(root)])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # TVMScript looks for the source of its functions through their module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            sys.path[:] = before


@contextlib.contextmanager
def _only_installed_modules() -> Iterator[None]:
    """Take the user's modules out of this process for now; at the end, put them back in place of new ones.

    A module may be older than its file, or one of another project with the same name. As in a worker, it does not
    matter whether a definition imports it at once or when it is called.
    """
    installation = Installation()

    def is_users(name: str) -> bool:
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            folders = getattr(module, "__path__", ())  # of a package without __init__.py
            return type(folders).__name__ == "_NamespacePath" and not all(
                installation.has(f"{each}/") for each in folders
            )
        if name == "__main__" or not file.endswith(".py") or installation.is_module_code(file):
            return False
        # Some modules, such as torch.ops, name a file that does not exist.
        return not installation.has(file) and os.path.isfile(file)  # noqa: PTH113

    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if is_users(name)}
    try:
        yield
    finally:
        for name in list(sys.modules):
            if is_users(name):
                del sys.modules[name]
        sys.modules.update(aside)


@contextlib.contextmanager
def _from_source(files: Iterable[Path]) -> Iterator[None]:
    """Have Python read files anew: cached bytecode and lines may be of an older text with the same size and time."""
    importlib.invalidate_caches()
    for file in files:
        linecache.cache.pop(str(file), None)
    before = sys.dont_write_bytecode, sys.pycache_prefix
    sys.dont_write_bytecode, sys.pycache_prefix = True, os.devnull
    try:
        yield
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = before


def load(path: str | os.PathLike[str], **options: Any) -> DefinitionFile:
    """The kernels of a definition file, to compile and call. The file is not executed in this process.

    Arguments:
        path: the file, such as ``kernels/softmax.py``.
        options: see :meth:`Compilable.using`.

    Raises:
        KernelwrightError: there is no such file, or it has an error.
    """
    place = Path(path).absolute()
    if not place.is_file():  # so that no worker is started to find that out
        what = "is a folder" if place.is_dir() else "is no file" if place.exists() else "does not exist"
        raise DefinitionError(f"{place} {what}", Where(stage="discover"), "name a definition file: kernels/softmax.py")
    try:
        return DefinitionFile(place, Options.read("load()", **options))
    except KernelwrightError as error:
        raise shortened(error)  # noqa: B904


def record_of(path: Path, options: Options, root: Path | None = None) -> tuple[DefinitionRecord, Any, Any]:
    """The record of a definition file as it is now, with the session and the settings of its project."""
    from .project import project_root, session_for

    root = root or project_root(path)
    settings = settings_for(root, options, os.environ)
    session = session_for(root, settings, options)
    declared = "".join(f" {name}" for name in sorted(settings.environment))
    identity = f"{session.toolchain.lowerer().identity} {loaded_code()}{declared}"
    try:
        return _discovered(path, root, session, identity, _no_worker), session, settings
    except _NoRecordError:
        pass

    def pool() -> WorkerPool:
        # A worker imports TVM first, which takes as long as the launcher.
        begin_launcher(session, settings)
        return session.pool

    # Of several processes that start at once one has a worker execute the file; the others start none.
    def discovered() -> DefinitionRecord:
        with session.store.locked(f"discovery-{session.discovery.name}", LOCK_TIMEOUT_S, lambda: None):
            return _discovered(path, root, session, identity, pool)

    return session.with_room(discovered), session, settings


class _NoRecordError(Exception):
    """There is no record of a definition file, or the file has changed."""


def _no_worker() -> WorkerPool:
    raise _NoRecordError


def _discovered(
    path: Path, root: Path, session: Session, identity: str, pool: Callable[[], WorkerPool]
) -> DefinitionRecord:
    """The record of a definition file. Raises a KernelwrightError if the file has an error."""
    from ..stages.discovery import DefinitionRecords

    records, errors = DefinitionRecords(root, session.discovery, identity).discover([path], pool)
    if errors:
        raise errors[0]
    return records[0]
