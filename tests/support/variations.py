"""Requests that differ in one field, to see what decides in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, Mapping):
        return {**value, (7 if value and isinstance(next(iter(value)), int) else "x"): "x"}
    if isinstance(value, tuple):
        return (*value, value[-1] if value else "x")
    return Path("/changed") if isinstance(value, Path) else "x"


def variations(value: Any, decides: bool = True, path: str = "") -> Iterator[tuple[str, Any, bool]]:
    """A request with each of its fields changed, and whether that field decides; in what it is made of, too."""
    for found in fields(value):
        item, place = getattr(value, found.name), f"{path}.{found.name}"
        deciding = decides and not found.metadata.get("aside")
        if is_dataclass(item) and not isinstance(item, type):
            if deciding:
                for name, inner, whether in variations(item, deciding, place):
                    yield name, replace(value, **{found.name: inner}), whether
        elif isinstance(item, tuple) and item and is_dataclass(item[0]) and deciding:
            for name, inner, whether in variations(item[0], deciding, f"{place}[0]"):
                yield name, replace(value, **{found.name: (inner, *item[1:])}), whether
        else:
            yield place, replace(value, **{found.name: changed(item)}), deciding
