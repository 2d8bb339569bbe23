"""The messages between the build and its workers: one JSON object per line, over the worker's stdin and stdout.

The worker speaks first. It greets with its versions, or with an error if it cannot work::

    {"hello": 1, "versions": {"python": "3.11.2", "tvm": "0.27.0", "tvm_ffi": "0.1.15"}}
    {"hello": 1, "error": {...}}

Then, for each request, it sends any number of progress lines and one answer::

    > {"id": 7, "op": "lower", "file": "kernels/gemm.py", "kernel": "gemm", ...}
    < {"id": 7, "progress": "scheduling with dlight.gpu.Matmul"}
    < {"id": 7, "ok": true, "result": {...}}
    < {"id": 7, "ok": false, "error": {"type": "LoweringError", "message": "...", "where": {...}, "remedy": null,
                                       "detail": null}}
    < {"id": 7, "spent": true}

A worker executes one definition file, once. If it is asked for another one, or for this one after an edit, it is spent:
the pool ends it and asks a new one. A progress line says what the worker is about to do, so that its death can be
explained. The operations are the request classes below; their fields are the keys of the JSON object. What a
definition prints goes to the worker's log, never into this stream. A line that does not fit is a :class:`WorkerError`.
Nothing here imports TVM, NumPy or SCons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar

from ..core import errors
from ..core.converter import from_json, that, to_json
from ..core.errors import LONGEST_SHOWN, KernelwrightError, Where, WorkerError, shown
from ..core.request import ASIDE
from ..define.record import DefinitionRecord

VERSION = 1
"""Revision of this protocol; both sides must have the same."""


@dataclass(frozen=True)
class DiscoverRequest:
    """Execute a definition file and report its kernels and the project files that it read.

    Arguments:
        file: the definition file, absolute or relative to the project root.
        strict: whether it is an error to read what the definition does not declare.
    """

    op: ClassVar[str] = "discover"
    file: str
    strict: bool = False

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(stage="discover", location=self.file)


@dataclass(frozen=True)
class LowerRequest:
    """Lower one variant for one target and write the unit's files into a folder.

    Arguments:
        file: the definition file, absolute or relative to the project root.
        kernel, slug, symbol, config, target, arch: as of the :class:`Unit` that is lowered. The definition itself
            declares the rest of that, such as outputs.
        out: an existing, empty folder that receives the files.
        strict: whether it is an error to read what the definition does not declare.
        archs: those that the front end itself makes device code for.
        listed: whether the definition lists the config. If not, the variant is lowered as if it were the last one.
        pass_configs: configs of TVM's passes.
        ir: an existing, empty folder that receives the IR after each pass; empty: it is not written.
        python: the interpreter of the front end's own environment; empty: there is none.
    """

    op: ClassVar[str] = "lower"
    file: str
    kernel: str
    slug: str
    symbol: str
    config: Mapping[str, Any]
    target: str
    arch: str
    out: str = field(default="", metadata=ASIDE)
    strict: bool = False
    archs: tuple[str, ...] = ()
    listed: bool = field(default=True, metadata=ASIDE)
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    ir: str = field(default="", metadata=ASIDE)
    python: str = field(default="", metadata=ASIDE)

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(self.kernel, self.slug, "lower", self.file)


@dataclass(frozen=True)
class CheckRequest:
    """Compare one variant of a built library with its NumPy reference on a device.

    Arguments:
        file: the definition file, absolute or relative to the project root.
        kernel, slug: the variant.
        library: path of the built shared library; empty if the definition is interpreted. That and the signature are
            sources of the stage.
        variant_index: the variant's place in the kernel's configs; the library exports ``<kernel>__<index>``.
        signature: the parsed signature.json of the variant's unit.
        device: ``cpu``, ``cuda`` with an index, such as ``cuda:0``, or ``INTERPRETED``.
        tolerance: largest accepted error as ``compare`` defines it, or None for the default of each dtype.
        strict: whether it is an error to read what the definition does not declare.
        listed: whether the definition lists the variant.
        config: that of the variant; what is listed is found by its slug.
        archs: with commas, those that device code was made for, if that is not for all archs of the kernel: on a
            device that can run none of them nothing is compared. For the interpreter, the arch of the definition.
        python: the interpreter of the front end's own environment, if the definition is interpreted.
    """

    op: ClassVar[str] = "check"
    file: str
    kernel: str
    slug: str
    library: str = field(metadata=ASIDE)
    variant_index: int
    signature: Mapping[str, Any] = field(metadata=ASIDE)
    device: str
    tolerance: float | None = None
    strict: bool = False
    listed: bool = field(default=True, metadata=ASIDE)
    config: Mapping[str, Any] = field(default_factory=dict)
    archs: str = ""
    python: str = field(default="", metadata=ASIDE)

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(self.kernel, self.slug, "check", self.file)

    @property
    def if_late(self) -> str:
        """What to do if it takes too long; empty: what helps with all requests."""
        if self.device != INTERPRETED:
            return ""
        few = f"an interpreter is slow: have @{self.kernel}.inputs return None for sizes with so many programs"
        return f"{few}, or raise the setting worker_timeout"


@dataclass(frozen=True)
class MeasureRequest(CheckRequest):
    """Measure how long a call of one variant takes; the process of ``tune/measure.py`` does that, and no worker.

    Before its first turn at some sizes the variant is compared with its reference there, if there is one.

    Arguments:
        sizes: the value of each size variable.
        batches: how many batches are timed.
        batch_us: microseconds that a batch takes at least.
    """

    op: ClassVar[str] = "measure"
    sizes: Mapping[str, int] = field(default_factory=dict)
    batches: int = 1
    batch_us: int = 1000

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(self.kernel, self.slug, "tune", self.file)


@dataclass(frozen=True)
class CostRequest:
    """Ask a definition what it estimates that candidates take; answered by the same process.

    Arguments:
        file: the definition file, absolute or relative to the project root.
        kernel: the kernel.
        configs: those of the candidates.
        sizes: the value of each size variable.
        target: ``llvm`` or ``cuda``.
    """

    op: ClassVar[str] = "cost"
    file: str
    kernel: str
    configs: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, int]
    target: str
    strict: bool = False

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(self.kernel, None, "tune", self.file)


@dataclass(frozen=True)
class DevicesRequest:
    """Ask which devices this machine has."""

    op: ClassVar[str] = "devices"

    @property
    def where(self) -> Where:
        """The place that an error of this request belongs to."""
        return Where(stage="check")


@dataclass(frozen=True)
class ToolRequest:
    """Run a compiler in a runner process (see ``tools``; the workers that have TVM do not know this operation).

    Arguments:
        command: the executable's path and its arguments.
        folder: the folder that it runs in.
        environment: all of its environment.
        timeout_s: seconds after which it is ended.
        where: the place that an error of this request belongs to.
    """

    op: ClassVar[str] = "tool"
    command: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    timeout_s: float
    where: Where


Request = DiscoverRequest | LowerRequest | CheckRequest | MeasureRequest | CostRequest | DevicesRequest | ToolRequest

REQUESTS: Mapping[str, type[Request]] = {
    kind.op: kind for kind in (DiscoverRequest, LowerRequest, CheckRequest, MeasureRequest, CostRequest, DevicesRequest)
}

INTERPRETED = "interpreted"
"""In place of a device: the interpreter of the definition's language, which runs on the CPU."""

