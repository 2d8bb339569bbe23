"""Opens the remote cache that the settings name, with the credentials that the environment has."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..core.dependencies import may_be_asked
from ..core.errors import SettingsError, Where
from ..core.surroundings import PASSED_ON
from ..define.remote_address import OWN_CREDENTIALS, SIGNING_KEY, TOKEN, is_safe_for_secrets, scheme_of
from ..define.settings import Settings
from .remote_client import RemoteCache
from .remote_objects import seal_of
from .remote_store import FolderStore, ObjectStore, Store, Unreachable

BEARER = "bearer"
"""With this login in a netrc file the password is a bearer token; any other login is sent with it, as Basic."""


def open_remote(
    settings: Settings, top: Path, environment: Mapping[str, str], warn: Callable[[str], None], writable: bool = True
) -> RemoteCache | None:
    """The remote cache; None: none is set, or it cannot be used here, and the user is told why.

    Arguments:
        top: the project's folder, which paths are relative to.
        environment: variables; those of secrets are used and never shown.
        warn: shows a line to the user.
        writable: whether anything may be written at all, whatever the settings say.

    Raises:
        SettingsError: an address, a key, a certificate or a netrc file is wrong, or a secret would be sent unencrypted.
    """
    if not settings.remote_cache:
        return None
    writes = writable and settings.remote_mode == "read-write"
    private = environment.get(SIGNING_KEY, "")
    seal = seal_of(settings.remote_key, private if writes else "")
    if writes and settings.remote_key and not private:
        warn(f"kernelwright: nothing is written to the remote cache: {SIGNING_KEY} is not set, and remote_key is")
        writes = False
    try:
        store = _store(settings, top, environment)
    except ImportError:
        warn("kernelwright: the remote cache is off: it needs obstore; pip install 'kernelwright[remote]'")
        return None
    except Unreachable as error:
        warn(f"kernelwright: the remote cache is off: {error}")
        return None
    if isinstance(store, FolderStore) and (problem := store.problem(writes)):
        warn(f"kernelwright: the remote cache is off: {problem}")
        return None
    variables = (*PASSED_ON, *settings.environment)
    if settings.remote_layout == "bazel":
        from .remote_bazel import BazelStore

        store = BazelStore(store)
    return RemoteCache(store, seal, writes, warn, partial(may_be_asked, top, variables=variables))


def _store(settings: Settings, top: Path, environment: Mapping[str, str]) -> Store:
    address = settings.remote_cache
    if not scheme_of(address):
        return FolderStore(top / address)
    headers = _headers(address, environment) if scheme_of(address).startswith("http") else {}
    if headers and not is_safe_for_secrets(address):
        message = "a token would be sent unencrypted to the remote cache"
        raise SettingsError(message, Where(stage="settings"), "use https, or a server without a token")
    certificates = _text(top / settings.remote_ca, "remote_ca") if settings.remote_ca else ""
    try:
        return ObjectStore(address, headers, certificates)
    except ImportError:
        raise
    except Exception as error:  # obstore raises a class of its own for each kind of store, or ValueError
        place = OWN_CREDENTIALS.get(scheme_of(address), "")
        if place and not certificates and not isinstance(error, ValueError):
            # Perhaps the settings are right and only this machine has no credentials: no reason for a build to fail.
            raise Unreachable(f"it cannot be opened here; its credentials belong in {place}") from None
        message = f"the remote cache cannot be opened: {type(error).__name__}"
        remedy = "see docs/remote-cache.md for the form of addresses and for the variables of each store"
        raise SettingsError(message, Where(stage="settings"), remedy) from None


def _headers(address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The headers with our credentials; empty: there are none."""
    token = environment.get(TOKEN, "").strip()
    if token:
        if not token.isascii() or not token.isprintable():
            raise SettingsError(f"{TOKEN} is no token", Where(stage="settings"), "it is printable ASCII")
        return {"authorization": f"Bearer {token}"}
    found = _of_netrc(address, environment)
    if found is None:
        return {}
    login, password = found
    if login == BEARER:
        return {"authorization": f"Bearer {password}"}
    return {"authorization": "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()}


def _of_netrc(address: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Login and password of a server in the user's netrc file, if it has them."""
    import netrc

    home = environment.get("HOME", "")
    file = Path(environment.get("NETRC", "") or (Path(home, ".netrc") if home else ""))
    if not file.is_file():
        return None
    try:
        hosts: dict[str, Any] = netrc.netrc(str(file)).hosts
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        message = f"the netrc file cannot be read ({type(error).__name__})"
        raise SettingsError(message, Where(stage="settings"), f"mend it, or set {TOKEN}") from None
    found = hosts.get(_host_of(address))
    return (found[0] or "", found[2] or "") if found else None


def _host_of(address: str) -> str:
    """The name of the server in an address, without its port; of an IPv6 address without the brackets."""
    server = address.partition("://")[2].partition("/")[0]
    return server[1:].partition("]")[0] if server.startswith("[") else server.partition(":")[0]


def _text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the file of {setting} cannot be read ({type(error).__name__})"
        raise SettingsError(message, Where(stage="settings"), f"set {setting} to a file in PEM") from None
