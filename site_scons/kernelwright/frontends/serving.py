"""What a process in another environment does: it executes sources of the project there, and answers with data.

It speaks the protocol of the workers (``processes/messages.py``), and answers on a pipe whose number is its last
argument. Each request is answered by a fork, so that sources are executed anew, and an error that ends the process is
an answer, too. Nothing is unpickled.

A module of ours that is run like this (:mod:`.start_worker`) imports no more of ours than what needs only Python.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

from ..core.errors import DefinitionError, KernelwrightError, LoweringError, ToolchainError, Where
from ..core.project import Installation, Project, callers, culprit_of
from ..processes.messages import Failed, Hello, decode, encode
from ..processes.protocol import Definition
from ..processes.serving import Do, Progress, Send, answer, serve
from ..processes.tool_process import REVISION, write
from ..processes.worker import describe_status
from .unit import Unit


@dataclass(frozen=True)
class SourceRequest:
    """A request about a function of a source.

    Arguments:
        unit: what is lowered, or interpreted.
        root: the project's folder.
        file: the path of the source.
        function: the name of the function.
    """

    definition: ClassVar[Definition] = None
    if_late: ClassVar[str] = ""
    remedy: ClassVar[str | None] = None
    unit: Unit
    root: str
    file: str
    function: str

    @property
    def where(self) -> Where:
        """The place that an error of it belongs to."""
        return self.unit.where

    @property
    def subject(self) -> str:
        """What raises the errors of the author's code, for messages."""
        return self.function

    @property
    def cannot(self) -> str:
        """What the compiler cannot do if it raises an error itself, for messages; ``remedy`` is what helps then."""
        raise NotImplementedError


def serve_sources(load: Callable[[], ModuleType], operations: Mapping[Any, Do]) -> None:
    """Serve requests until stdin ends.

    Arguments:
        load: imports the compiler, once; returns its module.
        operations: request -> what does it, in a fork. The result is a dataclass that has ``files``: those of the
            author's that were used, as :class:`Reads` has them.
    """
    serve(_greeting(load), lambda send: partial(_answer_in_fork, operations, send), int(sys.argv[-1]))


def _greeting(load: Callable[[], ModuleType]) -> Hello | ToolchainError:
    try:
        compiler = load()
    except Exception as error:  # a broken installation fails in many ways
        return ToolchainError(f"{type(error).__name__}: {error}")
    return Hello({"compiler": str(compiler.__version__)}, REVISION, str(Path(str(compiler.__file__)).parent))


def _answer_in_fork(operations: Mapping[Any, Do], send: Send, line: bytes) -> None:
    kinds = {kind.op: kind for kind in operations}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer(line, kinds, partial(_do, operations), partial(write, writing))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.readline()  # not to its end: a program that the source has left behind may hold the pipe
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not told.endswith(b"\n"):
        number, request = decode(line, kinds)
        error = LoweringError(f"{request.cannot}: the process {describe_status(status)}", request.where, request.remedy)
        send(encode(number, Failed.of(error)))
        return
    send(told)


def _do(operations: Mapping[Any, Do], request: SourceRequest, progress: Progress) -> Any:
    """The result of a request. It tells no progress: there is one line for each answer."""
    reads = Reads(request.root)
    reads.install()
    try:
        result = operations[type(request)](request, lambda doing: None)
    except KernelwrightError as error:
        error.where = replace(request.where, location=error.where.location or request.where.location)
        raise
    except BaseException as error:  # it runs the author's code, and errors of compilers have many types
        raise error_of(error, request) from error
    reads.note_modules()
    return replace(result, files=dict(sorted(reads.files.items())))


