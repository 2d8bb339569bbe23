"""The sizes that a check tries: some that no tile divides, large ones, and those at and beyond limits of the code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..core.signature import Signature
from ..define.divisible import rounded_up
from ..runtime.dtype import integer_range
from ..runtime.size import Requirement, Size, value_or_none

Sizes = dict[str, int]

SIZES = (33, 1, 130, 7, 0)
"""Values that the size variables take in turn: no tile divides them, but for 0, which makes tensors empty."""

LARGE = 2053
"""A prime. One size variable takes it while the others are MIDDLE, so loops over parts of a row have many rounds."""

MIDDLE = 7

MAX_BYTES = 64 * 2**20
"""A combination with a LARGE size is left out if its tensors have more bytes than this together."""

MOST_BEYOND = 16 * 2**20
"""The same of one with a size at a limit, or beyond a constant of the code."""

MOST_BLOCKS = 2**11
"""Blocks that an interpreter runs for a LARGE size or one beyond a constant. What takes a block for each element has no
loop over it and fits no block."""

HUGE = 2**40
"""Beyond any limit that is not there because of memory."""

TURNS = 8
"""How often sizes are changed until they fulfil all requirements."""

NEAR = 256
"""How far around a size one is looked for that has the right remainder."""


class SizeSets:
    """The sizes that are tried for one variant.

    Arguments:
        signature: the variant's.
        bytes_of: the bytes of all tensors for some sizes; None: there are no such tensors.
        one_by_one: whether an interpreter runs one block after the other.
    """

    def __init__(
        self, signature: Signature, bytes_of: Callable[[Mapping[str, int]], int | None], one_by_one: bool = False
    ) -> None:
        self._bytes_of = bytes_of
        self._grids = [launch.grid for launch in signature.launches or ()] if one_by_one else []
        self._steps = signature.multiples
        named = {name for text in signature.requires for name in Requirement(text).names}
        numbers = {a.name: a.dtype for a in signature.arguments if a.launcher_kind == "KW_INT" and a.name in named}
        self._names = list(dict.fromkeys((*signature.symbols, *numbers)))
        texts = [*signature.requires, *(f"{name} <= {integer_range(dtype)[1]}" for name, dtype in numbers.items())]
        known = (Requirement(text) for text in texts)
        # Strides follow from the sizes, and are compared where the tensors are made.
        self._requirements = [each for each in known if {*each.names} <= {*self._names}]
        self._constants = sorted({*constants_of(signature).values()})

    def sets(self) -> list[Sizes]:
        """The sizes, each combination once. They fulfil what the variant requires of sizes."""
        base = (self._allowed(sizes) for sizes in size_sets(self._names, self._steps))
        found = [sizes for sizes in base if sizes is not None and (not self._is_large(sizes) or self._fits(sizes))]
        for name in self._names:
            found += [*self._at_limit(name), *self._beyond(name, max((sizes[name] for sizes in found), default=0))]
        return [sizes for at, sizes in enumerate(found) if sizes not in found[:at]]

    def completed(self, sizes: Mapping[str, int]) -> Sizes:
        """Sizes that somebody else has chosen, with values for the numbers that requirements name."""
        missing = [name for name in self._names if name not in sizes]
        chosen = {**dict.fromkeys(missing, MIDDLE), **sizes}
        return (self._allowed(chosen, missing) if missing else None) or chosen

    def _is_large(self, sizes: Sizes) -> bool:
        return any(size >= rounded_up(LARGE, self._steps.get(name, 1)) for name, size in sizes.items())

    def _takes(self, sizes: Sizes, most: int) -> bool:
        """Whether tensors of these sizes take more than so many bytes."""
        return (self._bytes_of(sizes) or 0) > most

    def _fits(self, sizes: Sizes, most: int = MAX_BYTES) -> bool:
        """Whether they do not, and an interpreter runs not too many blocks."""
        return not self._takes(sizes, most) and self._blocks(sizes) <= MOST_BLOCKS

    def _with(self, name: str, size: int, others: int) -> Sizes:
        sizes = {**dict.fromkeys(self._names, others), name: size}
        return {each: rounded_up(size, self._steps.get(each, 1)) for each, size in sizes.items()}

    def _at_limit(self, name: str) -> Iterator[Sizes]:
        """The sizes with the largest value of a name that the requirements allow; none, if they have no limit."""
        most = self._with(name, HUGE, MIDDLE)
        if not self._fulfil(most):
            sizes = self._allowed(most, [name, *(each for each in self._names if each != name)])
            if sizes is not None and not self._takes(sizes, MOST_BEYOND):
                yield sizes

    def _beyond(self, name: str, tried: int) -> Iterator[Sizes]:
        """Sizes above each constant of the code that no size of this name is above up to now."""
        for constant in self._constants:
            for others in (MIDDLE, 1) if constant >= tried else ():
                sizes = self._allowed(self._with(name, constant + 1, others))
                if sizes is not None and self._fits(sizes, MOST_BEYOND):
                    yield sizes
                    break

    def _blocks(self, sizes: Sizes) -> int:
        """How many blocks run one after the other, as far as their number is arithmetic of sizes."""
        try:
            return sum(math.prod(int(Size(str(size)).value(sizes)) for size in grid) for grid in self._grids)
        except (ValueError, ZeroDivisionError):  # a launch may also have shifts and conditions
            return 0

    def _fulfil(self, sizes: Sizes) -> bool:
        return all(requirement.holds(sizes) for requirement in self._requirements)

    def _allowed(self, sizes: Sizes, order: Sequence[str] = ()) -> Sizes | None:
        """Sizes near to these that fulfil all requirements; None: none are found.

        Arguments:
            order: which one is changed if either of two can be, the first one first; default: the smallest.
        """
        ordered = order or sorted(sizes, key=lambda name: sizes[name])
        for _ in range(TURNS):
            broken = next((each for each in self._requirements if not each.holds(sizes)), None)
            if broken is None:
                return sizes
            changed = next(self._changed(sizes, broken, ordered), None)
            if changed is None:
                return None
            sizes = changed
        return None

    def _changed(self, sizes: Sizes, requirement: Requirement, order: Sequence[str]) -> Iterator[Sizes]:
        """Sizes that fulfil a requirement, with another value of one name."""
        for name in (name for name in order if name in requirement.names):
            step = self._steps.get(name, 1)
            for value in self._candidates(sizes, requirement, name, step):
                changed = {**sizes, name: value}
                if value >= 0 and value % step == 0 and requirement.holds(changed):
                    yield changed

    def _candidates(self, sizes: Sizes, requirement: Requirement, name: str, step: int) -> Iterator[int]:
        """Values around the one with which both sides are equal, if a line leads there; near ones; and small ones."""
        start = sizes[name]
        for run in (step, 16 * NEAR * step):
            here, there = (_difference(requirement, {**sizes, name: at}) for at in (start, start + run))
            if here is not None and there is not None and here != there:
                equal = (start - here * run // (there - here)) // step * step
                yield from (equal + step * shift for shift in (0, 1, -1, 2, -2))
        yield from (start + step * shift for near in range(1, NEAR + 1) for shift in (-near, near))
        yield from (rounded_up(size, step) for size in SIZES)


def _difference(requirement: Requirement, sizes: Sizes) -> int | None:
    left, right = (value_or_none(side, sizes) for side in requirement.sides)
    return None if left is None or right is None else left - right


def constants_of(signature: Signature) -> dict[str, int]:
    """The integers that a variant is compiled for, by name: those of its config, and others."""
    values = {**signature.config, **{n: v for n, v in signature.constants.items() if n not in signature.config}}
    return {name: value for name, value in values.items() if type(value) is int}


def size_sets(symbols: Sequence[str], multiples: Mapping[str, int] | None = None) -> list[Sizes]:
    """Values for the size variables, whatever a variant requires.

    Each variable takes each of SIZES once, and never the same one as the variable beside it. Then each variable in turn
    is LARGE, and the others are MIDDLE.

    Arguments:
        multiples: variable -> a number that has to divide its values: they are rounded up.
    """
    steps = multiples or {}
    return [
        {name: rounded_up(size, steps.get(name, 1)) for name, size in sizes.items()} for sizes in _size_sets(symbols)
    ]


def _size_sets(symbols: Sequence[str]) -> Iterable[Sizes]:
    if not symbols:
        return [{}]
    count = len(SIZES)
    sets = [{name: SIZES[(case + 2 * place) % count] for place, name in enumerate(symbols)} for case in range(count)]
    return sets + [{name: LARGE if name == large else MIDDLE for name in symbols} for large in symbols]
