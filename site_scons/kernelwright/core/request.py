"""Requests: frozen objects that say what is to be made. The digest of one is what the result is known by.

Whoever does the work gets the request and nothing else. So nothing can decide a result that is not in its key, as
https://github.com/bazelbuild/remote-apis has it for an ``Action``. A field that the work needs and that decides
nothing, such as a scratch folder, is marked where it is declared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from .files import canonical_json

ASIDE = {"aside": True}
"""Metadata of a field that decides nothing, such as a path, a place for messages or a limit of time:
``scratch: Path = field(metadata=ASIDE)``."""


def canonical(value: Any) -> Any:
    """The part of a request that decides, as JSON data: equal for requests that make the same.

    Arguments:
        value: a frozen dataclass, or what its fields may be: texts, numbers, bytes, mappings whose keys are texts
            or integers, sequences, sets, and dataclasses.

    Raises:
        TypeError: something in it has no canonical form. A path is such a thing: it decides nothing, or its name does.
    """
    # A build with nothing to do asks for thousands of these, and most of what is in them are texts.
    if type(value) is str or value is None or isinstance(value, (str, bool, int, float)):
        return value
    if type(value) is dict or isinstance(value, Mapping):
        if value and all(type(key) is int for key in value):
            return ["by number", sorted([number, canonical(item)] for number, item in value.items())]
        return {_key(name): canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((canonical(item) for item in value), key=canonical_json)
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, {name: canonical(getattr(value, name)) for name in deciding(type(value))}]
    raise TypeError(f"a {type(value).__name__} has no canonical form: mark its field as ASIDE, or name what it says")


def digest(value: Any) -> str:
    """SHA-256 of the canonical form of a request, in hexadecimal; see :func:`canonical`."""
    return hashlib.sha256(canonical_json(canonical(value)).encode()).hexdigest()


@cache
def deciding(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass that decide, in their order."""
    return tuple(each.name for each in fields(kind) if not each.metadata.get("aside"))


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(
            f"a mapping with the key {name!r} has no canonical form: only texts or only integers can be keys"
        )
    return name
