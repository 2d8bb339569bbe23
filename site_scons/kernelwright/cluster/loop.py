"""An event loop in a thread of its own. Whoever waits for it does so for a limited time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """Runs coroutines for other threads. Coroutines that still run when the loop is closed are cancelled.

    The thread ends with the process, so that a coroutine that ignores its cancellation delays nobody.
    """

    def __init__(self) -> None:
        running: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = (
            concurrent.futures.Future()
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(_main(running)), name="cluster", daemon=True)
        self._thread.start()
        self._loop, self._end = running.result()

    def soon(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; raises RuntimeError if the loop is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine.

        Raises:
            concurrent.futures.TimeoutError: the coroutine took longer, and is cancelled.
            Exception: the coroutine raised it.
        """
        future = self.soon(coroutine)
        try:
            return future.result(timeout=seconds)
        finally:
            future.cancel()  # no effect on a coroutine that has ended

    def close(self, seconds: float) -> None:
        """Cancel what still runs, and wait at most so long for the thread to end."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(seconds)


async def _main(running: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda loop, context: None)  # nobody waits for what fails while it is cancelled
    running.set_result((loop, end))
    await end.wait()
