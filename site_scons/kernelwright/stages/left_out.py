"""Configs of tuned functions of Triton that cannot run. Triton's tuner leaves them out, and so does a package.

``LOWER`` makes files without code of such a variant, so that every state of the caches leads to the same package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..backends.files import UnitFiles, VariantFiles
from ..core.errors import LoweringError, Where
from ..core.records import read_json
from ..define.recorded import CALL
from .runs import Services

REMEDY = "mend that line, or give the function a config that runs on that arch, and record the program again"


def without_left_out(variants: tuple[VariantFiles, ...], where: Where, run: Services) -> tuple[VariantFiles, ...]:
    """The variants without those that were left out.

    Arguments:
        run: is told of each.

    Raises:
        LoweringError: no config is left for some calls on an arch.
    """
    if any([*variant.config] != [CALL] for variant in variants):
        return variants
    calls = [(variant, unit, _call(unit)) for variant in variants for unit in variant.units]
    left = {(unit.archs, call.get("form")) for _, unit, call in calls if not call.get("left_out")}
    gone: set[str] = set()
    for variant, unit, call in calls:
        if why := call.get("left_out"):
            place, _, message = why.partition(": ")
            there = replace(where, variant=variant.slug, stage="lower", location=place)
            if (unit.archs, call["form"]) not in left:
                raise LoweringError(f"{message}; no other config is left for such calls", there, REMEDY)
            run.note_once(f"kernelwright: {there}: {message}, so this config of {call['function']['name']} is left out")
            gone.add(unit.signature)
    return tuple(_kept(variants, gone))


def _call(unit: UnitFiles) -> dict[str, Any]:
    call: dict[str, Any] = read_json(
        Path(unit.signature), lambda read: read.raw.get("recorded") or {}, "remove it and try again"
    )
    return call


def _kept(variants: tuple[VariantFiles, ...], gone: set[str]) -> Iterator[VariantFiles]:
    for variant in variants:
        if units := tuple(unit for unit in variant.units if unit.signature not in gone):
            yield replace(variant, units=units)
