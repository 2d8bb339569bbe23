"""Makes PTX of a source with the declarations of its headers that it needs; see ``toolchain/trimming.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from ..processes.runner import ToolResult
from .kept_headers import KeptHeaders
from .nvcc_run import NvccJob
from .nvcc_steps import Steps
from .trimmed_source import TrimmedSource
from .trimming import Headers

Run = Callable[[Sequence[str]], ToolResult]
"""Runs a command in the folder of the source."""


@dataclass
class KnownHeaders:
    """The headers of sources, preprocessed and read once for each arch and flags. Several threads may ask at a time."""

    _known: dict[tuple[str, ...], Headers] = field(default_factory=dict)
    _locks: dict[tuple[str, ...], Lock] = field(default_factory=dict)

    def of(
        self, key: tuple[str, ...], before: Headers | None, kept: KeptHeaders, read: Callable[[], Headers]
    ) -> Headers:
        """What is known or kept by that key, or else what ``read`` gives. A second thread waits for the first."""
        with self._locks.setdefault(key, Lock()):
            if key not in self._known:
                self._known[key] = kept.of(key, before, read)
            return self._known[key]


def compile_trimmed(
    job: NvccJob,
    steps: Steps,
    known: KnownHeaders,
    kept: KeptHeaders,
    scratch: Path,
    run: Run,
    translate: Run,
    *,
    checked: bool,
) -> list[ToolResult]:
    """Make PTX; an empty list: it does not count, because the source needs all of its headers.

    Arguments:
        known, kept: headers that this build, and that builds before it have read.
        run: runs the preprocessor.
        translate: makes PTX of what was preprocessed.
        checked: as :meth:`Steps.front_end` has it.

    Raises:
        ToolError: a program failed.
        ValueError: the headers or the steps have another form than is known.
    """
    results: list[ToolResult] = []
    where = (job.headers.standard, *job.headers.flags(job.headers.path)) if job.headers else ()

    def headers_of(head: str, before: Headers | None, read: Callable[[], Headers]) -> Headers:
        return known.of((job.arch, *job.flags, *where, head), before, kept, read)

    def kept_of(run: Run) -> Callable[[Sequence[str]], None]:
        return lambda command: results.append(run(command))

    source = TrimmedSource(
        *(job.folder / "device.cu", steps, scratch, kept_of(run), kept_of(translate)), headers_of, job.headers is None
    )
    return results if source.make_ptx(checked=checked) else []
