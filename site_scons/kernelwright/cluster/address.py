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
"""Files of the folder with certificates: who signs, our own certificate, and its key."""


@dataclass(frozen=True)
class Certificates:
    """Paths of the files for TLS: who signs certificates, our own one, and its key."""

    ca: str
    cert: str
    key: str

    def options(self, role: str) -> dict[str, Any]:
        """What Dask's ``Security`` gets for somebody who has the role of a ``client`` or a ``worker``."""
        own = {f"tls_{role}_cert": self.cert, f"tls_{role}_key": self.key}
        return {"require_encryption": True, "tls_ca_file": self.ca, **own}


def find_certificates(address: str, folder: Path) -> Certificates | None:
    """The certificates for an address; None: it needs none, because it is that of this machine.

    Raises:
        SettingsError: it needs some, and they are not there, or cannot be used.
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
    found = Certificates(*(str(folder / name) for name in FILES))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _require_usable(folder / FILES[0], lambda: context.load_verify_locations(found.ca))
    # Without a password nobody would be asked for one on the terminal: a key with one is refused.
    _require_usable(
        folder / " or ".join(FILES[1:]), lambda: context.load_cert_chain(found.cert, found.key, password="")
    )
    return found


def _require_usable(name: Path, load: Callable[[], None]) -> None:
    """Raise a SettingsError that names a file if it cannot be loaded: Dask would tell only what OpenSSL says of it."""
    try:
        load()
    except OSError as error:  # an SSLError is one
        message = f"{name} cannot be used: {error.strerror or error}"
        remedy = "they are PEM texts that you may read, the key is that of the certificate, and it has no password"
        raise SettingsError(message, WHERE, remedy) from error


def first_error(error: BaseException) -> BaseException:
    """What went wrong at first: Dask tells of it by a chain of errors."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def first_cause(error: BaseException) -> str:
    """What went wrong at first, in words."""
    error = first_error(error)
    # There are several classes of these names, more in old versions of Python.
    if type(error).__name__ in ("TimeoutError", "CancelledError"):
        return "it does not answer"
    if type(error).__name__ == "SSLEOFError":
        return "it has ended the connection, as one does who refuses a certificate"
    return str(error) or type(error).__name__
