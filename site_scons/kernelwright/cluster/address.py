"""Where a cluster is: the checked address, and the certificates that belong to it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError, Where

WHERE = Where(stage="settings")

FILES = ("ca.pem", "cert.pem", "key.pem")
"""Files of the folder with certificates: the authority's certificate, our own, and its key."""


@dataclass(frozen=True)
class Certificates:
    """Paths of the files for TLS: the authority's certificate, our own, and its key."""

    ca: str
    cert: str
    key: str

    def options(self, role: str) -> dict[str, Any]:
        """Arguments of Dask's ``Security`` for the role of a ``client`` or a ``worker``."""
        own = {f"tls_{role}_cert": self.cert, f"tls_{role}_key": self.key}
        return {"require_encryption": True, "tls_ca_file": self.ca, **own}


def find_certificates(address: str, folder: Path) -> Certificates | None:
    """The certificates for an address; None: it needs none, because it is on this machine.

    Raises:
        SettingsError: the certificates are not there, or cannot be used.
    """
    if not address.startswith("tls://"):
        return None
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise SettingsError(
            f"{address} needs certificates, and {folder} has no {', '.join(missing)}",
            WHERE,
            f"set cluster_certificates to a folder with {', '.join(FILES)}",
        )
    files = Certificates(*(str(folder / name) for name in FILES))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _require_usable(folder / FILES[0], lambda: context.load_verify_locations(files.ca))
    # An empty password, so that OpenSSL does not ask for one on the terminal: it refuses a key that has one.
    _require_usable(
        folder / " or ".join(FILES[1:]), lambda: context.load_cert_chain(files.cert, files.key, password="")
    )
    return files


def _require_usable(name: Path, load: Callable[[], None]) -> None:
    """Raise a SettingsError that names a file if it cannot be loaded: Dask's error would have only OpenSSL's words."""
    try:
        load()
    except OSError as error:  # an SSLError is one
        message = f"{name} cannot be used: {error.strerror or error}"
        remedy = "use PEM files that you may read, and the key of that certificate, without a password"
        raise SettingsError(message, WHERE, remedy) from error


def first_error(error: BaseException) -> BaseException:
    """The first error of a chain: Dask raises others because of it."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def first_cause(error: BaseException) -> str:
    """The first error of a chain, in words."""
    error = first_error(error)
    # There are several classes of these names, more in old versions of Python.
    if type(error).__name__ in ("TimeoutError", "CancelledError"):
        return "it does not answer"
    if type(error).__name__ == "SSLEOFError":
        return "it has ended the connection, perhaps because it refuses a certificate"
    return str(error) or type(error).__name__
