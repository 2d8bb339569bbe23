"""The values that calls of recorded functions pass, as the library compares them, and as a recording has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from .heuristic import FLOATS, LAUNCH_OPTIONS, MARK, undeclared
from .interface import plain_number
from .refusal import NO_VARIANT, refuse

OPTIONS = {**LAUNCH_OPTIONS, "debug": False}
"""The options that a call can give, and their defaults."""

PLAIN = (int, float, bool, str, type(None))

DTYPES = {**FLOATS, "bool": "int1"}
"""Dtypes of PyTorch whose names differ from those of Triton."""

MISSING = "\0missing"
"""Stands for a parameter that a call leaves out. No call was recorded with this text, so the library refuses it."""


def elements(function: str, name: str, value: Any, form: Sequence[Any] | int) -> Iterator[Any]:
    """The elements of a tuple, and of tuples in it; of a tensor descriptor what it consists of.

    Arguments:
        function, name: the function and its parameter.
        form: for each element None, or the form of a tuple; the number of dimensions of a descriptor.

    Raises:
        ValueError: the value has another form.
    """
    if isinstance(form, int):
        attributes = "base, shape, strides, block_shape, padding and round_f32_to_tf32"
        what = f"tensor descriptor of {form} dimensions, which has {attributes}"
        is_right = hasattr(value, "block_shape") and len(value.shape) == form
        value, form = (_parts(value), [None] * (2 * form + 4)) if is_right else (None, [])
    else:
        what = f"tuple of {len(form)}"
    if not isinstance(value, (tuple, list)) or len(value) != len(form):
        message = f"no such call was recorded: its parameter {name!r} is no {what}"
        refuse(function, ValueError, f"{message}\n  remedy: record a run of the program that makes it", NO_VARIANT)
    for element, inner in zip(value, form, strict=True):
        if inner is None:
            yield plain(element)
        else:
            yield from elements(function, name, element, inner)


def plain(value: Any) -> Any:
    """A value as the library compares it: tensors and plain numbers as they are, and other constants as a text."""
    if type(value) in PLAIN or hasattr(value, "__dlpack__"):
        return value
    if type(value).__name__ == "constexpr":  # of a parameter that is not declared as a constant
        value = undeclared(value_of(value.value))
        return value if type(value) in PLAIN else text_of(value)
    number = plain_number(value)
    if type(number) in PLAIN:
        return number
    described = _described(value)
    return value if described is None else text_of(described)


def _parts(descriptor: Any) -> list[Any]:
    """What the library is given of a tensor descriptor of Triton."""
    lists = (list(map(int, each)) for each in (descriptor.shape, descriptor.strides, descriptor.block_shape))
    shape, strides, block = lists
    modes = [descriptor.padding == "nan", bool(descriptor.round_f32_to_tf32)]
    return [descriptor.base, *shape, *strides, *modes, block]


def _described(value: Any) -> Any:
    """A constant as a recording has it; None: it is no constant."""
    kind, module = type(value).__name__, type(value).__module__.partition(".")[0]
    if isinstance(value, (tuple, list)):
        return [value_of(item) for item in value]
    if kind == "constexpr":
        return value_of(value.value)
    if kind == "dtype" and module == "torch":
        name = str(value).removeprefix("torch.")
        return {"dtype": DTYPES.get(name, name)}
    if kind == "dtype":
        return {"dtype": value.name}
    if hasattr(value, "fn") and hasattr(value, "module"):
        return {"function": f"{value.module}:{value.fn.__qualname__}"}
    return None


def value_of(item: Any) -> Any:
    """An element of a tuple."""
    number = plain_number(item)
    if type(number) in PLAIN:
        return {"float": str(number)} if isinstance(number, float) and not isfinite(number) else number
    described = _described(item)
    # What is no constant is equal to none: a recording has no such objects.
    return {"object": type(item).__name__} if described is None else described


def default(value: Any) -> Any:
    """A default of the manifest as the library compares it."""
    if isinstance(value, dict) and [*value] == ["float"]:
        return float(value["float"])
    return value if type(value) in PLAIN else text_of(value)


def default_tuple(value: Any) -> Any:
    """A default of the manifest that is a tuple, or an element of it."""
    return tuple(map(default_tuple, value)) if isinstance(value, list) else default(value)


def text_of(described: Any) -> str:
    """The text that the library has in place of a constant."""
    return MARK + json.dumps(described, sort_keys=True, separators=(",", ":"))


def normal(config: Mapping[str, Any], is_option: Mapping[str, bool]) -> dict[str, Any]:
    """A config of a tuned function, with None for options that have their default."""
    known = {name: default(value) for name, value in config.items() if name in is_option}
    return {n: None if is_option[n] and value == OPTIONS.get(n) else value for n, value in known.items()}
