"""A stage: what makes some files out of others, and what decides whether it has to run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import Where
from ..core.files import canonical_json
from ..core.request import canonical, digest, parts
from ..state.entry import key_of
from .code import code_digest

IR = "ir"
"""Name of the target that asks for the IR after each pass, and of the folder with it beside a variant's files."""

CACHED = "[ CACHED ]"
"""How the progress line of a stage begins whose outputs the build cache has; its label follows."""


class Request(Protocol):
    """A frozen dataclass with all that decides the outputs of a stage, such as flags and tools (``core.request``)."""

    def make(self, scratch: Path, stage: Any) -> None:
        """Leave a file for each output in the scratch folder; ``stage`` is a :class:`.stage_run.StageRun`."""


@dataclass
class Measured:
    """What a stage took: seconds of CPU time of its tools or its worker, and the peak of its memory in KiB."""

    cpu_seconds: float | None = None
    peak_kib: int | None = None

    def add(self, cpu_seconds: float, peak_kib: int) -> None:
        """Add what a run of a tool took."""
        self.cpu_seconds = (self.cpu_seconds or 0.0) + cpu_seconds
        self.peak_kib = max(self.peak_kib or 0, peak_kib)


@dataclass(eq=False)
class Stage:
    """One step of a build.

    Arguments:
        label: which kind of stage it is, such as ``CUBIN`` (see ``core.pipeline``).
        subject: what it works on, such as ``gemm/block_m-64 sm_90a``.
        where: the place for error messages.
        request: what decides the outputs besides the sources, and does the work.
        outputs: the files that it makes: name in the scratch folder -> absolute path.
        sources: absolute paths of the files that it reads.
        instead: does the work in place of the request.
        late: gives what decides, too, and is known only when everything that it waits for is done.
        later: the files that the stage turned out to depend on when it ran, name -> SHA-256. They belong into the
            fingerprint that is stored: that is computed anew after the stage has run.
        note: keeps such files for the next run, and gives those that the stage has to compare; None: it has none.
        ask: has a worker answer a request, if the stage consists of that.
        cacheable: whether the build cache may keep its outputs.
        here: whether no other machine may have them, because nobody there could tell whether they are right.
        archs: the archs that it makes code for, if that is not all of its kernel's.
        rest: for a stage that can do without some sources: whether enough of them is left (see ``partial``).
        shipped: whether a package has what it makes, or what is made of that. If not, no partial package lacks it.
        command: the run of a compiler that it consists of, for compile_commands.json.
        published: whether this run has made its outputs.
        cached: whether they came out of the build cache.
        measured: what making them took.
        logs: the folder where a partial build keeps its error.
        key: its key in the build cache, if that was asked for.
        keeps: a folder of files that are no outputs; what is in it stays as long as there is this stage.
        outside: files outside of the project whose digests are in its request: name -> digest. Whoever takes what it
            made without it has to compare them.
        users: the kernels that have it in common -> where they are declared; empty: it belongs to one, or to none.
    """

    label: str
    subject: str
    where: Where
    request: Request
    outputs: Mapping[str, str]
    sources: Sequence[str]
    instead: Callable[[Path, Any], None] | None = None
    late: Callable[[], Any] | None = None
    later: Mapping[str, str] = field(default_factory=dict)
    note: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None
    ask: Callable[[Any, Where], Any] | None = None
    cacheable: bool = True
    here: bool = False
    archs: tuple[str, ...] = ()
    rest: Callable[[], bool] | None = None
    shipped: bool = True
    command: Mapping[str, Any] | None = None
    published: bool = False
    cached: bool = False
    measured: Measured = field(default_factory=Measured)
    logs: Path | None = None
    key: str | None = None
    keeps: Path | None = None
    outside: Mapping[str, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)

    def make(self, scratch: Path, running: Any) -> None:
        """Leave a file for each output in the scratch folder; ``running`` is a :class:`.stage_run.StageRun`."""
        (self.instead or self.request.make)(scratch, running)

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the outputs."""
        return list(self.outputs.values())

    @property
    def line(self) -> str:
        """The progress line."""
        return f"{CACHED} {self.label} {self.subject}" if self.cached else f"[ {self.label} ] {self.subject}"

    @property
    def fingerprint(self) -> str:
        """What decides, besides the sources, whether the stage has to run again."""
        late = [] if self.late is None else [self.late()]
        return f"{self._known_before} {canonical_json([self.later, *late])}"

    @cached_property
    def _known_before(self) -> str:
        """The part of the fingerprint that is known before the stage runs."""
        return canonical_json([self.label, code_digest(self.label), canonical(self.request)])

    @property
    def decided(self) -> dict[str, str]:
        """What decides besides the sources, part by part, for people; see :func:`~..core.request.parts`."""
        late = "" if self.late is None else digest(self.late())
        more = {"Kernelwright's own code": code_digest(self.label), "what it consists of": late}
        return {**parts(self.request), **parts(self.later), **parts(more)}

    @property
    def arch(self) -> str:
        """The arch that it makes code for, if that is one."""
        return getattr(self.request, "arch", "")

    def remember(self, dependencies: Mapping[str, str]) -> None:
        """Note files that the stage turned out to depend on while it ran, name -> SHA-256."""
        if self.note is not None:
            self.later = self.note(dependencies)

    def cache_key(self, digest: Callable[[str], str]) -> str:
        """Key in the build cache: the fingerprint without what is known only after the run, and the sources' contents.

        Arguments:
            digest: gives the SHA-256 of a source.
        """
        return key_of(self._known_before, [(path.rpartition("/")[2], digest(path)) for path in self.sources])


def files_in(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The outputs of a stage that makes files of these names in a folder."""
    return {name: f"{folder}/{name}" for name in names}
