"""The build's side of a Dask cluster.

Dask's client unpickles what workers send: exceptions, the types of results, and warnings. Whoever unpickles a
stranger's bytes executes what is in them. So in this process Dask's ``pickle`` is replaced by one that only writes:
our function is sent by it. Of what comes back it knows one pickle by its bytes, that of the type ``bytes``, and refuses
all others.
"""

from __future__ import annotations

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
from collections.abc import Iterator, Sequence
from typing import Any

import distributed
from distributed.security import Security

from ..core.converter import from_json
from ..core.errors import ToolchainError, WorkerError
from .address import WHERE, Certificates, first_cause
from .dask_worker import INFORMATION, execute
from .loop import Loop
from .messages import Offer, resource, versions
from .runner import ClusterGone, NotDone

CONNECT_S = 10
"""Seconds that the scheduler may take to answer."""

CLOSE_S = 2
"""Seconds that may be waited for the end of what was cancelled."""

MOST_SILENT = 3
"""So many questions without an answer, one after the other, and the scheduler is taken for gone."""

LOOK_S = 2.0
"""Seconds between two looks whether a run can still be done, and the age of what is known of workers."""

KILLED = b"KilledWorker"
"""In the pickled exception of a run that its workers did not survive. It is looked for, and not unpickled."""


def connect(address: str, certificates: Certificates | None) -> DaskEngine:
    """Connect to a cluster. This takes at most twice ``CONNECT_S``.

    Raises:
        ToolchainError: nobody answers there, or a certificate is refused.
    """
    refuse_pickles()
    for name in ("distributed", "distributed.client"):  # Dask gives the second one a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what goes wrong is told by us
    warnings.filterwarnings("ignore", module="distributed")
    loop = Loop()
    try:
        # Dask (2026.8) limits the parts of this, but waits for ever for the first words of a scheduler.
        client = loop.within(2 * CONNECT_S, _client(address, certificates))
    except BaseException as error:
        loop.close(CLOSE_S)
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        # Dask says by any class what it cannot read.
        raise ToolchainError(
            f"the cluster {address} cannot be used: {first_cause(error)}",
            WHERE,
            "see that its scheduler runs there, and that both have certificates of one authority; or build without it",
        ) from error
    return DaskEngine(client, loop, address)


async def _client(address: str, certificates: Certificates | None) -> Any:
    """A connected client; one that does not get so far is closed."""
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
    """Have Dask unpickle nothing in this process, whoever sent it, nor print what workers want to have printed."""
    reading = ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler")
    writing = types.SimpleNamespace(**{name: value for name, value in vars(pickle).items() if name not in reading})
    writing.loads = _type_of_bytes
    for name, module in list(sys.modules.items()):
        # Each module of Dask (2026.8) that uses pickle has it by this name; its client is one of them.
        if name.startswith("distributed.") and vars(module).get("pickle") is pickle:
            vars(module)["pickle"] = writing
    distributed.Client._default_event_handlers = {}


BYTES = frozenset(pickle.dumps(bytes, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
"""The pickles of the type ``bytes``, which Dask sends with bytes."""


def _type_of_bytes(data: Any, **more: object) -> type[bytes]:
    if bytes(data) not in BYTES:
        # Of this class Dask takes it for an exception, or a traceback, that it cannot show.
        raise TypeError("a cluster sent a pickle, which is not read")
    return bytes


class DaskEngine:
    """A Dask cluster; see ``Engine``.

    Arguments:
        client: a client of its scheduler, which this owns from now on.
        loop: where the client is, which this owns as well.
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
                    said = self._loop.within(CONNECT_S, self._client.scheduler.identity(n_workers=-1))["workers"]
                except concurrent.futures.TimeoutError:
                    self._silent += 1
                else:
                    self._silent = 0
                    self._offers = time.monotonic(), [_offer(worker.get(INFORMATION)) for worker in said.values()]
        raise ClusterGone(f"it has not answered {MOST_SILENT} questions")

    def execute(self, request: bytes, tool: str) -> bytes:
        """Have a worker do a request; see ``Engine``."""
        key = f"{self._client.id}-{next(self._numbers)}"
        with self._gone_if_closed():
            needs = {resource(tool): 1}
            future = self._client.submit(execute, request, key, key=key, pure=False, resources=needs)
            waiting = self._loop.soon(future._result())  # Dask's result() (2026.8) may lose what comes too late
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
        """Raise ClusterGone or NotDone if a run can never be done."""
        if self._client.status == "closed" or self._client._handle_report_task.done():
            raise ClusterGone("there is no connection any more")
        if not any(offer.has(tool, versions()) for offer in self.offers()):
            raise NotDone("no worker of the cluster has the tool any more")

    @contextlib.contextmanager
    def _gone_if_closed(self) -> Iterator[None]:
        """Tell apart how a call of Dask can fail."""
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
                what = "those workers were lost that tried" if KILLED in sent else "a worker of the cluster failed"
                raise NotDone(what) from None
            raise ClusterGone(first_cause(error)) from None

    def close(self) -> None:
        """Leave; with its client the cluster forgets all runs, and its workers end them."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            self._loop.within(CONNECT_S, self._client._close(fast=True))
        self._loop.close(CLOSE_S)


def _offer(said: Any) -> Offer:
    """What a worker says of itself; what is not in our form counts as nothing."""
    try:
        return from_json(Offer, said)
    except ValueError:
        return Offer()
