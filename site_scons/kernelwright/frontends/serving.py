"""What a process in another environment does: it executes sources of the project there, and answers with data.

It reads requests from stdin until that ends, and answers on a pipe whose number is its last argument. A message is a
JSON object in a line, and the bytes that belong to it, whose numbers are its ``parts``. Each request is answered by a
fork, so that sources are executed anew, and an error that ends the process is an answer, too::

    < {"version": "0.1.15", "folder": "/tilelang/lib/python3.11/site-packages/tilelang"}
    > {"root": "/project", "file": "/project/kernels/tile/matmul.py", "function": "matmul", ...}
    < {"result": {...}, "files": {...}, "parts": [4096]} and 4096 bytes
    < {"error": {"kind": "...", "message": "...", "location": "...", "detail": "..."}, "files": {...}}
    < {"raised": {...}, "files": {...}}

``error`` is a :class:`Failure`, and ``raised`` a KernelwrightError as the protocol of workers has them. ``files`` are
those of the author's that it used, as :class:`Reads` has them. Nothing is unpickled.

A module of ours that is run like this (:mod:`.start_worker`) imports no more of ours than what needs only Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, NamedTuple

from ..core.converter import to_json
from ..core.errors import KernelwrightError
from ..core.project import Installation, Project, callers, culprit_of
from ..processes.messages import Failed


class Message(NamedTuple):
    """What one side tells the other: a JSON object, and bytes that belong to it."""

    values: Mapping[str, Any]
    parts: Sequence[bytes | bytearray] = ()


def write_message(stream: IO[bytes], message: Message) -> None:
    """Write a message."""
    sizes = {"parts": [len(part) for part in message.parts]} if message.parts else {}
    stream.write(json.dumps({**message.values, **sizes}).encode() + b"\n")
    for part in message.parts:
        stream.write(part)
    stream.flush()


def read_message(stream: IO[bytes]) -> Message | None:
    """The next message; None if the stream ends before its end."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    values = json.loads(line)
    sizes = values.pop("parts", [])
    parts = [bytearray(stream.read(size)) for size in sizes]
    return Message(values, parts) if [len(part) for part in parts] == sizes else None


class Failure(Exception):
    """Why a request cannot be done, in words for the author of a source.

    Arguments:
        kind: ``function``: the source has no such function; ``source``: the author's code raised an error; ``tool``:
            the compiler did. The modules that are run have kinds of their own, too.
        message: what is wrong.
        location: ``path:line``, if it is known.
        detail: more about it.
    """

    def __init__(self, kind: str, message: str, location: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.answer = {"kind": kind, "message": message, "location": location, "detail": detail}


def serve(load: Callable[[], ModuleType], answer: Callable[[Message], Message]) -> None:
    """Serve requests until stdin ends.

    Arguments:
        load: imports the compiler, once; returns its module.
        answer: does what a request asks for, in a fork.
    """
    answers = int(sys.argv[-1])
    os.set_inheritable(answers, False)  # not by the compiler's own programs, which may outlive this process
    outgoing = os.fdopen(answers, "wb")
    try:
        compiler = load()
    except Exception as error:  # a broken installation fails in many ways
        write_message(outgoing, Message({"error": f"{type(error).__name__}: {error}"}))
        return
    folder = str(Path(str(compiler.__file__)).parent)
    write_message(outgoing, Message({"version": str(compiler.__version__), "folder": folder}))
    while (request := read_message(sys.stdin.buffer)) is not None:
        write_message(outgoing, _answered(request, answer))


def _answered(request: Message, answer: Callable[[Message], Message]) -> Message:
    """The answer of a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "wb") as stream:
            write_message(stream, _answer(request, answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        message = read_message(stream)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0 and message is not None:
        return message
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return Message({"error": Failure("tool", f"the process {how}").answer, "files": {}})


def _answer(request: Message, answer: Callable[[Message], Message]) -> Message:
    root = request.values["root"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a source reads there is no request
    reads = Reads(root)
    reads.install()
    parts: Sequence[bytes | bytearray] = ()
    try:
        result, parts = answer(request)
        values: dict[str, Any] = {"result": result}
    except Failure as failure:
        values = {"error": failure.answer}
    except KernelwrightError as error:
        values = {"raised": to_json(Failed.of(error))}
    except BaseException as error:  # it runs the author's code, and errors of compilers have many types
        values = {"error": failure_of(error, root).answer}
    reads.note_modules()
    return Message({**values, "files": dict(sorted(reads.files.items()))}, parts)


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
        Failure: it is no Python file.
    """
    sys.path[:0] = [str(Path(file).parent), root]
    sys.dont_write_bytecode = True
    stem = Path(file).stem
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    own = f"kernelwright_source_{stem}" if taken else stem  # it must not take the place of a module such as "math"
    spec = importlib.util.spec_from_file_location(own, file, loader=_FromSource(own, file))
    if spec is None or spec.loader is None:
        raise Failure("function", f"{short(file, root)} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # compilers look for the source of functions through their module
    spec.loader.exec_module(module)
    return module


def require_function(module: ModuleType, name: str, is_right: Callable[[Any], bool], decorator: str, root: str) -> Any:
    """The function of that name in a source.

    Arguments:
        is_right: whether an object is a function that the compiler takes.
        decorator: what makes it one.

    Raises:
        Failure: there is none.
    """
    function = getattr(module, name, None)
    if is_right(function):
        return function
    known = ", ".join(other for other, value in vars(module).items() if is_right(value))
    what = f"has no {name!r}" if function is None else f"has {name!r}, which is no function with {decorator}"
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    file = str(module.__file__)
    message = f"{short(file, root)} {what}; such functions are {known or 'none'}"
    raise Failure("function", message, f"{file}:{line}")


def failure_of(error: BaseException, root: str) -> Failure:
    """What an exception of the author's code, or of the compiler in it, says: at the innermost line of the project."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_project(frame.filename, root)]
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).strip()
    if isinstance(error, SyntaxError) and error.filename:
        location, text = f"{error.filename}:{error.lineno}", error.msg
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    message = f"{type(error).__name__}: {first}" if first else type(error).__name__
    shown = "".join([*traceback.format_list(frames), f"{type(error).__name__}: {text}"])
    return Failure("source" if frames else "tool", short(message, root), location, short(shown, root))


def _is_of_project(path: str, root: str) -> bool:
    return _is_inside(path, root) and os.path.isfile(path)  # noqa: PTH113


def _is_inside(path: str, root: str) -> bool:
    """Whether a path is one of the project, and not of an environment in its folder."""
    return _project(root).relative(path) is not None


@functools.cache
def _project(root: str) -> Project:
    return Project(Path(root))


def short(text: str, root: str) -> str:
    """Text without the root in paths."""
    return text.replace(root + os.sep, "")
