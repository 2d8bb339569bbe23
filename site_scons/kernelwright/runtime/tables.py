"""Tuning tables as a package has them: on which device which variant runs for which sizes.

The same tables are in the library of a kernel, where ``library/launcher/tables.h`` looks them up. This module serves
what has no library: the backend ``nvrtc``, and calls that compile on demand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rules:
    """Which variant takes the place of a declared one, by sizes.

    Arguments:
        by: the size symbols whose product decides; none: there is one range.
        ranges: the largest product of a range, and the number of its variant; in rising order, the last one without a
            largest product.
    """

    by: tuple[str, ...]
    ranges: tuple[tuple[int | None, int], ...]

    def choose(self, symbols: Mapping[str, Any]) -> int:
        """The number of the variant for these sizes."""
        product = math.prod(symbols[name] for name in self.by)
        return next(variant for upto, variant in self.ranges if upto is None or product <= upto)


@dataclass(frozen=True)
class DeviceTable:
    """The table of one device for one kernel.

    Arguments:
        target: ``cuda`` or ``llvm``.
        arch: the arch of the code that was measured, such as ``sm_90a`` or ``x86-64-v3``.
        name: the device as its driver or its kernel names it, such as ``NVIDIA H100 80GB HBM3``.
        count: its multiprocessors, or the cores of the machine.
        rules: number of a declared variant -> what may take its place. One that is not there runs itself.
    """

    target: str
    arch: str
    name: str
    count: int
    rules: Mapping[int, Rules]

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
    """The table that counts on a device; None: the declared order does.

    It is the one of exactly this device; or else of this arch and count; or else of this arch and the nearest count,
    the lower one of two that are equally near. Of two tables that are equally good the first counts, so all processes
    with equal devices decide alike.

    Arguments:
        arch: the arch of the code that would run.
        name, count: of the device.
    """
    same = [table for table in tables if table.target == target and table.arch == arch]
    return min(same, key=lambda t: (t.name != name or t.count != count, abs(t.count - count), t.count), default=None)
