"""Makes PTX of a source with the declarations of its headers that it needs; see ``toolchain/trimming.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from ..processes.tools import ToolResult
from .kept_headers import KeptHeaders
from .nvcc_run import NvccRun
from .nvcc_steps import Steps
from .trimmed_source import TrimmedSource
from .trimming import Headers

Run = Callable[[Sequence[str]], ToolResult]
"""Runs a command in the folder of the source."""

HeadersOf = Callable[[tuple[str, ...], Headers | None, Callable[[], Headers]], Headers]


@dataclass
class KnownHeaders:
    """The headers of sources, preprocessed and read once for each arch and flags. Several threads may ask at a time."""

    _known: dict[tuple[str, ...], Headers] = field(default_factory=dict)
    _locks: dict[tuple[str, ...], Lock] = field(default_factory=dict)

    def of(
        self, kept: KeptHeaders, key: tuple[str, ...], before: Headers | None, read: Callable[[], Headers]
    ) -> Headers:
        """What is known or kept by that key, or else what ``read`` gives. A second thread waits for the first."""
        with self._locks.setdefault(key, Lock()):
            if key not in self._known:
                self._known[key] = kept.of(key, before, read)
            return self._known[key]


def compile_trimmed(
    run: NvccRun, steps: Steps, headers: HeadersOf, translate: Run, *, checked: bool
) -> list[ToolResult]:
    """Make PTX; an empty list: it does not count, because the source needs all of its headers.

    Arguments:
        headers: what is known of headers, as :meth:`KnownHeaders.of` finds it.
        translate: makes PTX of what was preprocessed.
        checked: as :meth:`Steps.front_end` has it.

    Raises:
        ToolError: a program failed.
        ValueError: the headers or the steps have another form than is known.
    """
    job, results = run.job, list[ToolResult]()
    where = (job.headers.standard, *job.headers.flags(job.headers.path)) if job.headers else ()

    def headers_of(head: str, before: Headers | None, read: Callable[[], Headers]) -> Headers:
        return headers((job.arch, *job.flags, *where, head), before, read)

    def keeping(do: Run) -> Callable[[Sequence[str]], None]:
        return lambda command: results.append(do(command))

    runs = keeping(run.run), keeping(translate)
    source = TrimmedSource(job.folder / "device.cu", steps, run.scratch, *runs, headers_of, job.headers is None)
    return results if source.make_ptx(checked=checked) else []
