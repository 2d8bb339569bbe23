"""What the tuning tables say of the variants that were made: for the wrapper, the backends and the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import KernelwrightError
from ..library.files import VariantFiles
from ..library.plan import KernelPlan
from ..runtime.tables import DeviceTable, Rules
from .context import KernelContext


@dataclass(frozen=True)
class Tuning:
    """The tuning of a kernel, with the numbers that its variants have.

    Arguments:
        declared, tables: as of :class:`library.plan.KernelPlan`.
        tabled: slug -> as of :class:`library.plan.VariantPlan`.
        places: of each table: number of a declared variant -> ``file:line`` of its rules.
    """

    declared: int | None
    tables: tuple[DeviceTable, ...]
    tabled: Mapping[str, tuple[str, ...]]
    places: tuple[Mapping[int, str], ...]


def options_of(kernel: KernelContext) -> dict[str, Any]:
    """What decides the tuning; nothing for a kernel without a space."""
    selection = kernel.selection
    if selection.declared is None:
        return {}
    tables = [table.to_json() for table in selection.tables]
    tabled = {slug: list(targets) for slug, targets in selection.tabled.items()}
    return {"tuning": {"declared": selection.declared, "tables": tables, "tabled": tabled}}


def tuning_of(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> Tuning:
    """The tuning of a kernel of which these variants were made, which may be fewer in a partial package."""
    selection, record = kernel.selection, kernel.record
    if selection.declared is None:
        return Tuning(None, (), {}, ())
    made = {variant.slug: number for number, variant in enumerate(variants)}
    numbers = {old: made[slug] for old, slug in enumerate(record.slugs) if slug in made}
    declared = sum(number < selection.declared for number in numbers)
    tables, places = [], []
    for table, of_table in zip(selection.tables, selection.places, strict=True):
        rules = {
            numbers[first]: _renumbered(table, first, rules, numbers, variants)
            for first, rules in table.rules.items()
            if first in numbers
        }
        tables.append(replace(table, rules=rules))
        places.append({numbers[first]: place for first, place in of_table.items() if first in numbers})
    return Tuning(declared, tuple(tables), selection.tabled, tuple(places))


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


def check_symbols(plan: KernelPlan, tuning: Tuning, kernel: KernelContext) -> None:
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
                        where = replace(kernel.where("tuning"), location=places.get(number))
                        message = (
                            f"by names {name!r}, which no argument tells; the sizes are {', '.join(known) or 'none'}"
                        )
                        raise KernelwrightError(message, where, f"measure again: kernelwright tune {plan.name}")
