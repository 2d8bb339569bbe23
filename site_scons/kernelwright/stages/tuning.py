"""What the tuning tables say of the variants that were made: for the wrapper, the backends and the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..backends.files import VariantFiles
from ..backends.plan import KernelPlan
from ..core.errors import KernelwrightError, Where
from ..core.request import ASIDE
from ..runtime.tables import DeviceTable, Rules

if TYPE_CHECKING:
    from .selection import KernelSelection


@dataclass(frozen=True)
class Tuning:
    """The tuning of a kernel; the fields besides ``slugs`` are as of :class:`stages.selection.KernelSelection`.

    Arguments:
        slugs: of all variants, whose numbers the tables have; empty: the kernel has no space.
    """

    slugs: tuple[str, ...] = ()
    declared: int | None = None
    tables: tuple[DeviceTable, ...] = ()
    tabled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: tuple[Mapping[int, str], ...] = field(default=(), metadata=ASIDE)

    def of(self, variants: tuple[VariantFiles, ...]) -> Tuning:
        """The same for these variants, with the numbers that they have: a partial package may have fewer."""
        if self.declared is None:
            return self
        made = {variant.slug: number for number, variant in enumerate(variants)}
        numbers = {old: made[slug] for old, slug in enumerate(self.slugs) if slug in made}
        declared = sum(number < self.declared for number in numbers)
        tables, places = [], []
        for table, of_table in zip(self.tables, self.places, strict=True):
            rules = {
                numbers[first]: _renumbered(table, first, rules, numbers, variants)
                for first, rules in table.rules.items()
                if first in numbers
            }
            tables.append(replace(table, rules=rules))
            places.append({numbers[first]: place for first, place in of_table.items() if first in numbers})
        return Tuning(tuple(made), declared, tuple(tables), self.tabled, tuple(places))


def tuning_of(selection: KernelSelection) -> Tuning:
    """The tuning of a kernel; empty for one without a space."""
    if selection.declared is None:
        return Tuning()
    tabled = {slug: tuple(targets) for slug, targets in selection.tabled.items()}
    return Tuning(selection.record.slugs, selection.declared, selection.tables, tabled, selection.places)


def _renumbered(
    table: DeviceTable, first: int, rules: Rules, numbers: Mapping[int, int], variants: tuple[VariantFiles, ...]
) -> Rules:
    """Rules with the numbers that variants have now; what has no code for the table's arch gives way to the first."""

    def now(old: int) -> int:
        number = numbers.get(old)
        units = variants[number].units if number is not None else ()
        has_code = any(unit.target == table.target and table.arch in unit.archs for unit in units)
        return number if number is not None and has_code else numbers[first]

    return Rules(rules.by, tuple((upto, now(old)) for upto, old in rules.ranges))


def check_symbols(plan: KernelPlan, tuning: Tuning, where: Where) -> None:
    """Find out whether the arguments of a call tell the sizes that rules go by.

    Raises:
        KernelwrightError: there is no such size; the message names file and line.
    """
    for table, places in zip(tuning.tables, tuning.places, strict=True):
        for number, rules in table.rules.items():
            for unit in plan.variants[number].of(table.target):
                known = unit.told_sizes
                for name in rules.by:
                    if name not in known:
                        place = replace(where, stage="tuning", location=places.get(number))
                        message = (
                            f"by names {name!r}, which no argument tells; the sizes are {', '.join(known) or 'none'}"
                        )
                        raise KernelwrightError(message, place, f"measure again: kernelwright tune {plan.name}")
