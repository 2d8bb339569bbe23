"""Checks the address of a remote cache: its form, and that it contains no secret."""

from __future__ import annotations

import re

from ..core.errors import SettingsError, Where

SCHEMES = ("https", "http", "s3", "gs", "az")
"""Schemes of stores of objects. An address without a scheme is a folder."""

OWN_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's own role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Where the credentials of a store belong."""

TOKEN = "KERNELWRIGHT_REMOTE_TOKEN"
"""Variable of the environment with the bearer token of an HTTP server."""

SIGNING_KEY = "KERNELWRIGHT_REMOTE_SIGNING_KEY"
"""Variable of the environment with the private key that objects are signed with: 32 bytes in base64."""


def scheme_of(address: str) -> str:
    """The scheme of an address in small letters; empty: it is a folder."""
    scheme, colon, _ = address.partition("://")
    return scheme.lower() if colon else ""


def check_address(address: str, where: Where) -> None:
    """Raise a SettingsError for an address that is none, or has credentials in it. The message never repeats those."""
    if not address:
        return
    scheme = scheme_of(address)
    # In the whole address: a password may have a slash in it, and then the server seems to begin with the user.
    if scheme and re.search("[@?#]", address):
        place = OWN_CREDENTIALS.get(scheme, f"{TOKEN}, or the file ~/.netrc")
        message = "remote_cache has credentials or parameters in its address, which others would see"
        raise SettingsError(message, where, f"write the address without them; credentials belong in {place}")
    if scheme and scheme not in SCHEMES:
        remedy = f"the schemes are {', '.join(SCHEMES)}; a folder is written as a path"
        raise SettingsError(f"remote_cache has the unknown scheme {scheme!r}", where, remedy)
    if not scheme and re.match(rf"[^/]*:|({'|'.join(SCHEMES)})//", address, re.IGNORECASE):
        remedy = "write https://host/path, s3://bucket/prefix and so on; a folder with a colon in its name as ./name"
        raise SettingsError("remote_cache is neither an address, which has :// in it, nor a path", where, remedy)
    host, _, path = address.partition("://")[2].partition("/")
    if scheme and not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", host):
        example = "https://cache.example.org/kernels" if scheme.startswith("http") else f"{scheme}://bucket/prefix"
        raise SettingsError(f"remote_cache names no host or bucket: {address!r}", where, f"write for example {example}")
    if not address.isprintable() or ".." in path.split("/"):
        raise SettingsError(f"remote_cache is {address!r}, which is no address", where, "write a plain one")


def is_safe_for_secrets(address: str) -> bool:
    """Whether what is sent to an address can be read by nobody on the way: it is encrypted, or stays on the machine."""
    host = re.sub(r":[0-9]+$", "", address.partition("://")[2].partition("/")[0])
    return scheme_of(address) != "http" or re.fullmatch(r"localhost|\[::1\]|127(\.\d{1,3}){3}", host) is not None
