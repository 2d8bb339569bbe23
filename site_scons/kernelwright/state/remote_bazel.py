"""The layout of Bazel's remote cache over HTTP: contents in ``cas`` by their SHA-256, results of actions in ``ac``.

So a server that a team has for Bazel can be used: bazel-remote, BuildBarn, nginx. An ActionResult is a message of the
Remote Execution API (https://github.com/bazelbuild/remote-apis,
build/bazel/remote/execution/v2/remote_execution.proto).
Ours has one output file. These are all of the fields that it takes: ``output_files = 2`` with ``path = 1`` and
``digest = 2``, and in a digest ``hash = 1`` and ``size_bytes = 2``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from .remote_store import MayRead, Store, Unreachable

OUTPUT = "entry"
"""Path of the one output file."""


class BazelStore:
    """A store whose objects are in Bazel's layout.

    Arguments:
        store: where the files of the layout are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, name: str, may_read: MayRead) -> bytes | None:
        """See :class:`Store`."""
        result = self._store.get(_action(name), _only_small)
        if result is None:
            return None
        digest = digest_in(result)
        data = self._store.get(f"cas/{digest}", may_read)
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            return b""  # is no object, and so counts as damaged
        return data

    def put(self, name: str, data: bytes) -> bool:
        """See :class:`Store`."""
        digest = hashlib.sha256(data).hexdigest()
        # The result comes last: a server may refuse one that leads to nothing.
        self._store.put(f"cas/{digest}", data)
        return self._store.put(_action(name), action_result(digest, len(data)))

    def has(self, name: str) -> bool:
        """See :class:`Store`. A server may have removed the content and kept the result that leads to it."""
        result = self._store.get(_action(name), _only_small)
        return result is not None and self._store.has(f"cas/{digest_in(result)}")


def _only_small(size: int) -> bool:
    """An ActionResult of ours has some hundred bytes."""
    raise Unreachable("the server answers with what is no ActionResult")


def _action(name: str) -> str:
    return f"ac/{name.rpartition('/')[2]}"


def action_result(digest: str, size: int) -> bytes:
    """An ActionResult with one output file."""
    content = _field(1, digest.encode()) + _number(2 << 3) + _number(size)
    return _field(2, _field(1, OUTPUT.encode()) + _field(2, content))


def digest_in(result: bytes) -> str:
    """The SHA-256 of the output file of an ActionResult. Raises Unreachable if it is no such message."""
    try:
        file = dict(_fields(dict(_fields(result))[2]))
        digest = dict(_fields(file[2]))[1].decode()
    except (KeyError, ValueError, TypeError, IndexError):
        digest = ""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise Unreachable("the server answers with what is no ActionResult")
    return digest


def _number(value: int) -> bytes:
    """A number in the variable length of protocol buffers."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, data: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(data)) + data


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length; those that are numbers are left out."""
    at = 0
    while at < len(data):
        tag, at = _read_number(data, at)
        value, at = _read_number(data, at)
        if tag & 7 == 2:
            if at + value > len(data):
                raise ValueError("it is cut off")
            yield tag >> 3, data[at : at + value]
            at += value
        elif tag & 7 != 0:
            raise ValueError("a field of an unknown type")


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