Definition = tuple[str, bool, str] | None
"""What a process has become by its first request, so that it does no others: the definition file that it has executed,
whether strictly, and the kind of device, if that changes what the process lowers: with ``cuda`` it has loaded TVM's
CUDA runtime, and ``INTERPRETED`` definitions cannot be compiled. None: nothing."""

MOST_SECONDS = 1 << 31
MOST_KIB = (1 << 50) - 1
"""No run takes more; sums of them are exact."""

# Here and not in a dataclass: there, a lambda would look for names in the class.
Seconds = Annotated[float, that("seconds", lambda value: 0 <= value <= MOST_SECONDS)]
Kib = Annotated[int, that("KiB", lambda value: 0 <= value <= MOST_KIB)]


@dataclass(frozen=True)
class LowerResult:
    """What came of a :class:`LowerRequest`.

    Arguments:
        files: the names of the files that were written.
        schedule: what scheduled the code, for people.
        seconds, cpu_seconds: what it took.
        dependencies: all that was read, with the digests.
        untracked: what was done that no digest can tell, with the place.
    """

    files: tuple[str, ...]
    schedule: str
    seconds: Seconds
    cpu_seconds: Seconds
    dependencies: Mapping[str, str]
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """What came of a :class:`CheckRequest`.

    Arguments:
        cases: how many calls were compared; none, if the variant is for other archs only.
        worst_error: as ``compare`` defines it.
        sizes: the size variables of each case.
        device: where it ran.
        dependencies, untracked: as of a :class:`LowerResult`; nothing is made, so nothing need be said of the latter.
    """

    cases: int
    worst_error: float
    sizes: tuple[Mapping[str, int], ...]
    device: str
    dependencies: Mapping[str, str] = field(default_factory=dict)
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasureResult:
    """What came of a :class:`MeasureRequest`.

    Arguments:
        us: microseconds of a call by each batch.
        warm_us: the same with warm caches; none, where they always are.
        clock_mhz: the clock of the device; 0: unknown.
        disturbed: the part of the batches in which a thread waited for a CPU.
    """

    us: tuple[float, ...]
    warm_us: tuple[float, ...]
    clock_mhz: int
    disturbed: float


