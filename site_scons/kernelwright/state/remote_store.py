"""Stores of objects: a folder, an HTTP server, S3, GCS or Azure. An object has a name and never changes.

obstore speaks the protocol of each. Its errors become three of our own, with texts of ours that say what happened: the
texts of obstore would show addresses, which have signatures in them for Azure.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..core.files import LARGEST_RECORD, read_record
from ..define.remote_address import is_safe_for_secrets, scheme_of
from .remote_objects import may_be_object

Result = TypeVar("Result")

CONNECT_S = 2
"""Seconds that a connection may take."""

READ_S = 10
"""Seconds in which the next part of an answer has to come."""

FIRST_READ_S = 3
"""The same until a server has answered once: a server that hangs must not cost more than a few seconds."""

WHOLE_S = 30
"""Seconds that a request may take, however much comes."""

DIRECTLY = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
"""Options of obstore with which no request goes through a proxy, not even one that the environment names."""

SMALL = 1 << 20
"""An answer of no more bytes than this is always read, whatever it is and whatever else is being read."""

TOO_LARGE = "it is too large"


class Unreachable(Exception):
    """A request failed: no connection, no answer in time, an answer that broke off, or a server with a problem of its
    own."""


class Refused(Exception):
    """A server does not let us do that (403)."""


class Unknown(Exception):
    """A server does not know us (401): no token, a wrong one, or one that has expired."""


class NoRoomError(Exception):
    """There is no room now to read an object of so many bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


MayRead = Callable[[int], bool]
"""Whether so many bytes may be read now; asked for what is larger than :data:`SMALL`."""


class Store(Protocol):
    """A store of objects. Safe to use from several threads."""

    def get(self, name: str, may_read: MayRead) -> bytes | None:
        """The content of an object; None: there is none. Raises Unreachable, Refused, Unknown or NoRoomError."""

    def put(self, name: str, data: bytes) -> bool:
        """Write an object that is not there yet; whether it was written. Raises Unreachable, Refused or Unknown."""

    def has(self, name: str) -> bool:
        """Whether there is an object of that name. Raises Unreachable, Refused or Unknown."""


