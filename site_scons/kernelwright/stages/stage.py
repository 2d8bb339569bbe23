"""A stage: what makes some files out of others, and what decides whether it has to run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import Where
from ..core.files import canonical_json
from ..state.entry import key_of
from .code import code_digest

IR = "ir"
"""Name of the target that asks for the IR after each pass, and of the folder with it beside a variant's files."""


@dataclass
class Measured:
    """What a stage took: seconds of CPU time of its tools or its worker, and the peak of its memory in KiB."""

    cpu_seconds: float | None = None
    peak_kib: int | None = None


@dataclass(eq=False)
class Stage:
    """One step of a build.

    Arguments:
        label: which kind of stage it is, such as ``CUBIN`` (see ``core.pipeline``).
        subject: what it works on, such as ``gemm/block_m-64 sm_90a``.
        where: the place for error messages.
        options: everything besides the sources that decides the outputs: flags, identities of tools. JSON data.
        make: called with a scratch folder; it leaves a file for each output there.
        outputs: the files that it makes: name in the scratch folder -> absolute path.
        sources: absolute paths of the files that it reads.
        late: gives further options that are known only when everything that it waits for is done.
        remember: notes files that the stage turned out to depend on while it ran, name -> SHA-256, and puts them into
            the options; None: the stage has no such files.
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
        outside: files outside of the project whose digests are in its options: name -> digest. Whoever takes what it
            made without it has to compare them.
    """

    label: str
    subject: str
    where: Where
    options: dict[str, Any]
    make: Callable[[Path], None]
    outputs: Mapping[str, str]
    sources: Sequence[str]
    late: Callable[[], Any] | None = None
    remember: Callable[[Mapping[str, str]], None] | None = None
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

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the outputs."""
        return list(self.outputs.values())

    @property
    def line(self) -> str:
        """The progress line."""
        return f"[ {'CACHED' if self.cached else self.label} ] {self.subject}"

    @property
    def fingerprint(self) -> str:
        """What decides, besides the sources, whether the stage has to run again."""
        late = [] if self.late is None else [self.late()]
        return canonical_json([self.label, code_digest(self.label), self.options, *late])

    def cache_key(self, digest: Callable[[str], str]) -> str:
        """Key in the build cache: the fingerprint without what is known only after the run, and the sources' contents.

        Arguments:
            digest: gives the SHA-256 of a source.
        """
        options = {name: value for name, value in self.options.items() if name != "later"}
        fingerprint = canonical_json([self.label, code_digest(self.label), options])
        return key_of(fingerprint, [(path.rpartition("/")[2], digest(path)) for path in self.sources])


def files_in(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The outputs of a stage that makes files of these names in a folder."""
    return {name: f"{folder}/{name}" for name in names}
