"""The page about tuning: its session works as it is printed, and its table is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.define.tuning import parse_table, table_text
from kernelwright.tune.policy import Policy
from support.pages import blocks
from support.project import ROOT
from test_on_demand_docs import Session

PAGE = ROOT / "docs/tuning.md"


def test_the_session_works_as_it_is_printed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    policy = '{"rounds": 3, "confirm": 0, "batches": 8, "batch_us": 300}'
    session = Session(tmp_path, tmp_path_factory, KERNELWRIGHT_TEST_TUNE=policy)
    for block in blocks(PAGE):
        if block.language != "json":
            # The tests of this repository keep the machine too busy for good times.
            session.follow(replace(block, text=block.text.replace("50%", "100000%").replace("50.0%", "100000.0%")))
    assert session.failed == [], session.output
    assert list(tmp_path.glob("tuning/gelu.*.json")) and (tmp_path / "build/acme_kernels/manifest.json").is_file()


def test_the_table_of_the_page_has_the_canonical_form() -> None:
    (text,) = (block.text for block in blocks(PAGE) if block.language == "json")
    assert table_text(parse_table(text.encode(), "tuning/gelu.x86-64-v3-amd-epyc-2.json")) == text


def test_the_page_has_the_numbers_of_the_policy() -> None:
    page, policy = " ".join(PAGE.read_text(encoding="utf-8").split()), Policy()
    assert f"In each of {policy.rounds} rounds" in page and f"a group of {policy.group}." in page
    assert f"{policy.batches} batches of {policy.batch_us // 1000} ms or more" in page and policy.drop == 2
    assert f'"policy": "{policy.text.partition(",")[0]}, ..."' in page
