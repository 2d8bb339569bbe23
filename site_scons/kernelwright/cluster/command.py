"""``kernelwright worker``: starts a worker of a Dask cluster that has this machine's compilers."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import ToolchainError
from .address import WHERE, find_certificates
from .start import INSTALL


def start_worker(address: str, threads: int, certificates: Path, nanny: bool) -> int:
    """Run a worker until it is ended or its scheduler is gone; returns the exit status.

    Arguments:
        address: of the scheduler, checked.
        threads: how many runs it does at once.
        certificates: the folder with those for TLS.
        nanny: whether a process of Dask starts the worker again if it dies.

    Raises:
        ToolchainError: Dask is not installed.
        SettingsError: there are no certificates.
    """
    found = find_certificates(address, certificates)
    # Dask looks a hundred times a second where each thread is; ours only wait for compilers.
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
    try:
        from distributed.cli.dask_worker import main
    except ImportError as error:
        raise ToolchainError(f"distributed cannot be imported: {error}", WHERE, INSTALL) from error
    options = ["--nthreads", str(threads), "--nworkers", "1", "--no-dashboard", "--memory-limit", "0"]
    options += ["--nanny" if nanny else "--no-nanny", "--preload", f"{__package__}.dask_worker"]
    if found:
        options += ["--tls-ca-file", found.ca, "--tls-cert", found.cert, "--tls-key", found.key, "--protocol", "tls"]
    main([address, *options], standalone_mode=False)
    return 0