@dataclass(frozen=True)
class CostResult:
    """What a definition estimates of each candidate of a :class:`CostRequest`."""

    costs: tuple[float, ...]


@dataclass(frozen=True)
class DevicesResult:
    """The archs of this machine's GPUs."""

    cuda: tuple[str, ...]


@dataclass(frozen=True)
class ToolRun:
    """How a tool ended.

    Arguments:
        status: exit status, or minus the signal.
        in_time: false: it was ended.
        output: both streams together.
        seconds, cpu_seconds: what it took.
        peak_kib: the memory of the largest of its processes.
    """

    status: Annotated[int, that("an exit status", lambda value: -256 < value < 256)]
    in_time: bool
    output: str
    seconds: Seconds
    cpu_seconds: Seconds
    peak_kib: Kib


RESULTS: Mapping[str, Any] = {
    DiscoverRequest.op: DefinitionRecord,
    LowerRequest.op: LowerResult,
    CheckRequest.op: CheckResult,
    MeasureRequest.op: MeasureResult,
    CostRequest.op: CostResult,
    DevicesRequest.op: DevicesResult,
    ToolRequest.op: ToolRun,
}
"""Operation -> the type of its result."""


@dataclass(frozen=True)
class Hello:
    """The worker's greeting: versions of what it runs."""

    versions: Mapping[str, str]


@dataclass(frozen=True)
class Progress:
    """What the worker is about to do for a request."""

    id: int
    doing: str


@dataclass(frozen=True)
class Spent:
    """The worker cannot do a request, because it has executed something else: another one can."""

    id: int


@dataclass(frozen=True)
class Answer:
    """The end of a request: a result, or an error."""

    id: int
    result: Mapping[str, Any] = field(default_factory=dict)
    error: KernelwrightError | None = None
    retiring: bool = False


def definition_of(request: Request) -> Definition:
    """What a request makes of the process that does it."""
    if isinstance(request, ToolRequest):
        return None
    if isinstance(request, DevicesRequest):
        return "", False, "cuda"
    kind = request.device.partition(":")[0] if isinstance(request, CheckRequest) else ""
    return request.file, request.strict, kind if kind in ("cuda", INTERPRETED) else ""


def result_of(request: Request, result: Mapping[str, Any]) -> Any:
    """The result of a request, of the type that :data:`RESULTS` has for it.

    Raises:
        WorkerError: it has another form.
    """
    try:
        return from_json(RESULTS[request.op], result)
    except ValueError as error:
        raise WorkerError(
            f"the result of a {request.op} request has a wrong form: {str(error)[:LONGEST_SHOWN]}",
            request.where,
            "a definition may have written to a file descriptor that it did not open; "
            "otherwise report this as a defect of Kernelwright",
            shown(dict(result)),
        ) from error


def encode_request(number: int, request: Request) -> bytes:
    """One line for a request."""
    return _line({"id": number, "op": request.op, **to_json(request)})


def decode_request(line: bytes) -> tuple[int, Request]:
    """Number and request of a line.

    Raises:
        WorkerError: the line is not a request of this protocol.
    """
    message = _object(line)
    number = _number(message, line)
    kind: Any = REQUESTS.get(str(message.pop("op", None)))
    if kind is None:
        raise _nonsense("a request with an unknown op", line)
    try:
        return number, from_json(kind, message)
    except ValueError as error:
        raise _nonsense(f"a {kind.op} request in which {error}", line) from error


