"""Takes the finished kernels of definition files out of the build cache: in the build, or in a process beside it.

In a process of its own it speaks lines of JSON: the first says where it works, and each further one has a batch of
questions, with what the remote cache has given for them, to which it answers with a line. It ends when its input does,
so also when the build was killed.

Nothing here imports SCons.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..core.dependencies import present_digest
from ..core.files import lasting_stamp, sha256_of
from ..core.shard import parse_shard
from . import finished
from .cache import BuildCache
from .finished import Finished
from .remote_entries import Compressed
from .settled import Recorded, trusted_stamps


@dataclass(frozen=True)
class Wanted:
    """What may be restored, and where to.

    Arguments:
        top: the project's folder.
        work: the folder of the package's kernels.
        shared: the folders in it that belong to no kernel.
        taken: names of kernels that other files have.
        tables: name of a kernel -> its tuning tables.
        shard: the shard that is built, as the command line has it; empty: all kernels.
    """

    top: str
    work: str
    shared: Sequence[str]
    taken: Sequence[str]
    tables: Mapping[str, Sequence[str]]
    shard: str


@dataclass(frozen=True)
class Restored:
    """The kernels of a definition file that were restored. All of it is JSON.

    Arguments:
        notes: what a run says about them.
        kernels: name -> what a ``SettledKernel`` has.
        steps: label, subject, kernel, variant and arch of each stage whose outputs were written.
        outputs: path in the folder of the package's kernels -> stamp, digest, and line of the journal.
        stamps: of all that the kernels depend on, for the next run; None: they would not tell the next change.
        start, end: when, by ``time.monotonic``, which all processes have in common.
    """

    notes: Sequence[str]
    kernels: Mapping[str, dict[str, Any]]
    steps: Sequence[Sequence[str]]
    outputs: Mapping[str, tuple[Recorded, str, str]]
    stamps: Mapping[str, Recorded | None] | None
    start: float
    end: float


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
            question: what they are known by in the cache.
        """
        start, wanted = time.monotonic(), self._wanted
        present = cache(partial(present_digest, Path(wanted.top)))
        found = finished.recall(self._cache, question, present)
        if found is None or not self._may_take(found):
            return None
        written = finished.restore(self._cache, found, wanted.work, wanted.shared, self._digest)
        if written is None:
            return None
        lines = {path: stage.lines[name] for stage in written.stages for name, path in stage.outputs.items()}
        outputs = {
            path: ([*lasting_stamp(f"{wanted.work}/{path}")], written.digests[path], line)
            for path, line in lines.items()
        }
        kernels = {}
        for name, kernel in found.kernels.items():
            stamps = {f"{self._place}/{path}": out[0] for path, out in outputs.items() if path.startswith(f"{name}/")}
            kernels[name] = vars(replace(kernel, outputs=stamps))
        steps = [(s.label, s.subject, s.kernel, s.variant, s.arch) for s in written.stages]
        # With the digests that it was found by: what has changed since then counts as a change in the next run.
        names = {name: present(name) for name in found.names}
        depends = trusted_stamps(wanted.top, names)
        return Restored(found.notes, kernels, steps, outputs, depends, start, time.monotonic())

    def _may_take(self, found: Finished) -> bool:
        wanted = self._wanted
        folders = {*found.kernels, *wanted.shared}
        return (
            all(self._shard is None or self._shard.has(name) for name in found.kernels)
            and all(path.partition("/")[0] in folders for path in found.paths)
            and not any(name in self._taken or os.path.lexists(f"{wanted.work}/{name}") for name in found.kernels)
            and all(table in found.names for name in found.kernels for table in wanted.tables.get(name, ()))
        )


def serve() -> None:
    """Do what the lines of stdin say."""
    setup = json.loads(sys.stdin.readline())
    build_cache = BuildCache(Path(setup["cache"]), limit=0, owned=True)
    restorer = Restorer(build_cache, Wanted(**setup["wanted"]))
    for line in sys.stdin:
        answers = []
        for question, compressed in json.loads(line):
            if compressed is not None:
                key, later, data = compressed
                # One that is damaged is a miss here, too; the build gets it back, and says so.
                with contextlib.suppress(ValueError):
                    build_cache.receive(Compressed(key, later, base64.b64decode(data)))
            restored = restorer.restore(question)
            answers.append(None if restored is None else vars(restored))
        work = build_cache.work_done()
        print(json.dumps({"answers": answers, "work": {**vars(work), "counts": vars(work.counts)}}), flush=True)


def batch_line(questions: Sequence[tuple[Any, Compressed | None]]) -> str:
    """The line that asks :func:`serve` for a batch.

    Arguments:
        questions: what the kernels of each definition file are known by, with what has come from the remote cache.
    """
    came = (None if p is None else (p.key, p.later, base64.b64encode(p.data).decode()) for _, p in questions)
    return json.dumps([*zip((question for question, _ in questions), came, strict=True)])
