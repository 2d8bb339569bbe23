"""What processes can be asked to do, and with what result: both are frozen dataclasses.

The fields of a request are all that the process is told; :mod:`.messages` turns requests and results into lines.
Nothing here imports TVM, NumPy or SCons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from ..core.converter import from_json, that
from ..core.errors import LONGEST_SHOWN, Where, WorkerError, shown
from ..core.request import ASIDE
from ..core.signature import Signature
from ..define.debug import NO
from ..define.own_sources import OwnSource
from ..define.record import DefinitionRecord

INTERPRETED = "interpreted"
"""In place of a device: the interpreter of the definition's language, which runs on the CPU."""

REFERENCE = "reference"
"""In place of a variant, where times are measured: the definition's reference."""

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
    """The result of a :class:`LowerRequest`.

    Arguments:
        files: the names of the files that were written.
        schedule: what scheduled the code, for people.
        seconds, cpu_seconds: what it took.
        dependencies: all that was read, with the digests.
        untracked: what the definition did that no digest covers, with the place.
    """

    files: tuple[str, ...]
    schedule: str
    seconds: Seconds
    cpu_seconds: Seconds
    dependencies: Mapping[str, str]
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourcesResult:
    """The result of a :class:`SourcesRequest`.

    Arguments:
        sources: files and texts.
        dependencies: all that was read, with the digests.
        untracked: what the definition did that no digest covers, with the place.
    """

    sources: tuple[OwnSource, ...]
    dependencies: Mapping[str, str]
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """The result of a :class:`CheckRequest`.

    Arguments:
        cases: how many calls were compared; none, if the variant is for other archs only.
        worst_error: as ``compare`` defines it.
        sizes: the size variables of each case.
        device: where it ran.
        dependencies: all that was read, with the digests.
    """

    untracked: ClassVar[tuple[str, ...]] = ()
    """As for a :class:`LowerResult`; empty, because nothing is made."""

    cases: int
    worst_error: float
    sizes: tuple[Mapping[str, int], ...]
    device: str
    dependencies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasureResult:
    """The result of a :class:`MeasureRequest`.

    Arguments:
        us: microseconds of a call by each batch.
        warm_us: the same with warm caches; empty where caches are always warm.
        clock_mhz: the clock of the device; 0: unknown.
        disturbed: the share of the batches in which a thread waited for a CPU.
        moved: bytes that a call reads and writes at least: each array once, and twice if it is read and written.
        flops: floating-point operations of a call, as the definition declares them; 0: it does not.
    """

    us: tuple[float, ...]
    warm_us: tuple[float, ...]
    clock_mhz: int
    disturbed: float
    moved: int
    flops: float


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
        in_time: whether it ended in time; if not, it was killed.
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


@dataclass(frozen=True)
class EmitResult:
    """What a backend has written: file name -> text."""

    texts: Mapping[str, str]


ResultKind = TypeVar("ResultKind", covariant=True)


class Request(Protocol[ResultKind]):
    """What every request has besides its fields."""

    op: ClassVar[str]
    """Its name in messages."""

    @property
    def result(self) -> type[ResultKind]:
        """The type of its result."""

    @property
    def where(self) -> Where:
        """The place that its errors belong to."""

    @property
    def definition(self) -> Definition:
        """What the process that does it becomes."""

    @property
    def if_late(self) -> str:
        """What to do if it takes too long; empty: the same as for all requests."""


@dataclass(frozen=True)
class _OfDefinition:
    """A request to a process that executes a definition file.

    Arguments:
        file: the definition file, absolute or relative to the project root.
        strict: whether it is an error to read what the definition does not declare.
    """

    stage: ClassVar[str]
    file: str
    strict: bool = field(default=False, kw_only=True)

    @property
    def where(self) -> Where:
        """The place that its errors belong to."""
        return Where(getattr(self, "kernel", None), getattr(self, "slug", None), self.stage, self.file)

    @property
    def definition(self) -> Definition:
        """What the process that does it becomes."""
        return self.file, self.strict, ""

    @property
    def if_late(self) -> str:
        """What to do if it takes too long; empty: the same as for all requests."""
        return ""


