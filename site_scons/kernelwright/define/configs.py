"""The configs of a kernel: how a definition lists them, how they are checked, and what their variants are called."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.errors import DefinitionError, Where, is_text, shown
from .divisible import Divisible, by_class, class_keys, expanded, in_order, require_classes
from .kernel_options import MAX_BITS
from .names import caller
from .recorded import Recorded
from .space import Choice, Space, typed_items, variants_of

ConfigValue = bool | int | float | str
Config = Mapping[str, ConfigValue]

MAX_SLUG = 80
"""Longest variant slug in characters; a longer one is cut and gets a hash (file systems allow 255 bytes)."""

MAX_POINTS = 10_000_000
MAX_CONFIGS = 10_000
"""Points of a grid that its filter is asked for, and those that it may keep; more is a slip, and fills the memory."""

FEWER = "give the axes fewer values, or split the kernel"


def grid(*, where: Callable[..., bool] | None = None, **axes: Iterable[ConfigValue]) -> list[dict[str, ConfigValue]]:
    """The product of the axes as a list of configs, the last axis varying fastest.

    Arguments:
        where: an optional filter that is called with a config's keys as keyword arguments; only configs for which it
            returns true are kept.
        axes: for each key of the config, the values it takes.

    Raises:
        DefinitionError: an axis is empty or is a bare string, or the filter keeps nothing or very much.

    >>> grid(m=[1, 2], n=[1, 2], where=lambda m, n: m <= n)
    [{'m': 1, 'n': 1}, {'m': 1, 'n': 2}, {'m': 2, 'n': 2}]
    """
    values = {}
    for name, axis in axes.items():
        if isinstance(axis, (str, bytes)) or not isinstance(axis, Iterable):
            raise DefinitionError(f"grid axis {name!r} is {shown(axis)}, expected a list of values", caller())
        values[name] = list(itertools.islice(axis, MAX_POINTS + 1))  # an iterator need not have an end
        if not values[name]:
            raise DefinitionError(f"grid axis {name!r} is empty", caller(), "give it at least one value")
    points = math.prod(len(axis) for axis in values.values())
    if points > MAX_POINTS:
        raise DefinitionError(f"the grid has {points} points, at most {MAX_POINTS} are possible", caller(), FEWER)
    configs = (dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
    kept = list(itertools.islice((c for c in configs if where is None or where(**c)), MAX_CONFIGS + 1))
    if len(kept) > MAX_CONFIGS:
        raise DefinitionError(f"the grid keeps more than {MAX_CONFIGS} configs", caller(), FEWER)
    if not kept:
        raise DefinitionError("the grid's filter keeps no config", caller(), "let the filter accept at least one point")
    return kept


@dataclass(frozen=True)
class Variant:
    """A kernel with one config.

    Arguments:
        kernel: the kernel's name.
        config: the config's keys and values, in the order of the definition.
        slug: the readable, unique, file-system-safe name.
    """

    kernel: str
    config: Config
    slug: str


def slugs(configs: Sequence[Config]) -> list[str]:
    """Readable, unique, file-system-safe names of configs, such as ``block_m-64_dtype-float16``.

    A name that had to be changed (odd characters, length) or that would not be unique, also on a file system that
    ignores case, gets a short hash of the config.
    """
    plain = ["_".join(f"{key}-{value}" for key, value in config.items()) or "default" for config in configs]
    safe = [re.sub(r"[^A-Za-z0-9_.+-]", "", slug)[:MAX_SLUG] for slug in plain]
    hashed = [f"{slug}_{_config_hash(config)}" for slug, config in zip(safe, configs, strict=True)]
    # A readable name may by chance be the one that another config gets with its hash.
    counts = Counter(slug.lower() for slug in (*safe, *hashed))
    return [
        slug if slug == readable and counts[slug.lower()] == 1 else name
        for slug, readable, name in zip(safe, plain, hashed, strict=True)
    ]


def variant_of(name: str, configs: Sequence[Config], config: Config) -> Variant:
    """The variant of a config, in whatever order its keys are.

    Arguments:
        name: the kernel's name.
        configs: those that the definition lists.
        config: one of them, or another one. That gets the slug which it would have as the last of the list, and the
            order of keys of the first in the list.
    """
    names = list(dict.fromkeys((*(configs[0] if configs else ()), *config)))
    ordered = {key: config[key] for key in names if key in config}
    items = typed_items(ordered)
    for known, slug in zip(configs, slugs(configs), strict=True):
        if typed_items(known) == items:
            return Variant(name, known, slug)
    return Variant(name, ordered, slugs((*configs, ordered))[-1])


def _config_text(config: Config) -> str:
    return repr([(key, type(value).__name__, value) for key, value in config.items()])


def _config_hash(config: Config) -> str:
    return hashlib.sha256(_config_text(config).encode()).hexdigest()[:8]


def declared_variants(
    function: Callable[..., Any], configs: Any, space: Space | None, divisible: Divisible, where: Where
) -> tuple[tuple[Config, ...], tuple[Choice, ...]]:
    """The configs of all variants of a kernel, and its choices if it has a space.

    Arguments:
        configs: what the decorator lists: a list, ``recorded()``, or None.
    """
    seen = _checked_configs(function, configs, where, divisible, complete=space is None)
    if not isinstance(configs, Recorded):
        seen = _with_classes(seen, divisible, where)
    return variants_of_seen(function, seen, space, divisible, where, isinstance(configs, Recorded))


def variants_of_seen(
    function: Callable[..., Any],
    seen: Sequence[Config],
    space: Space | None,
    divisible: Divisible,
    where: Where,
    are_recorded: bool = False,
) -> tuple[tuple[Config, ...], tuple[Choice, ...]]:
    """The same, of the configs that callers see, with their classes of sizes.

    Arguments:
        are_recorded: whether these may be configs of candidates, of which only the callers' part counts.
    """
    seen = _checked_configs(function, seen, where, divisible, complete=space is None)
    if divisible:
        seen = tuple(in_order(seen))
    require_classes(seen, divisible, where)
    if space is None:
        return seen, ()
    choices = space.choices(seen, are_recorded)
    if divisible:  # which of them a config of a variant belongs to is known only now
        choices = tuple(by_class((choice.config, choice) for choice in choices))
    variants = variants_of(choices)
    if len(variants) > MAX_CONFIGS:
        message = f"configs and tune make {len(variants)} candidates, at most {MAX_CONFIGS} are possible"
        raise DefinitionError(message, where, FEWER)
    return _checked_configs(function, variants, where, divisible), choices


def _with_classes(configs: Sequence[Config], divisible: Divisible, where: Where) -> tuple[Config, ...]:
    """Each config once for each class of sizes."""
    count = len(configs) * math.prod(map(len, divisible.values()))
    if count > MAX_CONFIGS:
        message = f"configs and divisible make {count} variants, at most {MAX_CONFIGS} are possible"
        raise DefinitionError(message, where, "list fewer classes, or give the axes fewer values")
    return tuple(expanded(configs, divisible))


def _checked_configs(
    function: Callable[..., Any], configs: Any, where: Where, divisible: Divisible, complete: bool = True
) -> tuple[Config, ...]:
    """The configs that a decorator lists.

    Arguments:
        complete: whether each has to give a value to each parameter that has no default.
    """
    if isinstance(configs, Recorded):
        check = partial(_checked_configs, divisible=divisible, complete=complete)
        return configs.configs(function, where, check, lambda default: _with_classes(default, divisible, where))
    if configs is None:
        configs = [{}]
    if isinstance(configs, Mapping) or not isinstance(configs, Iterable):
        raise DefinitionError(
            f"configs is {shown(configs)}, expected a list of dicts",
            where,
            "write configs=grid(...) or configs=[{...}]",
        )
    result = tuple(configs)
    if not result:
        raise DefinitionError("configs is empty", where, "give at least one config, or leave configs out")
    for config in result:
        check_config(function, config, where, divisible, complete)
    counts = Counter(map(_config_text, result))
    for config in result:
        if counts[_config_text(config)] > 1:
            raise DefinitionError(f"config {shown(config)} is listed twice", where, "remove one of them")
    return tuple(dict(config) for config in result)


def check_config(
    function: Callable[..., Any], config: Any, where: Where, divisible: Divisible, complete: bool = True
) -> None:
    """Raise a DefinitionError if a definition cannot be called with a config."""
    _require_dict(config, where)
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("target", None)
    kinds = {p.kind for p in parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}:
        raise DefinitionError("a definition cannot have *args, **kwargs or positional-only parameters", where)
    for key, value in config.items():
        if key not in parameters and key not in class_keys(divisible):
            names = ", ".join(parameters) or "none"
            raise DefinitionError(
                f"config key {shown(key)} is not a parameter of the definition (its parameters: {names})",
                where,
                f"add a parameter {shown(key)} to {function.__name__}, or remove the key",
            )
        _check_value(key, value, where)
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in config]
    if missing and complete:
        raise DefinitionError(
            f"config {shown(dict(config))} gives no value for parameter {missing[0]!r}",
            where,
            "add the key, or a default",
        )


def require_values(config: Any, where: Where) -> None:
    """Raise a DefinitionError for what no definition could take as a config, whatever its parameters are."""
    _require_dict(config, where)
    for key, value in config.items():
        if not isinstance(key, str):
            raise DefinitionError(f"config key {shown(key)} is not a string", where)
        _check_value(key, value, where)


def _require_dict(config: Any, where: Where) -> None:
    if not isinstance(config, Mapping):
        remedy = "write configs=grid(...) or configs=[{...}]"
        raise DefinitionError(f"config {shown(config)} is not a dict", where, remedy)


def _check_value(key: str, value: Any, where: Where) -> None:
    """Raise a DefinitionError for a value that a name, JSON or a comparison would not take."""
    if not isinstance(value, (bool, int, float, str)):
        raise DefinitionError(f"config {key}={shown(value)} is not a bool, int, float or str", where)
    if value != value:
        raise DefinitionError(f"config {key}={value!r} is equal to nothing, not even to itself", where)
    if isinstance(value, float) and not math.isfinite(value):
        remedy = 'JSON has no infinity: write it as a string, such as "inf", and convert it in the definition'
        raise DefinitionError(f"config {key}={value!r} is not finite", where, remedy)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise DefinitionError(f"config {key}={shown(value)} has more than {MAX_BITS} bits", where)
    if isinstance(value, str) and not is_text(value):
        raise DefinitionError(f"config {key}={shown(value)} has NUL, or a surrogate without its other half", where)
