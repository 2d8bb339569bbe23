"""Gives a build the machines of its cluster; the code that runs compilers uses nothing else of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..core.errors import ToolchainError
from ..processes.runner import OtherMachines
from .address import WHERE, find_certificates
from .messages import versions
from .runner import Cluster, Engine

INSTALL = "pip install 'kernelwright[fleet]'"


def cluster_at(address: str, certificates: Path, note: Callable[[str], None]) -> OtherMachines:
    """The machines of a cluster. Nothing is connected before the first run.

    Arguments:
        address: that of its scheduler, checked.
        certificates: the folder with the certificates for TLS.
        note: shows a line, once.
    """
    return Cluster(lambda: connect(address, certificates), versions(), note)


def connect(address: str, certificates: Path) -> Engine:
    """Connect to a cluster; the arguments are those of :func:`cluster_at`.

    Raises:
        SettingsError: there are no certificates.
        ToolchainError: Dask is not installed, or nobody answers.
    """
    files = find_certificates(address, certificates)
    try:
        from .dask_client import connect
    except ImportError as error:
        raise ToolchainError(f"a cluster needs Dask: {error}", WHERE, INSTALL) from error
    return connect(address, files)
