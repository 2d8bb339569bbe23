"""Checks configs of TVM's passes without TVM: their form, and the types of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.errors import DefinitionError, Where, is_text, shown

Plain = bool | int | float | str
PassConfigs = Mapping[str, Plain | Mapping[str, Plain]]
"""Name of a config -> bool, int, float or str; or, where TVM expects an object, a dict of its fields."""

MAX_BITS = 63
"""Largest integer in bits, without the sign: TVM's integers have 64."""

EXAMPLE = 'write for example pass_configs={"tirx.disable_vectorize": True}'


def checked_pass_configs(value: Any, where: Where) -> dict[str, Any]:
    """Pass configs in a fixed order, as a copy. Which of them TVM has is found out where TVM is.

    Arguments:
        value: what somebody gave; None is the same as an empty dict.
        where: the place for errors.

    Raises:
        DefinitionError: it is not a dict of names and plain values.
    """
    if value is None:
        return {}
    return {name: _checked(name, item, where) for name, item in _items("pass_configs", value, where)}


def _items(place: str, value: Any, where: Where) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{place} is {shown(value)}, expected a dict", where, EXAMPLE)
    bad = [name for name in value if not isinstance(name, str) or not name or not is_text(name)]
    if bad:
        raise DefinitionError(f"{place} has the key {shown(bad[0])}, expected a name", where, EXAMPLE)
    return sorted(value.items())


def _checked(name: str, value: Any, where: Where) -> Any:
    if not isinstance(value, Mapping):
        return _plain(f"pass config {name!r}", value, where)
    fields = _items(f"pass config {name!r}", value, where)
    return {field: _plain(f"pass config {name!r}, field {field!r},", item, where) for field, item in fields}


def _plain(place: str, value: Any, where: Where) -> bool | int | float | str:
    """A value that JSON and TVM can hold, without what a subclass adds to it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and is_text(value):
        return str(value)
    expected = f"a bool, an integer of {MAX_BITS} bits, a finite float, a str, or a dict of such"
    raise DefinitionError(f"{place} is {shown(value)}, expected {expected}", where, EXAMPLE)
