"""TEMPORARY"""

from __future__ import annotations
import os
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
