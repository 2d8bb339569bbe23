"""Takes the kernels of a fresh build folder out of the build cache, before SCons gets any nodes of them."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from ..core.converter import from_json, json_text
from ..core.dependencies import present_digest
from ..core.files import dependency_digest
from ..core.records import decoded
from ..core.surroundings import interpreter
from ..stages.stage import CACHED, Stage
from ..state import finished
from ..state.cache import BuildCache, Work
from ..state.counts import Counts
from ..state.entry import entry_key
from ..state.finished import Finished, FinishedStage
from ..state.remote_entries import Compressed
from ..state.restorer import Batch, Done, Restored, Restorer, Wanted
from ..state.settled import SettledKernel
from . import command_line
from .run import BuildRun

AT_ONCE = 128
"""How many definition files the remote cache is asked for at once; answers stay in memory until they are written."""

BATCH = 8
"""How many definition files a process gets at a time, to restore their kernels."""

WORTH_A_PROCESS = 6
"""So many batches take longer than the start of a process."""


@dataclass
class RestoredKernels:
    """The kernels of a package that came out of the build cache as a whole.

    Arguments:
        run: the run.
        key: digest of everything that all kernels of the package depend on.
        work: the folder of the package's kernels.
        shared: the folders in it that belong to no kernel.
        files: definition file -> stamps of all that its kernels depend on, for the next run; None: they could miss
            the next change.
        notes: definition file -> what a run says about its kernels.
        kernels: the kernels.
    """

    run: BuildRun
    key: str
    work: str
    shared: Collection[str]
    files: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, SettledKernel] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    def take_all(self, files: Sequence[str], taken: Collection[str], tables: Mapping[str, Sequence[str]]) -> list[str]:
        """Restore the kernels of each definition file, if the build cache has all of them and this tree has none.

        Arguments:
            taken: names of kernels that other files have.
            tables: name of a kernel -> its tuning tables.

        Returns:
            The files whose kernels were not restored.
        """
        build_cache, shard = self.run.cache, self.run.shards.shard
        if build_cache is None:
            return list(files)
        self.run.require_folders([self.work, *(f"{self.work}/{name}" for name in self.shared)])
        top = str(self.run.top)
        merged = self.run.shards.merged
        caches = [str(build_cache.folder), *(map(str, merged.folders) if merged else ())]
        wanted = Wanted(
            caches, top, self.work, [*self.shared], taken=[*taken], tables=tables, shard=str(shard) if shard else ""
        )
        restorer = Restorer(build_cache, wanted)
        not_restored: list[str] = []
        with contextlib.closing(self._batches(files, build_cache, wanted)) as batches:
            for batch, answers in batches:
                for file, answer in zip(batch, answers, strict=True):
                    # What no process could do is tried here, where a remote cache can be asked.
                    restored = answer or restorer.restore(self._question(file))
                    if restored is None:
                        not_restored.append(file)
                    else:
                        self._adopt(file, restored)
                self.run.progress.restored(self._lines)
                self._lines.clear()
        return not_restored

    def _batches(
        self, files: Sequence[str], build_cache: BuildCache, wanted: Wanted
    ) -> Generator[tuple[Sequence[str], Sequence[Restored | None]]]:
        """The files, batch by batch, with what processes have restored of their kernels.

        Processes start only after this one has restored a file, since two must not write what all kernels share. So
        they restore nothing of the first batches, and none starts if the build cache has nothing.
        """
        batches = [files[begin : begin + BATCH] for begin in range(0, len(files), BATCH)]
        count = min(command_line.jobs(), len(os.sched_getaffinity(0)), len(batches) // WORTH_A_PROCESS)
        here, by_processes = 0, count > 0 and build_cache.writable
        while here < len(batches) and not (self.files and by_processes):
            self._ask_ahead_of(files, here, by_processes)
            yield batches[here], [None] * len(batches[here])
            here += 1
        rest = range(here, len(batches))
        if not rest:
            return

        def questions_of(number: int) -> list[tuple[Any, Compressed | None]]:
            self._ask_ahead_of(files, number, by_processes)
            questions = map(self._question, batches[number])
            return [(question, build_cache.take_compressed(question)) for question in questions]

        with Restorers(count, wanted, self.run.tree.lock_descriptor) as restorers:
            done = restorers.map(questions_of, build_cache.give_back, rest)
            for number, answer in zip(rest, done, strict=True):
                build_cache.note(answer.work)
                yield batches[number], answer.restored

    def _ask_ahead_of(self, files: Sequence[str], number: int, by_processes: bool) -> None:
        """Before some batches, have the remote cache look for later kernels; before batch 0, for its own, too."""
        begin = number * BATCH
        if begin % AT_ONCE == 0:
            self._ask_ahead(files[begin + AT_ONCE if begin else 0 : begin + 2 * AT_ONCE], by_processes)

    def pull(self, files: Sequence[str]) -> int:
        """Have the build cache get the finished kernels of definition files; returns of how many files it has them."""
        build_cache, count = self.run.cache, 0
        if build_cache is None:
            return 0
        for begin in range(0, len(files), AT_ONCE):
            group = files[begin : begin + AT_ONCE]
            self._ask_ahead(group)
            asked = (finished.recall(build_cache, self._question(file), _present(self.run.top)) for file in group)
            recalled = [answer[0] for answer in asked if answer is not None]
            finished.fetch_common(build_cache, recalled)
            count += len(recalled)
        return count

    def _ask_ahead(self, files: Sequence[str], by_processes: bool = False) -> None:
        """Have the remote cache look for kernels; ``by_processes``: the asking threads leave unpacking to processes."""
        if self.run.cache is not None and self.run.caches.has_remote:
            cache = self.run.cache
            look = cache.recall_compressed_ahead if by_processes else cache.recall_ahead
            look(map(self._question, files), _present(self.run.top))

    def _adopt(self, file: str, restored: Restored) -> None:
        """Note the restored kernels of a definition file."""
        self.run.journal.adopt(self.work, restored.outputs)
        self._tell(restored)
        self.files[file] = restored.stamps
        self.notes[file] = [*restored.notes]
        self.kernels |= restored.kernels

    def keep(
        self,
        file: str,
        kernels: Mapping[str, SettledKernel],
        notes: Sequence[str],
        stages: Sequence[Stage],
        digests: Mapping[str, str],
    ) -> None:
        """Note the finished kernels of a definition file for other trees.

        Arguments:
            stages: all stages that make the kernels, with those that kernels share.
            digests: all that the kernels depend on.
        """
        build_cache = self.run.cache
        known = all(self.run.journal.line_of(path) is not None for stage in stages for path in stage.paths)
        if build_cache is not None and known and all(stage.cacheable for stage in stages):
            finished_stages = tuple(self._stage(stage, kernels) for stage in stages)
            answer = Finished(tuple(sorted(digests)), tuple(notes), kernels, finished_stages)
            finished.remember(build_cache, self._question(file), answer, digests)

    @cached_property
    def _surroundings(self) -> list[Any]:
        """A part of all questions. To read it from installed distributions takes time, so it is read once."""
        return interpreter()

    def _question(self, file: str) -> list[Any]:
        # The digest is taken once. If the file changes after that, it is a miss: the answer names its digest, too.
        if file not in self._digests:
            self._digests[file] = dependency_digest(self.run.top, file)
        return ["finished", finished.FORM, self.key, self._surroundings, file, self._digests[file]]

    def _stage(self, stage: Stage, kernels: Collection[str]) -> FinishedStage:
        assert self.run.cache is not None
        key = stage.key or stage.cache_key(self.run.journal.digest)
        entry = entry_key(key, stage.later)
        where = stage.where
        return FinishedStage(
            entry,
            stage.label,
            stage.subject,
            kernel="" if stage.users else where.kernel or "",
            variant=where.variant or "",
            arch=stage.arch,
            users=tuple(name for name in kernels if name in stage.users),
            outputs={name: os.path.relpath(path, self.work) for name, path in stage.outputs.items()},
            lines={name: self.run.journal.line_of(path) or "" for name, path in stage.outputs.items()},
        )

    def _tell(self, restored: Restored) -> None:
        """Put what was restored into the timeline, and have :meth:`take_all` show it."""
        self.run.outcome.restored += len(restored.steps)
        for label, subject, *belongs in restored.steps:
            self._lines.append(f"{CACHED} {label} {subject}")
            kernel, variant, arch = (name or None for name in belongs)
            self.run.trace.span(
                label, subject, restored.start, restored.end, cached=True, kernel=kernel, variant=variant, arch=arch
            )


def _present(top: Path) -> Any:
    """A function that returns the present digest of something that kernels depend on, and remembers it."""

    return cache(partial(present_digest, top))


PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from kernelwright.state.restorer import serve; serve()"
"""What a process runs. It gets our search path, because it runs without ``site``: it starts in a third of the time."""

OURS = str(Path(__file__).resolve().parents[2])


class Restorers:
    """Some processes, which end with this object, or with this process.

    Arguments:
        count: how many.
        wanted: what may be restored, where from, and where to.
        lock: descriptor of the tree's lock, which they hold as well: nobody else works in the tree before they end.
    """

    def __init__(self, count: int, wanted: Wanted, lock: int) -> None:
        path = [*map(str, sys.path), *([] if OURS in sys.path else [OURS])]
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self._processes = []
        for _ in range(count):
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", PROGRAM, *path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # what a process cannot do, the build tries once more, and reports
                    text=True,
                    pass_fds=[lock],
                    start_new_session=True,  # Ctrl-C ends the build, which ends them
                )
            except OSError:  # the system has no room for one more
                break
            self._processes.append(process)
            self._free.put(process)
            self._send(process, wanted)

    def __enter__(self) -> Restorers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def map(
        self,
        questions_of: Callable[[int], Sequence[tuple[Any, Compressed | None]]],
        give_back: Callable[[Compressed], None],
        batches: Iterable[int],
    ) -> Iterator[Done]:
        """Restore the kernels of one batch after the other; for each, what was restored, and what the cache has done.

        Arguments:
            questions_of: returns the questions of the batch of a number; called in several threads, where it may wait.
            give_back: gets the compressed kernels that no process could use; called in the same threads.
        """

        def restore(number: int) -> Done:
            batch = Batch(questions_of(number))
            done = self._ask(batch)
            for (_, compressed), restored in zip(batch.questions, done.restored, strict=True):
                if restored is None and compressed is not None:
                    give_back(compressed)
            return done

        with ThreadPoolExecutor(max(1, len(self._processes))) as threads:
            try:
                yield from threads.map(restore, batches)
            except BaseException:  # Ctrl-C: a thread ends when its process or request ends
                threads.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise

    def _ask(self, batch: Batch) -> Done:
        """What a process answers; one that has ended, or was never there, has restored nothing."""
        nothing = Done([None] * len(batch.questions), Work(Counts()))
        if not self._processes:
            return nothing
        process = self._free.get()
        try:
            self._send(process, batch)
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            self._free.put(process)
        if not line.endswith("\n"):  # it was killed, perhaps in the middle of its answer
            return nothing
        return from_json(Done, decoded(line))

    def _send(self, process: subprocess.Popen[str], message: Wanted | Batch) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which is seen when its answer is read
            process.stdin.write(f"{json_text(message)}\n")
            process.stdin.flush()
