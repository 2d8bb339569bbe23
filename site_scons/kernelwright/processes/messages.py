"""Messages between the build and its processes: one JSON object in a line, in both directions.

Each has the number of its request, and one more name: the kind of the message, whose fields are below it. The process
speaks first, with its versions, or with an error if it cannot work. Then, for each request, it sends any number of
progress lines and one answer::

    < {"id": 0, "hello": {"versions": {"python": "3.11.2", "tvm": "0.27.0", "tvm_ffi": "0.1.15"}, "revision": 2}}
    > {"id": 7, "lower": {"file": "kernels/gemm.py", "kernel": "gemm", ...}}
    < {"id": 7, "progress": {"doing": "scheduling with dlight.gpu.Matmul"}}
    < {"id": 7, "result": {"value": {...}}}
    < {"id": 7, "error": {"kind": "LoweringError", "message": "...", "where": {...}}}
    < {"id": 7, "spent": {}}

A process executes one definition file, once. If it is asked for another one, or for this one after an edit, it is
spent: the pool ends it and asks a new one. A progress line says what the process is about to do, so that its death can
be explained. What others print goes to the process's log, never into this stream. A line that does not fit is a
:class:`WorkerError`. Nothing here imports TVM, NumPy or SCons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..core import errors
from ..core.converter import from_json, to_json
from ..core.errors import LONGEST_SHOWN, KernelwrightError, Where, WorkerError
from .tool_process import REVISION


@dataclass(frozen=True)
class Hello:
    """The greeting of a process that is ready.

    Arguments:
        versions: the versions of what it runs.
        revision: the revision of the protocol that it knows.
        folder: where its compiler is, if it is in another environment.
    """

    op: ClassVar[str] = "hello"
    versions: Mapping[str, str]
    revision: int
    folder: str = ""


@dataclass(frozen=True)
class Progress:
    """What the process is about to do for a request."""

    op: ClassVar[str] = "progress"
    doing: str


@dataclass(frozen=True)
class Result:
    """The good end of a request.

    Arguments:
        value: the result as JSON data, or as an object that is sent as JSON data.
        retiring: whether the process wants to be replaced after it.
    """

    op: ClassVar[str] = "result"
    value: Any
    retiring: bool = False


@dataclass(frozen=True)
class Failed:
    """The bad end of a request, or of the start: a KernelwrightError, whose class has the name ``kind``."""

    op: ClassVar[str] = "error"
    kind: str
    message: str
    where: Where = field(default_factory=Where)
    remedy: str | None = None
    detail: str | None = None

    @classmethod
    def of(cls, error: KernelwrightError) -> Failed:
        """The message for an error."""
        return cls(type(error).__name__, error.message, error.where, error.remedy, error.detail)

    @property
    def error(self) -> KernelwrightError:
        """The error; if its class is unknown, or needs other arguments, it is a WorkerError."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, KernelwrightError)) or kind is errors.ToolError:
            kind = WorkerError
        return kind(self.message, self.where, self.remedy, self.detail)


@dataclass(frozen=True)
class Spent:
    """The process cannot do a request, because it has executed something else: another one can."""

    op: ClassVar[str] = "spent"


GREETINGS: Mapping[str, Any] = {kind.op: kind for kind in (Hello, Failed)}
ANSWERS: Mapping[str, Any] = {kind.op: kind for kind in (Progress, Result, Failed, Spent)}
"""Kinds of messages by their names, as :func:`decode` wants them."""


def encode(number: int, message: Any) -> bytes:
    """One line for a message, or for a request."""
    value = {"id": number, message.op: to_json(message)}
    # ASCII only, so that no encoding and no line separator can break the framing.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes, kinds: Mapping[str, Any]) -> tuple[int, Any]:
    """The number and the message, or the request, of a line.

    Arguments:
        kinds: name -> class of the messages that may come.

    Raises:
        WorkerError: the line is none of these messages.
    """
    try:
        message = from_json(dict[str, Any], json.loads(line))
        number = from_json(int, message.pop("id", None))
        if len(message) != 1 or not message.keys() <= kinds.keys():
            raise ValueError(f"a message of the kind {', '.join(message) or 'none'}")
        ((name, value),) = message.items()
        return number, from_json(kinds[name], value)
    except (ValueError, RecursionError) as error:
        raise WorkerError(
            f"expected a message of the worker protocol, got {str(error)[:LONGEST_SHOWN]}",
            remedy="report this as a defect of Kernelwright",
            detail=line[:200].decode("ascii", "backslashreplace").rstrip() or "(an empty line)",
        ) from error


def decode_greeting(line: bytes) -> Hello:
    """The greeting in a line.

    Raises:
        KernelwrightError: the process says that it cannot work.
        WorkerError: the line is no greeting, or one for another revision of the protocol.
    """
    _, message = decode(line, GREETINGS)
    if isinstance(message, Failed):
        raise message.error
    if message.revision != REVISION:
        raise WorkerError(f"a process greets with version {message.revision} of the protocol, expected {REVISION}")
    hello: Hello = message
    return hello
