"""The tuning tables of a package: which variant runs for which sizes on which device.

A kernel's library has the same tables, and ``backends/launcher/tables.h`` looks them up. This module serves the backend
``cuda_core``, which has no library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Rules:
    """Which variant takes the place of a declared one, by sizes.

    Arguments:
        by: the size symbols whose product decides; none: there is one range.
        ranges: the largest product of a range, and the number of its variant; in rising order. The last range has no
            largest product: None.
    """

    by: tuple[str, ...]
    ranges: tuple[tuple[int | None, int], ...]

    def choose(self, symbols: Mapping[str, Any]) -> int:
        """The number of the variant for these sizes."""
        product = self._product(symbols)
        return next(variant for upto, variant in self.ranges if upto is None or product <= upto)

    def _product(self, symbols: Mapping[str, Any]) -> int:
        return math.prod(int(symbols[name]) for name in self.by)

    def range_text(self, symbols: Mapping[str, Any]) -> str:
        """The range that these sizes are in, such as ``m * n = 40, from 33 to 64``."""
        name, product = " * ".join(self.by), self._product(symbols)
        limits = [upto for upto, _ in self.ranges if upto is not None]
        above = max((upto for upto in limits if upto < product), default=None)
        upto = next((upto for upto in limits if upto >= product), None)
        if not limits:
            return f"any {name or 'size'}"
        if above is None:
            return f"{name} = {product}, up to {upto}"
        end = f"above {above}" if upto is None else f"from {above + 1} to {upto}"
        return f"{name} = {product}, {end}"


@dataclass(frozen=True)
class DeviceTable:
    """The table of one device for one kernel.

    Arguments:
        target: ``cuda`` or ``llvm``.
        arch: the arch of the code that was measured, such as ``sm_90a`` or ``x86-64-v3``.
        name: the device's name from its driver or the operating system, such as ``NVIDIA H100 80GB HBM3``; empty: the
            table is the definition's preference for the arch, for devices without a measured table.
        count: its multiprocessors, or the cores of the machine.
        rules: number of a declared variant -> what may take its place. A variant without rules runs itself.
    """

    target: str
    arch: str
    name: str
    count: int
    rules: Mapping[int, Rules]

    def with_code(self, has_code: Callable[[int], bool]) -> DeviceTable:
        """The same table, with the declared variant in place of each variant that has no code for the arch."""
        rules = {
            number: Rules(r.by, tuple((upto, v if has_code(v) else number) for upto, v in r.ranges))
            for number, r in self.rules.items()
        }
        return replace(self, rules=rules)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> DeviceTable:
        """The table in a kernel's part of the manifest."""
        rules = {
            int(number): Rules(tuple(found["by"]), tuple((upto, variant) for upto, variant in found["ranges"]))
            for number, found in item["rules"].items()
        }
        return cls(item["target"], item["arch"], item["name"], item["count"], rules)

    def to_json(self) -> dict[str, Any]:
        """As :meth:`from_json` reads it."""
        rules = {str(n): {"by": list(r.by), "ranges": [list(pair) for pair in r.ranges]} for n, r in self.rules.items()}
        return {"target": self.target, "arch": self.arch, "name": self.name, "count": self.count, "rules": rules}


def table_for(tables: Sequence[DeviceTable], target: str, arch: str, name: str, count: int) -> DeviceTable | None:
    """The table that applies to a device; None: there is none, and the declared order decides.

    It is the one of exactly this device; or else of this arch and count; or else of this arch and the nearest count,
    the lower one of two that are equally near; or else what the definition prefers for the arch. Of two tables that
    are equally good the first applies, so all processes with equal devices decide alike.

    Arguments:
        arch: the arch of the code that would run.
        name, count: of the device.
    """
    same = [table for table in tables if table.target == target and table.arch == arch]

    def distance(table: DeviceTable) -> tuple[bool, bool, int, int]:
        is_exact = (table.name, table.count) == (name, count)
        return not table.name, not is_exact, abs(table.count - count), table.count

    return min(same, key=distance, default=None)


ASKED_FOR = "it is the variant that was asked for"
DECLARED = "it is the first declared variant that fits; "
NO_TABLES = DECLARED + "there are no tuning tables"


@dataclass(frozen=True)
class Tuned:
    """What the tables of a kernel say about calls that fit a declared variant.

    Arguments:
        declared: the number of that variant.
        arch: the arch of the code that it would run.
        name, count: the device's.
        table: the one that applies; None: there is none for the arch.
    """

    declared: int
    arch: str
    name: str
    count: int
    table: DeviceTable | None

    def rules(self) -> Rules | None:
        """The rules for the declared variant; None: there are none."""
        return self.table.rules.get(self.declared) if self.table else None

    def reason(self, symbols: Mapping[str, Any], chosen: int, slugs: Sequence[str]) -> str:
        """Why a variant runs, in the words of ``backends/launcher/tables.h``.

        Arguments:
            symbols: the sizes of the call.
            chosen: the number of the variant that runs.
            slugs: of all variants.
        """
        table, rules = self.table, self.rules()
        if table is None:
            return f"{DECLARED}no tuning table is for {self.arch}"
        is_exact = (table.name, table.count) == (self.name, self.count)
        nearest = f"the nearest to this device, {_device(self.name, self.count)}"
        text = f"the tuning table of {_device(table.name, table.count)}, "
        text += f"{'which is this device' if is_exact else nearest}, "
        text = text if table.name else f"the definition's preference for {self.arch} "
        if rules is None:
            return f"{DECLARED}{text}has no rules for it"
        named = rules.choose(symbols)
        text += f"has {slugs[named]} for {rules.range_text(symbols)}"
        return text if named == chosen else f"{DECLARED}{text}, which these arguments do not fit"


def _device(name: str, count: int) -> str:
    return f"'{name}' (count {count})"


def tables_of(entry: Mapping[str, Any]) -> tuple[DeviceTable, ...]:
    """The tables in a kernel's part of the manifest."""
    return tuple(map(DeviceTable.from_json, entry.get("tables", ())))