class Reads:
    """Notes what a process uses of the author's, from :meth:`install` on: also the files that it asks for in vain.

    What is not in the project counts where a line of the author's uses it, and not what the compiler does by itself.
    Python itself would load a module from bytecode, which may be of another source.

    Arguments:
        root: the project's folder.

    Attributes:
        files: path -> the digest of the content when it was first used; empty: there is no such file. A path with a
            slash at the end is that of a folder whose names were listed; it has no digest here.
    """

    def __init__(self, root: str) -> None:
        self.files: dict[str, str | None] = {}
        self._project, self._installation = Project(Path(root)), Installation()
        self._own_home = f"{os.environ.get('HOME', '')}/"
        self._made: set[str] = set()
        self._is_busy = False

    def install(self) -> None:
        """Have Python tell what it opens and lists, and ask here first for modules. There is no way back."""
        sys.addaudithook(self._hook)
        sys.meta_path.insert(0, self)

    def note(self, path: str) -> bool:
        """Note a file; returns whether it is there."""
        if path not in self.files:
            was_busy, self._is_busy = self._is_busy, True
            try:
                self.files[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except (OSError, ValueError):
                self.files[path] = ""
            self._is_busy = was_busy
        return bool(self.files[path])

    def note_modules(self) -> None:
        """Note the modules of the author's that are imported by now, whoever has found them."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and self._name(file) is not None and os.path.isfile(file):  # noqa: PTH113
                self.note(file)

    def _name(self, path: str) -> str | None:
        """The name of a file of the author's, wherever it lies; None for any other."""
        return None if path.startswith(self._own_home) else self._project.name(path, self._installation)

    def _is_used(self, path: str) -> bool:
        if self._project.relative(path) is not None:
            return True
        culprit = self._name(path) and culprit_of(callers(), self._project, self._installation)
        return bool(culprit and culprit.location)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_busy or event not in ("open", "os.listdir", "os.scandir"):
            return
        self._is_busy = True
        try:
            self._used(event, os.path.abspath(os.fsdecode(arguments[0] or ".")), arguments)  # noqa: PTH100
        except TypeError:  # the number of an open file
            return
        finally:
            self._is_busy = False

    def _used(self, event: str, path: str, arguments: tuple[Any, ...]) -> None:
        if path.endswith(".pyc") or not self._is_used(path):
            return
        if event != "open":
            # Python's own finder lists folders; what it is asked for is noted one by one. That of installed packages
            # lists all folders of sys.path.
            if sys._getframe(2).f_code.co_name not in ("_fill_cache", "children"):
                self.files.setdefault(f"{path}/", None)
        elif arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._made.add(path)
        elif path not in self._made and not os.path.isdir(path):  # noqa: PTH112
            self.note(path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the author's, as far as its folders come first; None for any other."""
        folders = map(os.path.abspath, sys.path if path is None else path)
        for folder in itertools.takewhile(lambda folder: self._name(f"{folder}/") is not None, folders):
            base = f"{folder}/{name.rpartition('.')[2]}"
            for file, inside in ((f"{base}/__init__.py", [base]), (f"{base}.py", None)):
                if self.note(file):
                    loader = _FromSource(name, file)
                    return importlib.util.spec_from_file_location(
                        name, file, loader=loader, submodule_search_locations=inside
                    )
        return None


class _FromSource(SourceFileLoader):
    """Loads a module from its source and never from bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def executed(file: str, root: str) -> ModuleType:
    """A source, which is executed with its folder and the project's first among those that it imports from.

    Raises:
        DefinitionError: it is no Python file.
    """
    sys.path[:0] = [str(Path(file).parent), root]
    sys.dont_write_bytecode = True
    stem = Path(file).stem
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    own = f"kernelwright_source_{stem}" if taken else stem  # it must not take the place of a module such as "math"
    spec = importlib.util.spec_from_file_location(own, file, loader=_FromSource(own, file))
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{short(file, root)} is no Python file", None, "name a file that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # compilers look for the source of functions through their module
    spec.loader.exec_module(module)
    return module


def require_function(request: SourceRequest, is_right: Callable[[Any], bool], decorator: str) -> Any:
    """The function that a request names, in its source, which is executed.

    Arguments:
        is_right: whether an object is a function that the compiler takes.
        decorator: what makes it one.

    Raises:
        DefinitionError: there is none.
    """
    module, name, root = executed(request.file, request.root), request.function, request.root
    function = getattr(module, name, None)
    if is_right(function):
        return function
    known = ", ".join(other for other, value in vars(module).items() if is_right(value))
    what = f"has no {name!r}" if function is None else f"has {name!r}, which is no function with {decorator}"
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    file = str(module.__file__)
    message = f"{short(file, root)} {what}; such functions are {known or 'none'}"
    remedy = f"name a function of the file that is decorated with {decorator}"
    raise DefinitionError(message, Where(location=f"{file}:{line}"), remedy)


def error_of(error: BaseException, request: SourceRequest) -> KernelwrightError:
    """The error for what the author's code raised, or the compiler in it."""
    message, location, detail, is_authors = said(error, request.root)
    where = replace(request.where, location=location or request.where.location)
    if not is_authors:
        return LoweringError(f"{request.cannot}: {message}", where, request.remedy, detail)
    remedy = "mend that line"
    if isinstance(error, ModuleNotFoundError):
        remedy = f"install it in the environment of {request.unit.python}, or leave it out of the source"
    return DefinitionError(f"{request.subject} raised {message}", where, remedy, detail)


def said(error: BaseException, root: str) -> tuple[str, str, str, bool]:
    """What an exception says: its message, the innermost line of the project, its traceback, and whether such lines
    are in that."""
    project = Project(Path(root))

    def is_authors(path: str) -> bool:
        return project.relative(path) is not None and os.path.isfile(path)  # noqa: PTH113

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_authors(frame.filename)]
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).strip()
    if isinstance(error, SyntaxError) and error.filename:
        location, text = f"{error.filename}:{error.lineno}", error.msg
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    message = f"{type(error).__name__}: {first}" if first else type(error).__name__
    detail = "".join([*traceback.format_list(frames), f"{type(error).__name__}: {text}"])
    return short(message, root), location, short(detail, root), bool(frames)


def short(text: str, root: str) -> str:
    """Text without the root in paths."""
    return text.replace(root + os.sep, "")
