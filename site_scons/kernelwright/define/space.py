"""Spaces of tuning parameters, which callers of a kernel do not see.

A caller's config and a point of the space together are the config of a variant, a candidate. Which candidates are built
is decided by tuning tables; without one, it is the first point of each target.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.arch import target_of
from ..core.errors import DefinitionError, SettingsError, Where, shown

Plain = bool | int | float | str
Point = Mapping[str, Plain]
"""A set of values of the tuning parameters: ``{"block_m": 64, "stages": 3}``."""

Sizes = Mapping[str, tuple[int, ...]]
"""Size symbol -> the sizes that are measured."""

WRITE = "write tune=grid(block=[32, 64]), or a function that returns such a list"

PREFER = 'write preferred={"sm_90a": {"block": 64}}, or a function that returns such a dict'

POINTLESS = "give at least one point; [{}] if there is nothing to tune"

MOST_SIZES = 10_000
"""Sizes of one symbol that a kernel may be measured with."""

LARGEST_SIZE = 2**53


@dataclass(frozen=True)
class Choice:
    """A config that callers can see, and the points that it can be built with.

    Arguments:
        config: the caller's config.
        points: target -> its points; the first one is the default. There is no variant for a target that is missing.
        sizes: what is measured, as far as the definition says so.
        preferred: arch -> the point that runs as code for this arch where no table says more.
    """

    config: Mapping[str, Plain]
    points: Mapping[str, tuple[Point, ...]]
    sizes: Sizes = field(default_factory=dict)
    preferred: Mapping[str, Point] = field(default_factory=dict)

    def candidate(self, point: Point) -> dict[str, Any]:
        """The config of the variant with a point."""
        return {**self.config, **point}

    def candidates(self, target: str) -> list[dict[str, Any]]:
        """The configs of all variants for a target, the declared one first."""
        return [self.candidate(point) for point in self.points.get(target, ())]

    def declared(self, target: str) -> dict[str, Any] | None:
        """The config of the variant that runs for a target where no table says more; None: it has no points."""
        return next(iter(self.candidates(target)), None)

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the tuning parameters."""
        return frozenset(name for points in self.points.values() for point in points for name in point)


class Space:
    """The space that a decorator declares with ``tune=``.

    Arguments:
        tune: the points, or a function of keys of a config and ``target`` that returns them.
        targets: the targets that the kernel can be built for.
        where: the definition.
        preferred: arch -> point, or a function of keys of a config that returns such a dict; None: there are none.
    """

    def __init__(self, tune: Any, targets: Iterable[str], where: Where, preferred: Any = None) -> None:
        self._tune = tune
        self._preferred = preferred
        self._targets = tuple(targets)
        self._where = where
        if not callable(tune):
            self._points = self._checked(tune, "tune")
            if not self._points:
                raise DefinitionError("tune is empty", where, POINTLESS)

    def choices(self, configs: Sequence[Mapping[str, Any]], seen: bool) -> tuple[Choice, ...]:
        """A choice for each config of a caller.

        Arguments:
            configs: the callers' configs; or, where they were ``seen``, those of variants, of which only the callers'
                part counts.

        Raises:
            DefinitionError: the space has another form, is empty, or has a parameter that callers can see.
        """
        unique: dict[str, Choice] = {}
        for config in configs:
            choice = self._choice(config, seen)
            unique.setdefault(repr(typed_items(choice.config)), choice)
        choices = tuple(unique.values())
        tuned = frozenset[str]().union(*(choice.parameters for choice in choices))
        for choice in choices:
            self._require_apart(choice.config, tuned)
        return choices

    def _choice(self, config: Mapping[str, Any], seen: bool) -> Choice:
        points = {target: points_for for target in self._targets if (points_for := self._of(config, target))}
        if not points:
            message = f"tune has no point for {shown(dict(config))} and any target"
            raise DefinitionError(message, self._where, POINTLESS)
        choice = Choice(dict(config), points, preferred=self._preferred_of(config, points))
        if not seen:
            return choice
        return replace(choice, config={key: value for key, value in config.items() if key not in choice.parameters})

    def _preferred_of(self, config: Mapping[str, Any], points: Mapping[str, tuple[Point, ...]]) -> dict[str, Point]:
        """The preferred points for a config, without those that are the first ones anyway."""
        preferred: Any = self._preferred or {}
        if callable(preferred):
            preferred = preferred(**given(preferred, config, "preferred", self._where))
        if not isinstance(preferred, Mapping):
            message = f"preferred is {shown(preferred)}, expected a dict from archs to points"
            raise DefinitionError(message, self._where, PREFER)
        return {arch: dict(point) for arch, point in preferred.items() if self._prefers(arch, point, points)}

    def _prefers(self, arch: Any, point: Any, points: Mapping[str, tuple[Point, ...]]) -> bool:
        """Whether a point takes the place of the first one; there may be no point for the arch's target at all."""
        if not isinstance(arch, str) or not isinstance(point, Mapping):
            message = f"preferred has {shown(arch)}: {shown(point)}, expected an arch and a point"
            raise DefinitionError(message, self._where, PREFER)
        try:
            target = target_of(arch)
        except SettingsError as error:
            raise DefinitionError(f"preferred: {error.message}", self._where, error.remedy) from error
        known = [typed_items(one) for one in points.get(target, ())]
        if known and typed_items(point) not in known:
            message = f"preferred has {shown(dict(point))} for {arch}, which is no point of the space for {target}"
            raise DefinitionError(message, self._where, "add it to tune")
        return bool(known) and typed_items(point) != known[0]

    def _of(self, config: Mapping[str, Any], target: str) -> tuple[Point, ...]:
        """The points for a config and a target; none: there is no such variant for this target."""
        if not callable(self._tune):
            return self._points
        points = self._tune(**given(self._tune, {**config, "target": target}, "tune", self._where))
        return self._checked(points, f"tune, for {shown(dict(config))} and {target},")

    def _checked(self, points: Any, subject: str) -> tuple[Point, ...]:
        if isinstance(points, (str, Mapping)) or not isinstance(points, Iterable):
            raise DefinitionError(f"{subject} is {shown(points)}, expected a list of dicts", self._where, WRITE)
        unique: dict[str, Point] = {}
        for point in points:
            if not isinstance(point, Mapping):
                raise DefinitionError(f"{subject} has {shown(point)}, which is not a dict", self._where, WRITE)
            text = repr(typed_items(point))
            if text in unique:
                message = f"{subject} lists point {shown(dict(point))} twice"
                raise DefinitionError(message, self._where, "remove one of them")
            unique[text] = dict(point)
        return tuple(unique.values())

    def _require_apart(self, config: Mapping[str, Any], tuned: frozenset[str]) -> None:
        """Raise a DefinitionError for a parameter that both a config and the space have."""
        both = sorted(tuned & config.keys())
        if both:
            message = f"config {shown(dict(config))} has the key {both[0]!r}, which tune has, too"
            raise DefinitionError(message, self._where, "leave it out of configs, or out of tune")


