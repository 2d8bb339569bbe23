"""``kernelwright worker``: starts a worker of a Dask cluster that has this machine's compilers."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ..core.errors import ToolchainError
from .address import WHERE, Certificates, find_certificates, first_cause, first_error
from .start import INSTALL

END_S = 10.0
"""Seconds that a worker that has ended may take to leave."""

TRUST_S = 10.0
"""Seconds in which a scheduler that is there answers."""

REFUSAL = re.compile(r"SSL\w*|FatalCommClosedError")
"""Names of the errors of a certificate that is refused: Python's, or Dask's for an unknown authority. A scheduler that
refuses ours may be gone before it is heard; that is a sudden end to TLS."""


def start_worker(address: str, threads: int, certificates: Path, nanny: bool) -> int:
    """Run a worker until it is ended or its scheduler is gone; returns the exit status.

    Arguments:
        address: of the scheduler, checked.
        threads: how many runs it does at once.
        certificates: the folder with those for TLS.
        nanny: whether a process of Dask starts the worker again if it dies.

    Raises:
        ToolchainError: Dask is not installed, or the worker cannot begin: there is no scheduler, say.
        SettingsError: there are no certificates.
    """
    found = find_certificates(address, certificates)
    # Dask looks a hundred times a second where each thread is; ours only wait for compilers.
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
    try:
        from distributed.cli import dask_worker
    except ImportError as error:
        raise ToolchainError(f"distributed cannot be imported: {error}", WHERE, INSTALL) from error
    options = ["--nthreads", str(threads), "--nworkers", "1", "--no-dashboard", "--memory-limit", "0"]
    options += ["--nanny" if nanny else "--no-nanny", "--preload", f"{__package__}.dask_worker"]
    if found:
        options += ["--tls-ca-file", found.ca, "--tls-cert", found.cert, "--tls-key", found.key, "--protocol", "tls"]
    if hasattr(dask_worker, "asyncio_run"):  # it is no part of what Dask promises
        dask_worker.asyncio_run = leaving(dask_worker.asyncio_run)
    try:
        if found:
            asyncio.run(require_trust(address, found))
        dask_worker.main([address, *options], standalone_mode=False)
    except Exception as error:  # Dask says by any class what it cannot do
        remedy = "see that a scheduler runs there, and that both have certificates of one authority"
        raise ToolchainError(f"there is no worker of {address}: {first_cause(error)}", WHERE, remedy) from error
    return 0


async def require_trust(address: str, files: Certificates) -> None:
    """Raise an OSError if a scheduler and this machine do not accept each other's certificates.

    A worker of Dask (2026.8) without a nanny takes that for a scheduler that is not there yet: it would wait for ever,
    and not say what for.
    """
    # Imported here, because start_worker says so if Dask is not installed.
    from distributed.comm import connect
    from distributed.security import Security

    options = Security(**files.options("worker")).get_connection_args("worker")
    try:
        comm = await connect(address, timeout=TRUST_S, **options)
    except OSError as error:
        if REFUSAL.fullmatch(type(first_error(error)).__name__):
            raise
    else:
        await comm.close()


def leaving(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function like ``asyncio.run`` after whose coroutine the process ends, whatever the other tasks do.

    Dask (2026.8) cancels a worker's tasks at its end. If the scheduler goes at the same moment, two of them wait for
    each other, for ever.
    """

    def run_and_leave(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def leave_after() -> Any:
            try:
                return await main
            finally:
                timer = threading.Timer(END_S, os._exit, [0])
                timer.daemon = True
                timer.start()

        return run(leave_after(), **options)

    return run_and_leave
