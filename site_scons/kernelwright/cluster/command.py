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
"""Seconds after which the process of a worker that has ended is ended by force."""

TRUST_S = 10.0
"""Seconds that a scheduler may take to answer."""

REFUSAL = re.compile(r"SSL\w*|FatalCommClosedError")
"""Names of the errors for a certificate that is refused: Python's, or Dask's for an unknown authority. If a scheduler
refuses ours, the connection may end before its reason arrives: that is an ``SSLEOFError``."""


def start_worker(address: str, threads: int, certificates: Path, nanny: bool) -> int:
    """Run a worker until it is ended or its scheduler is gone; returns the exit status.

    Arguments:
        address: that of the scheduler, checked.
        threads: how many runs the worker does at once.
        certificates: the folder with the certificates for TLS.
        nanny: whether a process of Dask starts the worker again if it dies.

    Raises:
        ToolchainError: Dask is not installed, or the worker cannot begin, as without a scheduler.
        SettingsError: there are no certificates.
    """
    files = find_certificates(address, certificates)
    # Dask's profiler looks a hundred times a second where each thread is; ours only wait for compilers.
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
    try:
        from distributed.cli import dask_worker
    except ImportError as error:
        raise ToolchainError(f"distributed cannot be imported: {error}", WHERE, INSTALL) from error
    options = ["--nthreads", str(threads), "--nworkers", "1", "--no-dashboard", "--memory-limit", "0"]
    options += ["--nanny" if nanny else "--no-nanny", "--preload", f"{__package__}.dask_worker"]
    if files:
        options += ["--tls-ca-file", files.ca, "--tls-cert", files.cert, "--tls-key", files.key, "--protocol", "tls"]
    if hasattr(dask_worker, "asyncio_run"):  # Dask does not promise that there is one
        dask_worker.asyncio_run = leaving(dask_worker.asyncio_run)
    try:
        if files:
            asyncio.run(require_trust(address, files))
        dask_worker.main([address, *options], standalone_mode=False)
    except Exception as error:  # Dask raises errors of any class
        remedy = "see that a scheduler runs there, and that both have certificates of one authority"
        raise ToolchainError(f"no worker can join {address}: {first_cause(error)}", WHERE, remedy) from error
    return 0


async def require_trust(address: str, files: Certificates) -> None:
    """Raise an OSError if a scheduler and this machine do not accept each other's certificates.

    A worker of Dask (2026.8) without a nanny would take that for a scheduler that is not there yet, wait for ever, and
    not say why.
    """
    # Imported here, so that start_worker can say that Dask is not installed.
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
    """A function like ``asyncio.run`` that ends the process soon after the coroutine, whatever other tasks do.

    Dask (2026.8) cancels a worker's tasks at its end. If the scheduler ends at the same moment, two of these tasks wait
    for each other for ever.
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