def space_of(
    tune: Any, targets: Sequence[str] | None, possible: Sequence[str], where: Where, preferred: Any = None
) -> Space | None:
    """The space of a kernel whose decorator has these arguments; None: it has no tuning parameters.

    Arguments:
        possible: the targets that its language can be built for.
    """
    if tune is None:
        if preferred is not None:
            raise DefinitionError("preferred names points, and there is no tune that has any", where, "add tune")
        return None
    allowed = [target for target in possible if targets is None or target in targets]
    return Space(tune, allowed or possible, where, preferred)  # a name that is no target is found by whoever selects


def variants_of(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """The configs of all candidates: for each choice those of each target, each once."""
    unique: dict[str, dict[str, Any]] = {}
    for choice in choices:
        for target in choice.points:
            for config in choice.candidates(target):
                unique.setdefault(repr(typed_items(config)), config)
    return list(unique.values())


def targets_with_points(choices: Sequence[Choice], targets: Sequence[str]) -> tuple[str, ...]:
    """The targets for which a kernel with these choices has variants; all of them, if it has no space."""
    return tuple(target for target in targets if not choices or any(c.points.get(target) for c in choices))


def callers_part(choices: Iterable[Choice], config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a variant's config that callers can see."""
    tuned = frozenset[str]().union(*(choice.parameters for choice in choices))
    return {key: value for key, value in config.items() if key not in tuned}


def given(function: Callable[..., Any], known: Mapping[str, Any], subject: str, where: Where) -> dict[str, Any]:
    """The values that a function of a definition has parameters for, as keyword arguments.

    Raises:
        DefinitionError: it has a parameter without a default that no value has the name of.
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(known)
    for name, parameter in parameters.items():
        if name not in known and parameter.default is inspect.Parameter.empty:
            message = f"{subject} has a parameter {name!r}, but what it can be given is {', '.join(known) or 'nothing'}"
            raise DefinitionError(message, where, "rename the parameter, or give it a default")
    return {name: value for name, value in known.items() if name in parameters}


def checked_sizes(value: Any, where: Where) -> dict[str, tuple[int, ...]]:
    """The sizes that a definition wants to be measured.

    Raises:
        DefinitionError: it is no dict from names to lists of positive integers.
    """
    remedy = 'return for example {"m": [1, 16, 256, 4096]}'
    if not isinstance(value, Mapping):
        raise DefinitionError(f"sizes returned {shown(value)}, expected a dict", where, remedy)
    sizes = {}
    for symbol, values in value.items():
        if not isinstance(symbol, str) or not symbol.isidentifier():
            raise DefinitionError(f"sizes has the key {shown(symbol)}, expected a size symbol", where, remedy)
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise DefinitionError(f"sizes has {symbol}={shown(values)}, expected a list of integers", where, remedy)
        sizes[symbol] = tuple(sorted({_size(symbol, size, where) for size in values}))
        if not 0 < len(sizes[symbol]) <= MOST_SIZES:
            message = f"sizes has {len(sizes[symbol])} values of {symbol}, expected 1 to {MOST_SIZES}"
            raise DefinitionError(message, where, remedy)
    return sizes


def checked_number(value: Any, name: str, where: Where) -> float:
    """What a definition's function ``cost`` or ``flops`` has returned, as a number.

    Raises:
        DefinitionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        remedy = {"cost": "return a time, in any unit", "flops": "return the operations of a call"}[name]
        raise DefinitionError(f"{name} returned {shown(value)}, expected a number", where, remedy)
    return float(value)


def _size(symbol: str, size: Any, where: Where) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= LARGEST_SIZE:
        message = f"sizes has {symbol}={shown(size)}, expected a positive integer"
        raise DefinitionError(message, where, 'return for example {"m": [1, 16, 256, 4096]}')
    return size


def typed_items(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The items of a config, in whatever order its keys are; different for 1, 1.0 and True. Values may be anything."""
    return sorted((str(key), type(value).__name__, repr(value)) for key, value in config.items())
