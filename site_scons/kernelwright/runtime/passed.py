"""Which arguments of a kernel the values of a call are for, if some are left out.

Nothing is imported here, because every kernel needs this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


def optional_in(variants: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The inputs that a call may leave out, and what they are then: a number's default, or None for a tensor.

    Arguments:
        variants: what the manifest says of them.
    """
    items = (item for variant in variants for item in variant["arguments"])
    return {i["name"]: i.get("default") for i in items if i.get("given", True) is not True or "default" in i}


def passed_in(
    items: Sequence[Mapping[str, Any]], optional: Mapping[str, Any], count: int
) -> list[Mapping[str, Any]] | None:
    """The arguments that a call by position is for: all; or the inputs, without optional ones at their end.

    Arguments:
        items: what the manifest says of each argument.
        optional: the names of those that may be left out.
        count: how many values the call has.

    Returns:
        The items of these arguments, in order; None: no call has so many values.
    """
    if count == len(items):
        return list(items)
    inputs = [item for item in items if not item["output"]]
    is_possible = count <= len(inputs) and all(item["name"] in optional for item in inputs[count:])
    return inputs[:count] if is_possible else None
