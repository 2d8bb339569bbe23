"""Compilers that are known to compile wrong code are warned about, for the archs that are built."""

from __future__ import annotations

import importlib.util
import re
from datetime import date
from pathlib import Path

import pytest
from kernelwright.toolchain.miscompiles import MISCOMPILES, warnings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "archs", "count"),
    [
        ("13.0.88", ["sm_80", "sm_90a", "compute_80"], 0),  # what a plain project is built with and for
        ("13.0.88", ["sm_80", "sm_100f"], 1),
        ("13.0.88", ["sm_120"], 4),
        ("13.4.10", ["sm_80", "sm_120"], 1),
        ("12.6.77", ["sm_80"], 0),
        ("12.6.77", ["sm_80", "sm_90a"], 1),
        ("12.6.85", ["sm_90a"], 0),
        ("12.3.103", ["sm_80"], 1),
        ("12.3.107", ["sm_80"], 0),
        ("", ["sm_80"], 0),
        ("13.0.88", ["x86-64-v3"], 0),
    ],
)
def test_the_rows_that_concern_a_compiler_and_its_archs_are_told(version: str, archs: list[str], count: int) -> None:
    told = list(warnings("nvcc", version, archs))
    assert len(told) == count
    assert all(f"nvcc {version} is known" in line and "https://" in line for line in told)


def test_only_the_archs_that_are_concerned_are_named() -> None:
    (line,) = warnings("NVRTC", "12.6.77", ["sm_80", "sm_90a", "compute_90"])
    assert "for sm_90a, compute_90:" in line and "use 12.6.85 or newer" in line


def test_every_row_has_a_span_a_date_and_a_source_and_the_docs_have_it() -> None:
    page = (ROOT / "docs/known-miscompiles.md").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/tables.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.with_tables(page, module.tables()["known-miscompiles.md"]) == page, "run: python docs/tables.py"
    assert len(MISCOMPILES) >= 10
    for row in MISCOMPILES:
        seen = row.seen if "-" in row.seen else f"{row.seen}-01-01"
        assert date.fromisoformat(seen) <= date(2026, 11, 29) and row.source.startswith("https://")
        assert re.fullmatch(r"[0-9.]+", row.first) and row.archs[0] <= row.archs[1]
