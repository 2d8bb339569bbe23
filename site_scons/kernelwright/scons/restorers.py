"""Processes that take finished kernels out of the build cache. A small kernel takes 2 ms."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.converter import from_json, json_text
from ..core.records import decoded
from ..state.cache import Work
from ..state.counts import Counts
from ..state.remote_entries import Compressed
from ..state.restorer import Batch, Done, Wanted

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
