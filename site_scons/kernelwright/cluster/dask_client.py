"""The build's side of a Dask cluster.

Dask's client unpickles what workers send: exceptions, the types of results, and warnings. Whoever unpickles a
stranger's bytes executes what is in them. So in this process Dask gets a ``pickle`` that can write, since it sends our
function, but cannot read. Of the pickles that come back it accepts that of the type ``bytes``, which it knows by its
bytes, and refuses all others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import pickle
import sys
import threading
import time
import types
import warnings
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import distributed
from distributed.security import Security

from ..core.converter import from_json
from ..core.errors import ToolchainError, WorkerError
from .address import WHERE, Certificates, first_cause
from .dask_worker import INFORMATION, execute
from .messages import Offer, resource, versions
from .runner import ClusterGone, NotDone

CONNECT_S = 10
"""Seconds that the scheduler may take to answer."""

CLOSE_S = 2
"""Seconds to wait for the end of coroutines that were cancelled."""

MOST_SILENT = 3
"""After so many questions in a row without an answer, the scheduler counts as gone."""

LOOK_S = 2.0
"""Seconds between two checks whether a run can still be done, and how old the offers of workers may be."""

KILLED = b"KilledWorker"
"""A name in the pickled exception of a run whose workers died. The bytes are searched for it, and not unpickled."""


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


def connect(address: str, certificates: Certificates | None) -> DaskEngine:
    """Connect to a cluster. This takes at most twice ``CONNECT_S``.

    Raises:
        ToolchainError: nobody answers there, or a certificate is refused.
    """
    refuse_pickles()
    for name in ("distributed", "distributed.client"):  # Dask gives the second one a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # our own errors say what goes wrong
    warnings.filterwarnings("ignore", module="distributed")
    loop = Loop()
    try:
        # Dask (2026.8) limits the other steps, but waits for ever for the first message of a scheduler.
        client = loop.within(2 * CONNECT_S, _client(address, certificates))
    except BaseException as error:
        loop.close(CLOSE_S)
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        # Dask raises errors of any class.
        raise ToolchainError(
            f"the cluster {address} cannot be used: {first_cause(error)}",
            WHERE,
            "see that its scheduler runs there, and that both have certificates of one authority; or build without it",
        ) from error
    return DaskEngine(client, loop, address)


async def _client(address: str, certificates: Certificates | None) -> Any:
    """A connected client; a client that cannot connect is closed."""
    client = distributed.Client(
        address,
        asynchronous=True,
        security=Security(**certificates.options("client")) if certificates else None,
        timeout=CONNECT_S,
        set_as_default=False,
        deserializers=["dask", "error"],
    )
    try:
        return await client
    except BaseException:
        await client._close(fast=True)
        raise


def refuse_pickles() -> None:
    """Keep Dask from unpickling anything in this process, and from printing texts that workers send."""
    reading = ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler")
    writing = types.SimpleNamespace(**{name: value for name, value in vars(pickle).items() if name not in reading})
    writing.loads = _type_of_bytes
    for name, module in list(sys.modules.items()):
        # Each module of Dask (2026.8) that uses pickle has it by this name; its client is one of them.
        if name.startswith("distributed.") and vars(module).get("pickle") is pickle:
            vars(module)["pickle"] = writing
    distributed.Client._default_event_handlers = {}


BYTES = frozenset(pickle.dumps(bytes, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
"""The pickles of the type ``bytes``, one of which Dask sends with each result that is bytes."""


def _type_of_bytes(data: Any, **more: object) -> type[bytes]:
    if bytes(data) not in BYTES:
        # Dask catches a TypeError: it takes the pickle for an exception, or a traceback, that it cannot show.
        raise TypeError("a cluster sent a pickle, which is not read")
    return bytes


class DaskEngine:
    """A Dask cluster; see ``Engine``.

    Arguments:
        client: a client of the cluster's scheduler. This object closes it.
        loop: the loop that runs the client. This object closes it as well.
        address: where the scheduler is.
    """

    def __init__(self, client: Any, loop: Loop, address: str) -> None:
        self.address = address
        self._client = client
        self._loop = loop
        self._lock = threading.Lock()
        self._offers: tuple[float, Sequence[Offer]] = (0.0, [])
        self._silent = 0
        self._numbers = itertools.count()
        self._is_closed = False

    def offers(self) -> Sequence[Offer]:
        """Its workers, as they were at most some seconds ago. A scheduler that is busy, and silent, is asked again."""
        with self._lock, self._gone_if_closed():
            while self._silent < MOST_SILENT:
                at, offers = self._offers
                if time.monotonic() - at <= LOOK_S:
                    return offers
                try:
                    workers = self._loop.within(CONNECT_S, self._client.scheduler.identity(n_workers=-1))["workers"]
                except concurrent.futures.TimeoutError:
                    self._silent += 1
                else:
                    self._silent = 0
                    self._offers = time.monotonic(), [_offer(worker.get(INFORMATION)) for worker in workers.values()]
        raise ClusterGone(f"it has not answered {MOST_SILENT} questions")

    def execute(self, request: bytes, tool: str) -> bytes:
        """Have a worker do a request; see ``Engine``."""
        key = f"{self._client.id}-{next(self._numbers)}"
        with self._gone_if_closed():
            needs = {resource(tool): 1}
            future = self._client.submit(execute, request, key, key=key, pure=False, resources=needs)
            waiting = self._loop.soon(future._result())  # Dask's result() (2026.8) may lose a late result
            try:
                while not concurrent.futures.wait([waiting], LOOK_S).done:
                    self._require_hope(tool)
                answer = waiting.result()
            finally:
                waiting.cancel()  # so that the cluster forgets a run that is given up
        if not isinstance(answer, bytes):
            raise NotDone(f"a worker answered with {type(answer).__name__}")
        return answer

    def _require_hope(self, tool: str) -> None:
        """Raise ClusterGone or NotDone if no machine can do a run any more."""
        if self._client.status == "closed" or self._client._handle_report_task.done():
            raise ClusterGone("there is no connection any more")
        if not any(offer.has(tool, versions()) for offer in self.offers()):
            raise NotDone("no worker of the cluster has the tool any more")

    @contextlib.contextmanager
    def _gone_if_closed(self) -> Iterator[None]:
        """Turn what a call of Dask raises into ClusterGone, NotDone or WorkerError."""
        try:
            yield
        except Exception as error:
            if self._is_closed:
                raise WorkerError("the build is ending, so the cluster does nothing for it any more") from None
            if isinstance(error, (NotDone, ClusterGone)):
                raise
            if isinstance(error, concurrent.futures.CancelledError):
                # All runs end like this at once when the scheduler's connection is closed, also if it comes back.
                raise ClusterGone("the connection was lost") from None
            # Dask raises what the cluster sent: here that is always an Exception with the bytes of a pickle.
            sent = error.args[0] if error.args else None
            if isinstance(sent, bytes):
                what = "the workers that tried it were lost" if KILLED in sent else "a worker of the cluster failed"
                raise NotDone(what) from None
            raise ClusterGone(first_cause(error)) from None

    def close(self) -> None:
        """Leave the cluster: it forgets all runs of this client, and its workers end them."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            self._loop.within(CONNECT_S, self._client._close(fast=True))
        self._loop.close(CLOSE_S)


def _offer(said: Any) -> Offer:
    """What a worker offers; anything that is not in our form counts as an empty offer."""
    try:
        return from_json(Offer, said)
    except ValueError:
        return Offer()
