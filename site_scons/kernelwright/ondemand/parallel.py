"""Several compiles at once: results in their order; the first failure ends all, or each costs only one result."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

from ..core.errors import KernelwrightError
from ..core.status_line import StatusLine
from .executor import end_all
from .session import Session


def compile_all(loads: Sequence[Callable[[], Any]], session: Session, ignore_error: bool) -> list[Any]:
    """Call functions that compile a kernel each, in threads; their results in order.

    Arguments:
        loads: the functions.
        session: runs the stages.
        ignore_error: whether a failure becomes None, with a warning.

    Raises:
        KernelwrightError: the failure that came first. Nothing else is begun then, and what runs is ended.
    """
    if not loads:
        return []
    line = StatusLine(len(loads) > 1)
    line.show(f"0 of {len(loads)} kernels are compiled")
    own: set[int] = set()

    def run(load: Callable[[], Any]) -> Any:
        own.add(threading.get_ident())
        return load()

    with ThreadPoolExecutor(min(session.jobs, len(loads)), "compile") as pool:
        futures = [pool.submit(run, load) for load in loads]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                line.show(f"{done} of {len(loads)} kernels are compiled")
                if not ignore_error and (failure := future.exception()) is not None:
                    raise failure
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            session.ending = True  # compiles that wait for another process stop waiting
            try:
                # A compile of another thread must not fail with these: then those that run may finish.
                if isinstance(error, KernelwrightError) and session.is_used_by_others(own):
                    wait(futures)
                end_all(futures, session.end_children)
            finally:
                session.ending = False
            raise
        finally:
            line.end()
    return [_result(future) for future in futures]


def _result(future: Future[Any]) -> Any:
    """What a compile gave; None, with a warning, if it failed."""
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, (KernelwrightError, ImportError)):
        raise error
    warnings.warn(f"a kernel was not compiled: {error}", stacklevel=5)
    return None
