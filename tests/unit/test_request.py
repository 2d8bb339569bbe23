"""Requests: what decides is in the canonical form, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.request import ASIDE, canonical, deciding, digest


@dataclass(frozen=True)
class Tool:
    identity: str
    path: str = field(metadata=ASIDE)


@dataclass(frozen=True)
class OtherTool(Tool):
    """Says the same, and is used in another way."""


@dataclass(frozen=True)
class Compile:
    source: str
    tool: Tool
    flags: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    scratch: Path = field(default=Path("/nowhere"), metadata=ASIDE)


GIVEN = Compile("a.cu", Tool("nvcc 13", "/usr/bin/nvcc"), ("-O3",), {"b": 1, "a": frozenset({"y", "x"})})


@pytest.mark.parametrize(
    "changed",
    [
        {"source": "b.cu"},
        {"tool": Tool("nvcc 12", "/usr/bin/nvcc")},
        {"tool": OtherTool("nvcc 13", "/usr/bin/nvcc")},
        {"flags": ("-O3", "-G")},
        {"flags": ("-O3 -G",)},
        {"names": {"b": 1.0, "a": frozenset({"y", "x"})}},
        {"names": {"b": True, "a": frozenset({"y", "x"})}},
        {"names": {"b": 1, "a": frozenset({"y"})}},
        {"names": {"b": 1, "a": frozenset({"y", "x"}), "c": {1: 2}}},
    ],
)
def test_what_decides_changes_the_digest(changed: dict[str, Any]) -> None:
    assert digest(replace(GIVEN, **changed)) != digest(GIVEN)


@pytest.mark.parametrize(
    "changed",
    [
        {"scratch": Path("/elsewhere")},
        {"tool": Tool("nvcc 13", "/opt/nvcc")},
        {"names": {"a": frozenset({"x", "y"}), "b": 1}},
    ],
)
def test_what_decides_nothing_does_not(changed: dict[str, Any]) -> None:
    assert digest(replace(GIVEN, **changed)) == digest(GIVEN)


def test_the_names_of_deciding_fields_are_known() -> None:
    assert deciding(Compile) == ("source", "tool", "flags", "names")


@pytest.mark.parametrize("wrong", [Path("a"), object(), {1: 2, "a": 3}, {True: 2}, Compile])
def test_what_has_no_canonical_form_is_an_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        canonical(replace(GIVEN, names={"of": wrong}))
