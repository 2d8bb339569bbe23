"""Takes the finished kernels of definition files out of the build cache: in the build, or in a process beside it.

A process of its own reads lines of JSON: a :class:`Wanted`, and then one :class:`Batch` after the other. It answers
each batch with a :class:`Done`. It ends when its input ends, and so also when the build is killed.

Nothing here imports SCons.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..core.converter import from_json, json_text
from ..core.dependencies import present_digest
from ..core.files import Stamp, lasting_stamp, sha256_of
from ..core.records import decoded
from ..core.shard import parse_shard
from . import finished
from .cache import BuildCache, Work
from .finished import Finished
from .remote_entries import Compressed
from .settled import SettledKernel, Stamps, trusted_stamps
from .shards import layered


@dataclass(frozen=True)
class Wanted:
    """What may be restored, where from, and where to.

    Arguments:
        caches: the folder of the build cache, and those of the shards' caches behind it.
        top: the project's folder.
        work: the folder of the package's kernels.
        shared: the folders in it that belong to no kernel.
        taken: names of kernels that other definition files declare.
        tables: name of a kernel -> its tuning tables.
        shard: the shard that is built, as the command line has it; empty: all kernels.
    """

    caches: Sequence[str]
    top: str
    work: str
    shared: Sequence[str]
    taken: Sequence[str]
    tables: Mapping[str, Sequence[str]]
    shard: str


@dataclass(frozen=True)
class Restored:
    """The kernels of a definition file that were restored.

    Arguments:
        notes: what a run says about them.
        kernels: the kernels, by name.
        steps: label, subject, kernel, variant and arch of each stage whose outputs were written.
        outputs: path in the folder of the package's kernels -> stamp, digest, and line of the journal.
        stamps: of all that the kernels depend on, for the next run; None: they might not show the next change.
        start, end: when it began and ended, by ``time.monotonic``, which all processes have in common.
    """

    notes: Sequence[str]
    kernels: Mapping[str, SettledKernel]
    steps: Sequence[tuple[str, str, str, str, str]]
    outputs: Mapping[str, tuple[Stamp, str, str]]
    stamps: Stamps | None
    start: float
    end: float


@dataclass(frozen=True)
class Batch:
    """The questions for the process.

    Arguments:
        questions: for each definition file, the question for its kernels, and the remote cache's answer or None.
    """

    questions: Sequence[tuple[Any, Compressed | None]]


@dataclass(frozen=True)
class Done:
    """What a process answers: what it has restored for each question, and what the build cache has done."""

    restored: Sequence[Restored | None]
    work: Work


class Restorer:
    """Restores kernels.

    Arguments:
        build_cache: where they come from.
        wanted: what may be restored, and where to.
    """

    def __init__(self, build_cache: BuildCache, wanted: Wanted) -> None:
        self._cache = build_cache
        self._wanted = wanted
        self._place = os.path.relpath(wanted.work, wanted.top)
        self._taken = {*wanted.taken}
        self._shard = parse_shard(wanted.shard) if wanted.shard else None
        self._digest = cache(sha256_of)

    def restore(self, question: Any) -> Restored | None:
        """Restore the kernels of a definition file; None if the cache lacks some, or this tree has some of them.

        Arguments:
            question: the question that the cache keeps them by.
        """
        start, wanted = time.monotonic(), self._wanted
        present = cache(partial(present_digest, Path(wanted.top)))
        recalled = finished.recall(self._cache, question, present)
        if recalled is None or not self._may_take(recalled[0]):
            return None
        found = recalled[0]
        written = finished.restore(self._cache, *recalled, wanted.work, wanted.shared, self._digest)
        if written is None:
            return None
        lines = {path: stage.lines[name] for stage in written.stages for name, path in stage.outputs.items()}
        outputs = {
            path: (lasting_stamp(f"{wanted.work}/{path}"), written.digests[path], line) for path, line in lines.items()
        }
        known = {path: stamp for path, (stamp, _, _) in outputs.items()}
        kernels = {
            name: replace(kernel, outputs=self._stamps(_made_for(name, found), known))
            for name, kernel in found.kernels.items()
        }
        steps = [(s.label, s.subject, s.kernel, s.variant, s.arch) for s in written.stages]
        # The digests by which the kernels were found: what has changed since then counts as a change in the next run.
        names = {name: present(name) for name in found.names}
        depends = trusted_stamps(wanted.top, names)
        return Restored(found.notes, kernels, steps, outputs, depends, start=start, end=time.monotonic())

    def _stamps(self, paths: Iterable[str], known: Mapping[str, Stamp]) -> Stamps:
        """Stamps of files by their path relative to the top; those that kernels have in common may be old ones."""
        stamps: Stamps = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # of an old stage some other file is there
                stamps[f"{self._place}/{path}"] = [*(known.get(path) or lasting_stamp(f"{self._wanted.work}/{path}"))]
        return stamps

    def _may_take(self, found: Finished) -> bool:
        wanted = self._wanted
        folders = {*found.kernels, *wanted.shared}
        return (
            all(self._shard is None or self._shard.has(name) for name in found.kernels)
            and all(path.partition("/")[0] in folders for path in found.paths)
            and not any(name in self._taken or os.path.lexists(f"{wanted.work}/{name}") for name in found.kernels)
            and all(table in found.names for name in found.kernels for table in wanted.tables.get(name, ()))
        )


def _made_for(name: str, found: Finished) -> Iterator[str]:
    """The files of a kernel in the folder of the package's kernels, those among them that other kernels have, too."""
    products = {source for source, _ in found.kernels[name].products.values()}
    for stage in found.stages:
        is_its = name in stage.users
        yield from (p for p in stage.outputs.values() if is_its or p in products or p.startswith(f"{name}/"))


def serve() -> None:
    """Do what the lines of stdin say."""
    wanted = from_json(Wanted, decoded(sys.stdin.readline()))
    folder, *shards = map(Path, wanted.caches)
    build_cache = BuildCache(folder, limit=0, owned=True, behind=lambda: layered(shards))
    restorer = Restorer(build_cache, wanted)
    for line in sys.stdin:
        restored = []
        for question, compressed in from_json(Batch, decoded(line)).questions:
            if compressed is not None:
                # A damaged answer is a miss here, too; the build gets it back, and tells the user.
                with contextlib.suppress(ValueError):
                    build_cache.receive(compressed)
            restored.append(restorer.restore(question))
        print(json_text(Done(restored, build_cache.work_done())), flush=True)
