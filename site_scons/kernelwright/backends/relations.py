"""How the variants of a kernel stand to each other, as far as a call has to be compared with several of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.arch import TARGETS
from ..core.signature import Argument
from ..runtime.rivals import are_alike, are_rivals, have_same_values, may_share
from .plan import KernelPlan, VariantPlan


class Relations:
    """Which declared variants of a kernel a call may mean as well as another one.

    Arguments:
        kernel: the plan.

    Attributes:
        rivals: for each variant, the numbers of those behind it that differ in meaning and may fit the same arrays.
        competing: the slugs of those beside which there is one that the same dtypes fit, and that has other sizes.
    """

    def __init__(self, kernel: KernelPlan) -> None:
        declared = [] if kernel.opaque else kernel.variants[: kernel.num_declared]
        self.rivals: list[list[int]] = [[] for _ in kernel.variants]
        self.competing: set[str] = set()
        for number, one in enumerate(declared):
            for other in range(number + 1, len(declared)):
                pairs = list(_of_both(one, declared[other]))
                if any(may_share(*pair) and not are_alike(*pair) for pair in pairs):
                    self.competing |= {one.slug, declared[other].slug}
                same_values = have_same_values(one.config, declared[other].config, kernel.meaning)
                if any(are_rivals(*pair, same_values) for pair in pairs):
                    self.rivals[number].append(other)


def _of_both(one: VariantPlan, other: VariantPlan) -> Iterator[tuple[tuple[Argument, ...], tuple[Argument, ...]]]:
    """The arguments of two variants, for each target that both are for."""
    for target in TARGETS:
        if (first := one.of(target)) and (second := other.of(target)):
            yield first[0].arguments, second[0].arguments