@dataclass(frozen=True)
class DiscoverRequest(_OfDefinition):
    """Execute a definition file and report its kernels and the project files that it read."""

    op: ClassVar[str] = "discover"
    result: ClassVar[type[DefinitionRecord]] = DefinitionRecord
    stage: ClassVar[str] = "discover"


@dataclass(frozen=True)
class LowerRequest(_OfDefinition):
    """Lower one variant for one target and write the unit's files into a folder.

    Arguments:
        kernel, slug, symbol, config, target, arch: as for the :class:`Unit` that is lowered. The definition itself
            declares the rest of that, such as outputs.
        out: an existing, empty folder that receives the files.
        archs: those that the front end itself makes device code for.
        listed: whether the definition lists the config. If not, the variant is lowered as if it were the last one.
        pass_configs: configs of TVM's passes.
        ir: an existing, empty folder that receives the IR after each pass; empty: it is not written.
        python: the interpreter of the front end's own environment; empty: there is none.
        debug: what the front end itself makes for debuggers, one of :data:`define.debug.LEVELS`.
        imported_for: the arch that modules of the definition are imported for, if they may ask for it; empty: for any.
    """

    op: ClassVar[str] = "lower"
    result: ClassVar[type[LowerResult]] = LowerResult
    stage: ClassVar[str] = "lower"
    kernel: str
    slug: str
    symbol: str
    config: Mapping[str, Any]
    target: str
    arch: str
    out: str = field(default="", metadata=ASIDE)
    archs: tuple[str, ...] = ()
    listed: bool = field(default=True, metadata=ASIDE)
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    ir: str = field(default="", metadata=ASIDE)
    python: str = field(default="", metadata=ASIDE)
    imported_for: str = field(default="", metadata=ASIDE)
    debug: str = NO

    @property
    def definition(self) -> Definition:
        """See :attr:`_OfDefinition.definition`; modules are imported once in a process."""
        return self.file, self.strict, self.imported_for


