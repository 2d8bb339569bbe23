"""Runs the stages of one kernel: each when its sources are there, several at a time, until the first one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..core.errors import KernelwrightError
from ..stages.stage import Stage

Attempt = Callable[[Stage], KernelwrightError | None]
"""Runs a stage, and returns what went wrong."""


def run_stages(stages: Sequence[Stage], attempt: Attempt, jobs: int) -> KernelwrightError | None:
    """Run stages; the first error is returned, after those that ran beside it have ended.

    Arguments:
        stages: the stages. Sources that none of them makes have to be there.
        attempt: runs one stage; called from several threads.
        jobs: how many run at a time.
    """
    needs = _needs(stages)
    running: dict[Future[KernelwrightError | None], Stage] = {}
    problem: KernelwrightError | None = None
    with ThreadPoolExecutor(jobs, "stage") as threads:
        try:
            while needs or running:
                ready = [] if problem else [stage for stage, missing in needs.items() if not missing]
                for stage in ready:
                    del needs[stage]
                    running[threads.submit(attempt, stage)] = stage
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    finished = running.pop(future)
                    problem = problem or future.result()
                    for missing in needs.values():
                        missing.discard(finished)
                if problem:
                    needs.clear()
        except BaseException:  # Ctrl-C: what has not begun never does
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return problem


def _needs(stages: Sequence[Stage]) -> dict[Stage, set[Stage]]:
    """The stages that each stage waits for."""
    makers = {path: stage for stage in stages for path in stage.paths}
    return {stage: {makers[path] for path in stage.sources if path in makers} for stage in stages}
