"""Requests: frozen objects that say what is to be made. The digest of one is what the result is known by.

Whoever does the work gets the request and nothing else. So nothing can decide a result that is not in its key, as
https://github.com/bazelbuild/remote-apis has it for an ``Action``. A field that the work needs and that decides
nothing, such as a scratch folder, is marked where it is declared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from .files import canonical_json

ASIDE = {"aside": True}
"""Metadata of a field that decides nothing, such as a path, a place for messages or a limit of time:
``scratch: Path = field(metadata=ASIDE)``."""


DIGEST = re.compile(r'"[0-9a-f]{32,}"')
"""JSON of a digest, which tells nobody anything."""


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


MOST_SHOWN = 6
"""How many differences of two requests are shown."""

OUTER = re.compile(r"^(definition\.(dependencies|contents)\.|selection\.record\.|job\.)")
"""What is left out of the names of parts: which record has it says nothing to people."""

LONGEST_SHOWN = 80
"""Characters of a part of a request that is shown to people. Of a longer one there is a digest."""


def parts(value: Any) -> dict[str, str]:
    """What decides, part by part, for people: the name of each part -> its JSON, or a digest if that is long.

    Arguments:
        value: as of :func:`canonical`.
    """
    found: dict[str, str] = {}

    def visit(name: str, part: Any) -> None:
        if isinstance(part, list) and len(part) == 2 and isinstance(part[0], str) and isinstance(part[1], dict):
            part = part[1]  # a dataclass
        if isinstance(part, dict) and part:
            for inner, item in part.items():
                visit(f"{name}.{inner}" if name else inner, item)
        elif isinstance(part, list) and any(isinstance(item, dict | list) for item in part):
            for number, item in enumerate(part):
                visit(f"{name}[{number}]", item)
        else:
            text = canonical_json(part)
            is_shown = len(text) <= LONGEST_SHOWN and not DIGEST.fullmatch(text)
            found[name] = text if is_shown else f"#{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    visit("", canonical(value))
    return {OUTER.sub("", name): text for name, text in found.items()}


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """A text for each part that differs: ``nvcc_flags was [], is ["-lineinfo"]``, ``kernels/saxpy.py changed``.

    Arguments:
        old, new: as :func:`parts` gives them.
    """
    texts = []
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        if before is None or now is None:
            texts.append(f"{name} is {'new' if before is None else 'gone'}{_with(now or before)}")
        else:
            is_shown = not (before.startswith("#") or now.startswith("#"))
            texts.append(f"{name} was {before}, is {now}" if is_shown else f"{name} changed")
    return texts


def first_of(texts: Sequence[str]) -> str:
    """The first of some differences, and how many more there are, on one line."""
    more = len(texts) - MOST_SHOWN
    return "; ".join([*texts[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _with(text: str | None) -> str:
    return "" if text is None or text.startswith("#") else f": {text}"


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