@dataclass(frozen=True)
class SourcesRequest(_OfDefinition):
    """Ask for the sources of a variant whose config the definition does not list, which a function makes.

    Arguments:
        kernel, slug, config: the variant.
    """

    op: ClassVar[str] = "sources"
    result: ClassVar[type[SourcesResult]] = SourcesResult
    stage: ClassVar[str] = "lower"
    listed: ClassVar[bool] = False
    kernel: str
    slug: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class CheckRequest(_OfDefinition):
    """Compare one variant of a built library with its NumPy reference on a device.

    Arguments:
        kernel, slug: the variant.
        library: path of the built shared library; empty if the definition is interpreted. That and the signature are
            sources of the stage.
        variant_index: the variant's place in the kernel's configs; the library exports ``<kernel>__<index>``.
        signature: that of the variant's unit; ``UNKNOWN`` until it is lowered.
        device: ``cpu``, ``cuda`` with an index, such as ``cuda:0``, or ``INTERPRETED``.
        tolerance: largest accepted error as ``compare`` defines it, or None for the default of each dtype.
        listed: whether the definition lists the variant.
        config: that of the variant; a listed variant is found by its slug.
        archs: the archs that device code was made for, with commas, if these are not all archs of the kernel: on a
            device that can run none of them nothing is compared. For the interpreter, the arch of the definition.
        python: the interpreter of the front end's own environment, if the definition is interpreted.
    """

    op: ClassVar[str] = "check"
    result: ClassVar[type[CheckResult]] = CheckResult
    stage: ClassVar[str] = "check"
    kernel: str
    slug: str
    library: str = field(metadata=ASIDE)
    variant_index: int
    signature: Signature = field(metadata=ASIDE)
    device: str
    tolerance: float | None = None
    listed: bool = field(default=True, metadata=ASIDE)
    config: Mapping[str, Any] = field(default_factory=dict)
    archs: str = ""
    python: str = field(default="", metadata=ASIDE)

    @property
    def definition(self) -> Definition:
        """What the process that does it becomes."""
        kind = self.device.partition(":")[0]
        return self.file, self.strict, kind if kind in ("cuda", INTERPRETED) else ""

    @property
    def if_late(self) -> str:
        """What to do if it takes too long; empty: the same as for all requests."""
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
        waiting: the part of a batch's time that its threads may have waited for a CPU.
        beside: what is called in place of the variant: ``REFERENCE``, the absolute folder of a built package, or a
            function such as ``torch:softmax``; empty: the variant.
    """

    op: ClassVar[str] = "measure"
    result: ClassVar[type[MeasureResult]] = MeasureResult  # type: ignore[assignment]
    stage: ClassVar[str] = "tune"
    sizes: Mapping[str, int] = field(default_factory=dict)
    batches: int = 1
    batch_us: int = 1000
    waiting: float = 0.0
    beside: str = ""


@dataclass(frozen=True)
class CostRequest(_OfDefinition):
    """Ask a definition to estimate the costs of candidates; the process of ``tune/measure.py`` answers.

    Arguments:
        kernel: the kernel.
        configs: those of the candidates.
        sizes: the value of each size variable.
        target: ``llvm`` or ``cuda``.
    """

    op: ClassVar[str] = "cost"
    result: ClassVar[type[CostResult]] = CostResult
    stage: ClassVar[str] = "tune"
    kernel: str
    configs: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, int]
    target: str


@dataclass(frozen=True)
class DevicesRequest:
    """Ask which devices this machine has."""

    op: ClassVar[str] = "devices"
    result: ClassVar[type[DevicesResult]] = DevicesResult
    where: ClassVar[Where] = Where(stage="check")
    definition: ClassVar[Definition] = ("", False, "cuda")
    if_late: ClassVar[str] = ""


@dataclass(frozen=True)
class ToolRequest:
    """Run a compiler; ``tool_process`` does that, and no worker that has TVM.

    Arguments:
        command: the executable's path and its arguments.
        folder: the folder that it runs in.
        environment: all of its environment.
        timeout_s: seconds after which it is ended.
        where: the place that an error of this request belongs to.
    """

    op: ClassVar[str] = "tool"
    result: ClassVar[type[ToolRun]] = ToolRun
    definition: ClassVar[Definition] = None
    if_late: ClassVar[str] = ""
    command: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    timeout_s: float
    where: Where


@dataclass(frozen=True)
class EmitRequest:
    """Have a backend of another distribution write files; the process of ``backends/writer.py`` does that.

    Arguments:
        backend: its name.
        content: digests of what it consists of, as the build knows it.
        plan: that of the kernel whose files are written, as JSON data; None: they are those of a package.
        package: the name of the package, the version of its project, and the names of its kernels.
        where: the place that an error of this request belongs to.
    """

    op: ClassVar[str] = "emit"
    result: ClassVar[type[EmitResult]] = EmitResult
    definition: ClassVar[Definition] = None
    if_late: ClassVar[str] = ""
    backend: str
    content: Sequence[str]
    plan: Mapping[str, Any] | None
    package: tuple[str, str, tuple[str, ...]]
    where: Where


def result_of(request: Request[Any], value: Any) -> Any:
    """The result of a request, out of JSON data.

    Raises:
        WorkerError: it has another form.
    """
    try:
        return from_json(request.result, value)
    except ValueError as error:
        raise WorkerError(
            f"the result of a {request.op} request has a wrong form: {str(error)[:LONGEST_SHOWN]}",
            request.where,
            "a definition may have written to a file descriptor that it did not open; "
            "otherwise report this as a defect of Kernelwright",
            shown(value),
        ) from error
