"""The address of a cluster: which ones there can be."""

from __future__ import annotations

import ipaddress
import re

from ..core.errors import SettingsError, Where, shown

SCHEMES = ("tls", "tcp")
"""What an address can begin with; ``tcp`` is for this machine only."""


HOST_AND_PORT = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.A)


def check_address(address: str, where: Where) -> None:
    """Check that a text is the address of a cluster, and that the connection is encrypted.

    Raises:
        SettingsError: it is none. The message shows no password.
    """
    remedy = "write tls://HOST:PORT; or, for a scheduler on this machine, tcp://127.0.0.1:PORT"
    scheme, separator, rest = address.partition("://")
    if "@" in rest:
        message = "the address of a cluster has a name or a password in it, and it would be in logs"
        raise SettingsError(message, where, f"who may use a cluster is said by certificates: {remedy}")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise SettingsError(f"cluster is {shown(address)}, and an address begins with one of {known}", where, remedy)
    match = HOST_AND_PORT.fullmatch(rest)
    if match is None or int(match[2]) > 65535:
        raise SettingsError(f"cluster is {shown(address)}, which is no host with a port", where, remedy)
    if scheme == "tcp" and not _is_here(match[1].strip("[]")):
        message = f"{address} is another machine, and what is sent there by tcp:// can be read and changed on the way"
        raise SettingsError(message, where, "use tls:// and certificates, see docs/cluster.md")


def _is_here(host: str) -> bool:
    """Whether a host is this machine, by the name or the address that say so anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
