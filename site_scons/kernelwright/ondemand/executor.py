"""Runs the stages of one kernel: each when its sources are there, several at a time, until the first one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from ..core.errors import KernelwrightError
from ..stages.stage import Stage

Attempt = Callable[[Stage], KernelwrightError | None]
"""Runs a stage, and returns what went wrong."""

END_AGAIN_S = 0.05
"""Seconds between two attempts to end what still runs."""


def run_stages(
    stages: Sequence[Stage], attempt: Attempt, jobs: int, end_children: Callable[[], None]
) -> KernelwrightError | None:
    """Run stages; the first error is returned, after those that ran beside it have ended.

    Arguments:
        stages: the stages. Sources that none of them makes have to be there.
        attempt: runs one stage; called from several threads.
        jobs: how many run at a time.
        end_children: ends the processes that stages have started; called if this thread is interrupted, as by Ctrl-C.
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
            end_all(running, end_children)
            raise
    return problem


def end_all(running: Collection[Future[Any]], end_children: Callable[[], None]) -> None:
    """End the processes that calls wait for, so that the calls fail soon, and wait until all of them have ended.

    Once is not enough: a call that was about to start a process starts it after that.
    """
    while not all(future.done() for future in running):
        end_children()
        time.sleep(END_AGAIN_S)


def _needs(stages: Sequence[Stage]) -> dict[Stage, set[Stage]]:
    """The stages that each stage waits for."""
    makers = {path: stage for stage in stages for path in stage.paths}
    return {stage: {makers[path] for path in stage.sources if path in makers} for stage in stages}
