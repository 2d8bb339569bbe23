"""Finds variants of a kernel that the same arrays may fit although they mean different things.

Builds do this for the tables of a library. Where there is no library, it is done when a kernel is first called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from .size import Size, line, value_or_none


class Compared(Protocol):
    """An argument as one variant expects it, with what comparisons of variants use."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """``tensor``, or another kind."""

    @property
    def dtype(self) -> str:
        """Its type."""

    @property
    def shape(self) -> Sequence[Any]:
        """The sizes of a tensor."""

    @property
    def output(self) -> bool:
        """Whether it may be left out."""

    @property
    def given(self) -> bool | None:
        """Whether a tensor is passed; False: None is; None: either."""


Pair = tuple[int, Sequence[Compared], int, Sequence[Compared]]
"""Two variants that may have code for the same device: number and arguments of each, the lower number first."""


class Relations:
    """Which declared variants of a kernel the same call may fit.

    Arguments:
        pairs: each two declared variants.
        configs: the configs of all variants.
        meaning: the names in the configs that the reference takes.

    Attributes:
        rivals: for each variant, the numbers of later ones that may fit the same arrays and differ in meaning.
        competing: the numbers of variants whose dtypes may also fit another variant that has other sizes.
    """

    def __init__(self, pairs: Iterable[Pair], configs: Sequence[Mapping[str, Any]], meaning: Sequence[str]) -> None:
        self.rivals: list[list[int]] = [[] for _ in configs]
        self.competing: set[int] = set()
        for number, one, rival, other in pairs:
            if not _may_share(one, other):
                continue
            if not _are_alike(one, other):
                self.competing |= {number, rival}
            same = all(configs[number].get(name) == configs[rival].get(name) for name in meaning)
            if rival not in self.rivals[number] and _differ_in_meaning(one, other, same):
                self.rivals[number].append(rival)


def _may_share(one: Sequence[Compared], other: Sequence[Compared]) -> bool:
    """Whether dtypes, ranks and constant sizes allow inputs that fit two variants."""
    return all(a.output or _may_be_one(a, b) for a, b in zip(one, other, strict=True))


def _may_be_one(a: Compared, b: Compared) -> bool:
    if not a.given and not b.given:
        return True  # both take None
    if False in (a.given, b.given):
        return False
    if (a.kind == "tensor") != (b.kind == "tensor") or len(a.shape) != len(b.shape):
        return False
    constant = [(s, t) for s, t in zip(a.shape, b.shape, strict=True) if isinstance(s, int) and isinstance(t, int)]
    return (a.kind != "tensor" or a.dtype == b.dtype) and all(s == t for s, t in constant)


def _are_alike(one: Sequence[Compared], other: Sequence[Compared]) -> bool:
    """Whether two variants have the same sizes, whatever their names are."""
    return _is_case(one, other) and _is_case(other, one)


def _differ_in_meaning(one: Sequence[Compared], other: Sequence[Compared], same_values: bool) -> bool:
    """Whether two variants that the same inputs may fit compute different things.

    A variant whose sizes are a special case of the other's, as ``[n, 64]`` is of ``[n, m]``, means the same. If both
    have the same sizes, the values that the reference takes decide. All others differ.

    Arguments:
        same_values: whether both configs give the reference the same values.
    """
    inputs = [(a, b) for a, b in zip(one, other, strict=True) if not a.output]
    first, second = [a for a, _ in inputs], [b for _, b in inputs]
    cases = _is_case(first, second), _is_case(second, first)
    return not any(cases) or (all(cases) and not same_values)


def _is_case(special: Sequence[Compared], general: Sequence[Compared]) -> bool:
    """Whether ``special`` is ``general`` with certain sizes in place of its names."""
    values: dict[str, Any] = {}
    later: list[tuple[Any, str]] = []
    for a, b in zip(special, general, strict=True):
        shapes = zip(a.shape, b.shape, strict=False) if a.kind == "tensor" else [(a.name, b.name)]
        for size, wanted in ((getattr(s, "text", s), getattr(t, "text", t)) for s, t in shapes):
            if isinstance(wanted, str) and not wanted.isidentifier():
                later.append((size, wanted))
            elif (wanted if isinstance(wanted, int) else values.setdefault(wanted, size)) != size:
                return False
    for size, wanted in later:
        told, other = line(wanted), line(size) if isinstance(size, str) else None
        if told is not None and told.name not in values and other is not None and told[1:] == other[1:]:
            values[str(told.name)] = other.name
        elif told is not None and isinstance(size, int) and told.fits(size):
            values.setdefault(str(told.name), told.solved(size))
    return all(_put_in(wanted, values) == size for size, wanted in later)


def _put_in(size: str, values: Mapping[str, Any]) -> Any:
    """An expression with sizes in place of names: a number, if all these sizes are numbers."""
    names = Size(size).names
    if all(isinstance(values.get(name), int) for name in names):
        return value_or_none(Size(size), values)
    return re.sub(r"[A-Za-z_]\w*(?!\()\b", lambda found: str(values.get(found[0], found[0])), size)