class FolderStore:
    """A folder, perhaps on a network's file system. Nothing but objects is ever written into it.

    Arguments:
        folder: where the objects are; it is made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def problem(self, writes: bool) -> str:
        """Why it cannot be used; empty: it can. A missing folder is no problem if we write, because we make it then."""
        try:
            if stat.S_ISDIR(self._folder.stat().st_mode):
                return ""
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                return f"{self._folder} cannot be used: {error.strerror}; mend that, or remote_cache"
        if os.path.lexists(self._folder):
            return f"{self._folder} is no folder; name a folder in remote_cache"
        return "" if writes else f"there is no folder {self._folder}; mount or make it, or mend remote_cache"

    def get(self, name: str, may_read: MayRead) -> bytes | None:
        """See :class:`Store`."""
        try:
            with contextlib.suppress(OSError):  # the next line raises it, too
                _require_room((self._folder / name).stat().st_size, may_read)
            return read_record(self._folder / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            # Not Refused, which may mean a missing object, as on S3: here somebody has to change the permissions.
            raise Unreachable(error.strerror or "it cannot be used") from error

    def put(self, name: str, data: bytes) -> bool:
        """See :class:`Store`."""
        path = self._folder / name
        scratch = path.with_name(f".scratch-{os.getpid()}-{os.urandom(8).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.write_bytes(data)
                os.link(scratch, path)
            finally:
                scratch.unlink(missing_ok=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise _of_system(error) from error
        return True

    def has(self, name: str) -> bool:
        """See :class:`Store`."""
        try:
            return stat.S_ISREG((self._folder / name).stat().st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _of_system(error) from error


class ObjectStore:
    """A store on a network, through obstore.

    Arguments:
        address: of the store; checked by ``check_address``.
        headers: of each request to an HTTP server, such as ``authorization``.
        certificates: a PEM text with further authorities that servers' certificates may be signed by; empty: none.
    """

    def __init__(self, address: str, headers: Mapping[str, str], certificates: str) -> None:
        import obstore.store  # Imported here: only a build with a store on a network needs it.

        self._is_http = scheme_of(address) in ("http", "https")
        make = obstore.store.HTTPStore.from_url if self._is_http else obstore.store.from_url
        options: dict[str, Any] = {"connect_timeout": f"{CONNECT_S}s", "allow_http": True}
        options |= {"root_certificate": certificates} if certificates else {}
        # Unencrypted requests, perhaps with a token, stay on this machine: `http_proxy` may name another one.
        options |= DIRECTLY if scheme_of(address) == "http" and is_safe_for_secrets(address) else {}

        def connected(read_s: int, more: Mapping[str, str], whole_s: int = WHOLE_S) -> Any:
            times = {"read_timeout": f"{read_s}s", "timeout": f"{whole_s}s"}
            given = {**options, **times, "default_headers": {**headers, **more}}
            return make(address, client_options=given, retry_config={"max_retries": 0})

        # A server that knows no preconditions writes the object again, with the same meaning.
        once = {"if-none-match": "*"} if self._is_http else {}
        # A server that sends a byte now and then is always in time, but never done.
        self._first = connected(FIRST_READ_S, {}, 2 * FIRST_READ_S)
        self._reader = connected(READ_S, {})
        self._writer = connected(READ_S, once)
        self._answered = False

    def get(self, name: str, may_read: MayRead) -> bytes | None:
        """See :class:`Store`."""

        def read() -> bytes:
            result = (self._reader if self._answered else self._first).get(name)
            if result.meta["size"] > LARGEST_RECORD:
                raise Unreachable(TOO_LARGE)
            _require_room(result.meta["size"], may_read)
            return _content(result)

        return self._asked(read)

    def put(self, name: str, data: bytes) -> bool:
        """See :class:`Store`."""
        mode = {} if self._is_http else {"mode": "create"}

        def write() -> bool:
            try:
                self._writer.put(name, data, use_multipart=False, **mode)
            except FileNotFoundError:
                raise Unreachable("the server has no folder or bucket for it") from None
            return True

        return bool(self._asked(write))

    def has(self, name: str) -> bool:
        """See :class:`Store`."""
        return self._asked(lambda: self._reader.head(name)) is not None

    def _asked(self, request: Callable[[], Result]) -> Result | None:
        """The result of a request; None: there is no such object, or there is one already.

        The errors of obstore become ours.

        Raises:
            Unknown, Refused, Unreachable: see these.
        """
        from obstore import exceptions

        result = None
        try:
            result = request()
        except (FileNotFoundError, exceptions.NotFoundError):
            pass
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError):
            pass
        except exceptions.UnauthenticatedError as error:
            raise Unknown from error
        except exceptions.PermissionDeniedError as error:
            raise Refused from error
        except (exceptions.BaseError, OSError) as error:
            raise Unreachable(_in_words(str(error))) from error
        self._answered = True
        return result


def _require_room(size: int, may_read: MayRead) -> None:
    if size > SMALL and not may_read(size):
        raise NoRoomError(size)


def _content(result: Any) -> bytes:
    """The content that a server sends; if it is large and does not begin as an object does, only its first part."""
    if result.meta["size"] <= SMALL:
        return bytes(result.bytes())
    chunks = list[bytes]()
    for chunk in result.stream(min_chunk_size=SMALL):
        chunks.append(bytes(chunk))
        if not may_be_object(chunks[0]):
            break
    return b"".join(chunks)


def _of_system(error: OSError) -> Exception:
    return Refused() if isinstance(error, PermissionError) else Unreachable(error.strerror or "it cannot be used")


def _in_words(text: str) -> str:
    """What went wrong, without anything of the text that may be a secret."""
    status = re.search(r"status code: (\d{3})", text)
    if status:
        return f"the server answers with status {status[1]}"
    for sign, words in WORDS.items():
        if sign in text:
            return words
    return "the connection fails"


WORDS = {
    "onnection refused": "nobody answers there",
    "dns error": "the name of the server is not known",
    "ertificate": "its certificate is not trusted; remote_ca names the authority that has signed it",
    "TimedOut": "it does not answer in time",
    "timed out": "it does not answer in time",
    "Content-Length": "the server does not say how large its objects are",
    "body error": "an answer broke off",
}
"""Part of an error of obstore -> what it means."""
