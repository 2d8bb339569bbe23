"""Classes of sizes: a kernel gets one variant for sizes that are multiples of a number, and another one for all others.

A class is a key of a variant's config, such as ``m_multiple_of``, which the definition need not have as a parameter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ..core.errors import DefinitionError, Where, shown
from .recorded import config_text

Item = TypeVar("Item")

SUFFIX = "_multiple_of"

LARGEST = 2**16
"""Largest number that sizes may be multiples of."""

WRITE = 'write for example divisible={"m": [1, 16]}'

Divisible = Mapping[str, tuple[int, ...]]
"""Size symbol -> what its values may be multiples of, the largest first."""

ALL = "all"
"""A key in place of a size symbol: all that a compiler looks at when it compiles for a call, addresses and sizes."""

SPECIALIZED = 16
"""It looks whether they are multiples of this number."""


def checked_divisible(value: Any, where: Where) -> dict[str, tuple[int, ...]]:
    """The classes that a decorator lists.

    Raises:
        DefinitionError: they are no dict from size symbols to lists of positive integers.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DefinitionError(f"divisible is {shown(value)}, expected a dict", where, WRITE)
    return {_symbol(name, where): _numbers(name, numbers, where) for name, numbers in value.items()}


def with_specialized(divisible: Divisible, specialize: Any, where: Where) -> Divisible:
    """The classes of a kernel with those that ``specialize`` asks for: one for multiples of 16, and one for the rest.

    Raises:
        DefinitionError: it is something else than ``"auto"``.
    """
    if ALL in divisible:
        message = f"divisible has the key {ALL!r}, which stands for specialize"
        raise DefinitionError(message, where, "give the size another name")
    if specialize is None:
        return divisible
    if specialize != "auto":
        raise DefinitionError(f"specialize is {shown(specialize)}", where, 'write specialize="auto", or leave it out')
    return {ALL: (SPECIALIZED, 1), **divisible}


def rounded_up(size: int, step: int) -> int:
    """The smallest multiple of a step that is no less than a size."""
    return -(-size // step) * step


def expanded(configs: Iterable[Mapping[str, Any]], divisible: Divisible) -> list[dict[str, Any]]:
    """Each config once for each combination of classes, the largest multiples first.

    A config that names a class itself is for that one only.
    """
    keys = [f"{name}{SUFFIX}" for name in divisible]
    classes = [dict(zip(keys, numbers, strict=True)) for numbers in itertools.product(*divisible.values())]
    combined = (
        {**config, **{k: n for k, n in known.items() if k not in config}} for config in configs for known in classes
    )
    plain = [{key: value for key, value in config.items() if key not in keys or value != 1} for config in combined]
    return list({config_text(config): config for config in plain}.values())


def in_order(configs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Configs in the order of :func:`by_class`."""
    return by_class((config, config) for config in configs)


def by_class(pairs: Iterable[tuple[Mapping[str, Any], Item]]) -> list[Item]:
    """The items of some configs, in the order in which a call tries them. A file of recorded configs has another order.

    Arguments:
        pairs: a config, and what it stands for. Of those that differ only in their classes, the one with the largest
            multiples comes first.
    """
    groups: dict[str, list[tuple[tuple[int, ...], Item]]] = {}
    for config, item in pairs:
        rest = config_text({key: value for key, value in config.items() if not is_class(key)})
        groups.setdefault(rest, []).append((_rank(config), item))
    return [item for group in groups.values() for _, item in sorted(group, key=lambda pair: pair[0])]


def is_class(key: str) -> bool:
    """Whether a key of a config stands for a class."""
    return key.endswith(SUFFIX)


def _rank(config: Mapping[str, Any]) -> tuple[int, ...]:
    """What configs with other classes are sorted by: the more code is specialised, the earlier it comes."""
    numbers = [value for key, value in config.items() if is_class(key) and type(value) is int]
    return -math.prod(numbers), *(-number for number in numbers)


def multiples_of(config: Mapping[str, Any], divisible: Divisible) -> dict[str, int]:
    """The multiples that a variant knows: size symbol -> the number that its values are multiples of."""
    return {name: config[f"{name}{SUFFIX}"] for name in divisible if f"{name}{SUFFIX}" in config}


def class_keys(divisible: Divisible) -> set[str]:
    """The keys of configs that stand for classes."""
    return {f"{name}{SUFFIX}" for name in divisible}


def require_classes(configs: Iterable[Mapping[str, Any]], divisible: Divisible, where: Where) -> None:
    """Raise a DefinitionError for a config with a class that the decorator does not list."""
    for config in configs:
        for name, numbers in divisible.items():
            number = config.get(f"{name}{SUFFIX}", 1)
            if type(number) is not int or number not in numbers:
                message = f"config {shown(dict(config))} is for sizes {name} that are multiples of {shown(number)}"
                classes = ", ".join(map(str, numbers))
                raise DefinitionError(
                    f"{message}, and divisible lists {classes}", where, f"set {name}{SUFFIX} to one of these"
                )


def _symbol(name: Any, where: Where) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError(f"divisible has the key {shown(name)}, expected a size symbol", where, WRITE)
    return name


def _numbers(name: str, value: Any, where: Where) -> tuple[int, ...]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise DefinitionError(f"divisible has {name}={shown(value)}, expected a list of integers", where, WRITE)
    numbers = tuple(value)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= LARGEST:
            message = f"divisible has {name}={shown(number)}, expected an integer from 1 to {LARGEST}"
            raise DefinitionError(message, where, WRITE)
    if not numbers or len(set(numbers)) < len(numbers):
        what = "lists a number twice" if numbers else "lists no number"
        raise DefinitionError(f"divisible {what} for {name}", where, WRITE)
    return tuple(sorted(numbers, reverse=True))
