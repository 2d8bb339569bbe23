"""TEMPORARY"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .. import backends
from ..define.settings import Settings, merge, read_pyproject


@dataclass(frozen=True)
class Options:
    targets: tuple[str, ...] | None = None
    archs: tuple[str, ...] | None = None
    backend: str | None = None
    flags: tuple[str, ...] = ()
    pass_configs: Mapping[str, object] | None = None
    verbose: bool | None = None
    num_workers: int | None = None

    def changed(self, place, **o):
        if "target" in o:
            o["targets"] = (o.pop("target"),)
        return replace(self, **{k: v for k, v in o.items() if v is not None})

    @classmethod
    def from_arguments(cls, place, **o):
        return cls().changed(place, **o)

    @property
    def given(self) -> frozenset[str]:
        return frozenset(n for n in ("targets", "archs") if getattr(self, n) is not None)


def settings_for(root: Path, options: Options, environment: Mapping[str, str]) -> Settings:
    table = read_pyproject(root / "pyproject.toml")
    given = {}
    if options.targets:
        given["targets"] = list(options.targets)
    if options.archs:
        given["archs"] = list(options.archs)
    if options.backend:
        given["backends"] = [options.backend]
    s = merge(
        [("defaults", {"archs": Settings().archs}), ("pyproject.toml", table), ("arguments", given)], backends.choices()
    )
    return s


def machine():
    from .choice import Machine

    return Machine("x86-64-v3", ())


def choose(record, settings, options):
    from .choice import select_for

    return select_for(record, settings, machine(), options.given)
