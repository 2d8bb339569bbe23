"""Which configs TVM's passes have, and the context in which a function is lowered with some of them.

Written for TVM 0.27. It takes any integer for a bool, and for a field of an object also text, which becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tvm.ir.transform import PassContext

from ...core.errors import DefinitionError, Where, shown

PLAIN = {"bool": bool, "int": int, "ir.IntImm": int, "float": float, "str": str, "ffi.String": str}
"""TVM's names of plain types -> what is given for them."""

REMEDIES = {bool: "write True or False", int: "write a whole number", float: "write a number", str: "write a string"}


def require_pass_configs(pass_configs: Mapping[str, Any], where: Where) -> None:
    """Check that TVM's passes have these configs, and take values of these types.

    Arguments:
        pass_configs: the result of ``define.pass_configs.checked_pass_configs``.
        where: the place for errors.

    Raises:
        DefinitionError: TVM has no such config, or expects another type.
    """
    known = {str(name): str(about["type"]) for name, about in PassContext.list_configs().items()}
    for name, value in pass_configs.items():
        if name not in known:
            near = get_close_matches(name, sorted(known), 3)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(sorted(known))}"
            raise DefinitionError(
                f"TVM has {len(known)} pass configs, and {shown(name)} is none of them", where, remedy
            )
        _require_type(name, value, known[name], where)


def pass_context(pass_configs: Mapping[str, Any], instruments: Sequence[Any] = ()) -> PassContext:
    """A context with these configs and instruments, and with nothing of a context that may be around it."""
    return PassContext(config=dict(pass_configs), instruments=instruments)


def _require_type(name: str, value: Any, expected: str, where: Where) -> None:
    if expected in PLAIN:
        _require_plain(f"pass config {name!r}", value, PLAIN[expected], where)
        return
    fields = _fields_of(name)
    if not fields:
        message = f"pass config {name!r} cannot be given: TVM expects an object of type {expected}, which is no data"
        raise DefinitionError(message, where, "leave it out")
    names = ", ".join(f"{field} ({type(default).__name__})" for field, default in fields.items())
    remedy = f"its fields are {names}"
    if not isinstance(value, Mapping):
        message = f"pass config {name!r} is {shown(value)}, TVM expects a {expected}: write a dict of its fields"
        raise DefinitionError(message, where, remedy)
    for field, item in value.items():
        if field not in fields:
            raise DefinitionError(f"pass config {name!r} has no field {shown(field)}", where, remedy)
        _require_plain(f"pass config {name!r}, field {field!r},", item, type(fields[field]), where)
    config = PassContext(config={name: dict(value)}).config[name]
    for field, item in value.items():
        if getattr(config, field) != item:  # an int of 32 bits has another value
            message = f"pass config {name!r}, field {field!r}, is {shown(item)}, which TVM takes for something else"
            raise DefinitionError(message, where, "give a smaller number")


def _require_plain(place: str, value: Any, expected: type, where: Where) -> None:
    if type(value) is not expected and not (expected is float and type(value) is int):
        message = f"{place} is {shown(value)}, TVM expects a value of type {expected.__name__}"
        raise DefinitionError(message, where, REMEDIES[expected])


def _fields_of(name: str) -> dict[str, Any]:
    """The fields of the object that a config is, with their defaults; none, if it is something else."""
    try:
        config = PassContext(config={name: {}}).config[name]
    except (AttributeError, RuntimeError, TypeError, ValueError):  # it cannot be made of fields
        return {}
    return {field.name: getattr(config, field.name) for field in type(config).__tvm_ffi_type_info__.fields}