def encode_hello(versions: Mapping[str, str]) -> bytes:
    """The greeting of a worker that is ready."""
    return _line({"hello": VERSION, "versions": dict(versions)})


def encode_failed_hello(error: KernelwrightError) -> bytes:
    """The greeting of a worker that cannot work."""
    return _line({"hello": VERSION, "error": error_to_json(error)})


def decode_hello(line: bytes) -> Hello:
    """The greeting in a line.

    Raises:
        KernelwrightError: the worker says that it cannot work.
        WorkerError: the line is not a greeting, or one of another protocol version.
    """
    message = _object(line)
    if message.get("hello") != VERSION:
        raise _nonsense(f"no greeting of protocol version {VERSION}", line)
    if "error" in message:
        raise error_from_json(message["error"], line)
    versions = message.get("versions")
    if not isinstance(versions, dict) or not _is_dict_of(versions, str):
        raise _nonsense("a greeting without versions", line)
    return Hello(versions)


def encode_progress(number: int, doing: str) -> bytes:
    """One line that says what is about to be done for a request."""
    return _line({"id": number, "progress": doing})


def encode_result(number: int, result: Any, retiring: bool = False) -> bytes:
    """One line for the result of a request; ``retiring``: the worker ends after it."""
    return _line({"id": number, "ok": True, "result": to_json(result)} | ({"retiring": True} if retiring else {}))


def encode_error(number: int, error: KernelwrightError) -> bytes:
    """One line for a request that failed."""
    return _line({"id": number, "ok": False, "error": error_to_json(error)})


def encode_spent(number: int) -> bytes:
    """One line for a request that a new worker has to do."""
    return _line({"id": number, "spent": True})


def decode_answer(line: bytes) -> Progress | Answer | Spent:
    """Progress or answer in a line from the worker.

    Raises:
        WorkerError: the line is neither.
    """
    message = _object(line)
    number = _number(message, line)
    if isinstance(message.get("progress"), str):
        return Progress(number, message["progress"])
    if message.get("spent") is True:
        return Spent(number)
    if message.get("ok") is True and isinstance(message.get("result"), dict):
        return Answer(number, message["result"], retiring=message.get("retiring") is True)
    if message.get("ok") is False:
        return Answer(number, error=error_from_json(message.get("error"), line))
    raise _nonsense("neither progress nor an answer", line)


def error_to_json(error: KernelwrightError) -> dict[str, Any]:
    """An error as a JSON object."""
    where = {name: value for name, value in asdict(error.where).items() if value is not None}
    return {
        "type": type(error).__name__,
        "message": error.message,
        "where": where,
        "remedy": error.remedy,
        "detail": error.detail,
    }


def error_from_json(value: Any, line: bytes) -> KernelwrightError:
    """The error that :func:`error_to_json` wrote; ``line`` is what to show when it is something else."""
    if not isinstance(value, dict) or not isinstance(value.get("message"), str):
        raise _nonsense("an error without a message", line)
    if not all(isinstance(value.get(name), (str, type(None))) for name in ("remedy", "detail")):
        raise _nonsense("an error whose remedy or detail is no text", line)
    kind = getattr(errors, str(value.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, KernelwrightError)) or kind is errors.ToolError:
        kind = WorkerError
    where = value.get("where") or {}
    known = {f.name for f in fields(Where)}
    if not _is_dict_of(where, str) or not set(where) <= known:
        raise _nonsense("an error with an unknown place", line)
    return kind(value["message"], Where(**where), value.get("remedy"), value.get("detail"))


def _line(message: Mapping[str, Any]) -> bytes:
    # ASCII only, so that no encoding and no line separator can break the framing.
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _nonsense("no JSON", line) from error
    if not isinstance(message, dict):
        raise _nonsense("no JSON object", line)
    return message


def _number(message: dict[str, Any], line: bytes) -> int:
    number = message.pop("id", None)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _nonsense("a message without an id", line)
    return number


def _is_dict_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, dict) and all(isinstance(item, kinds) for item in value.values())


def _nonsense(what: str, line: bytes) -> WorkerError:
    shown = line[:200].decode("ascii", "backslashreplace").rstrip()
    return WorkerError(
        f"expected a message of the worker protocol, got {what}",
        remedy="report this as a defect of Kernelwright",
        detail=shown or "(an empty line)",
    )
