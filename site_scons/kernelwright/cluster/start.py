"""Connects a build to its cluster."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import ToolchainError
from .address import WHERE, find_certificates
from .runner import Engine

INSTALL = "pip install 'kernelwright[fleet]'"


def connect(address: str, certificates: Path) -> Engine:
    """Connect to a cluster.

    Arguments:
        address: checked.
        certificates: the folder with those for TLS.

    Raises:
        SettingsError: there are no certificates.
        ToolchainError: Dask is not installed, or nobody answers.
    """
    found = find_certificates(address, certificates)
    try:
        from .dask_client import connect
    except ImportError as error:
        raise ToolchainError(f"a cluster needs Dask: {error}", WHERE, INSTALL) from error
    return connect(address, found)
