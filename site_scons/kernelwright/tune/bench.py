"""The tuner's side of the process that measures: asks for turns, and replaces the process when one goes wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import KernelwrightError
from ..processes.pool import WorkerPool
from ..processes.protocol import CostRequest, MeasureRequest, MeasureResult
from ..processes.worker import WorkerKind
from .candidates import Built
from .policy import Policy

MEASURING = WorkerKind(
    "the measuring process",
    ("-m", "kernelwright.tune.measure"),
    "the candidate takes too long, or hangs",
    "the candidate crashes",
    "a definition must not end the process it runs in",
    variables=("KERNELWRIGHT_CUDA_DRIVER", "KERNELWRIGHT_CPU_LEVEL", "KERNELWRIGHT_NUM_THREADS"),
)


@dataclass(frozen=True)
class Turn:
    """What a candidate's turn has given.

    Arguments:
        us: microseconds of a call: those of the fastest batch.
        warm_us: with warm caches, where ``us`` is with cold ones; else 0.
        clock_mhz: the device's clock then; 0: unknown.
        noisy: whether all of its batches were disturbed.
    """

    us: float
    warm_us: float
    clock_mhz: int
    noisy: bool = False


class Bench:
    """Measures candidates on a device, each turn in a process that is there for nothing else.

    Arguments:
        root: the project's folder.
        policy: how is measured.
        variables: names of the variables that definitions see besides ``PASSED_ON``.

    ``seconds`` and ``disturbed`` have for each turn how long it took, and the part of its batches that did not count.
    """

    def __init__(self, root: Path, policy: Policy, variables: tuple[str, ...] = ()) -> None:
        self._variables = variables
        self._root = root
        self._policy = policy
        self._pool: WorkerPool | None = None
        self._seen: set[str] = set()
        self.seconds: list[float] = []
        self.disturbed: list[float] = []

    def turn(self, built: Built, sizes: Mapping[str, int]) -> Turn:
        """One turn of a candidate.

        A candidate before it may have left the process, or the device, in a bad state. So where one fails that was not
        alone in its process, it gets a second chance in a new one.

        Raises:
            KernelwrightError: it does not run, takes too long, or is wrong at these sizes.
        """
        result = self.batches(built, sizes)
        return Turn(*(min(result.us), min(result.warm_us, default=0.0), result.clock_mhz), noisy=result.disturbed >= 1)

    def batches(self, built: Built, sizes: Mapping[str, int], beside: str = "") -> MeasureResult:
        """All batches of a turn; with ``beside`` those of something else in place of the candidate, see the request.

        Raises:
            KernelwrightError: as for :meth:`turn`.
        """
        start, alone = time.monotonic(), self._seen <= {built.request.library}
        try:
            return self._turn(built, sizes, beside)
        except KernelwrightError:
            self.renew()
            if alone or time.monotonic() - start >= self._policy.limit_s:
                raise
        try:
            return self._turn(built, sizes, beside)
        except KernelwrightError:
            self.renew()
            raise

    def costs(self, request: CostRequest) -> list[float]:
        """What a definition estimates that candidates take.

        Raises:
            KernelwrightError: it raises an error, or returns no numbers.
        """
        return list(self._process().call(request).costs)

    def _process(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(1, self._root, self._policy.limit_s, kind=MEASURING)
            self._pool.variables = self._variables
        return self._pool

    def _turn(self, built: Built, sizes: Mapping[str, int], beside: str) -> MeasureResult:
        policy = self._policy
        request = MeasureRequest(
            **vars(built.request),
            sizes=dict(sizes),
            batches=policy.batches,
            batch_us=policy.batch_us,
            waiting=policy.waiting,
            beside=beside,
        )
        self._seen.add(built.request.library)
        start = time.monotonic()
        result = self._process().call(request)
        self.seconds.append(time.monotonic() - start)
        self.disturbed.append(result.disturbed)
        return result

    def renew(self) -> None:
        """End the process; the next turn starts a new one. Whoever asks for turns does so at the end, too."""
        pool, self._pool = self._pool, None
        self._seen.clear()
        if pool is not None:
            pool.close()
