"""Tuning tables: whatever a file holds, it is an error with its line, or each size has a variant of the space."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hypothesis import strategies as st
from kernelwright.define.kernel import slugs
from kernelwright.define.space import Choice, variants_of
from kernelwright.define.tuning import parse_table, table_text
from kernelwright.discover.discovery import KernelRecord
from kernelwright.discover.selection import KernelSelection
from kernelwright.discover.tuned import choose

from .harness import fuzz, only_our_errors
from .strategies import as_json, damaged, nested, restructured

NAME = "tuning/gemm.x86-64-v3-cpu-2.json"

DOCUMENT = {
    "schema": 1,
    "kernel": "gemm",
    "device": {"target": "llvm", "arch": "x86-64-v3", "name": "CPU", "count": 2},
    "measured": {"tvm": "0.27.0"},
    "configs": [
        {
            "config": {"n": 1},
            "by": ["m"],
            "rules": [
                {"upto": 64, "tune": {"block": 8}},
                {"upto": 128, "tune": {"block": 16}},
                {"tune": {"block": 32}},
            ],
            "evidence": [{"sizes": {"m": 1}, "tune": {"block": 8}, "us": 1.5, "default_us": 2, "spread": 0.01}],
            "sources": [{"tune": {"block": 8}, "digest": "0123456789abcdef"}],
        },
        {"config": {"n": 2}, "by": [], "rules": [{"tune": {"block": 16}}], "evidence": [], "sources": []},
    ],
}

POINTS = ({"block": 8}, {"block": 16}, {"block": 32})
CHOICES = tuple(Choice({"n": n}, {"llvm": POINTS}) for n in (1, 2))
CONFIGS = tuple(variants_of(CHOICES))
RECORD = KernelRecord(
    *("gemm", "", "k.py:1", CONFIGS, tuple(slugs(CONFIGS)), ("llvm",), None, None, ("c",), (), None, False, False),
    choices=CHOICES,
)
SELECTION = KernelSelection(RECORD, {"llvm": ("x86-64-v3",)}, ("tvm_ffi",), ())

CONTENTS = st.one_of(
    damaged(json.dumps(DOCUMENT, indent=1).encode()),
    restructured(DOCUMENT).map(lambda value: as_json(value).encode()),
    st.sampled_from([nested(200_000), nested(60), "", "null", "{", "9" * 5000]).map(str.encode),
    st.binary(max_size=40),
)


@fuzz(600, content=CONTENTS)
def test_a_table_is_an_error_with_its_line_or_covers_every_size(content: bytes) -> None:
    with only_our_errors() as errors:
        table = parse_table(content, NAME)
    if errors:
        assert re.fullmatch(re.escape(NAME) + r":[1-9]\d*", str(errors[0].where.location))
        return
    again = parse_table(table_text(table).encode(), NAME)
    assert again == replace(table, configs=again.configs) and table_text(again) == table_text(table)
    chosen = choose(SELECTION, [table]).selection
    assert all(config in CONFIGS for config in chosen.record.configs) and chosen.declared == len(CHOICES)
    for device in chosen.tables:
        for declared, rules in device.rules.items():
            of_choice = chosen.record.configs[declared]["n"]
            assert all(chosen.record.configs[number]["n"] == of_choice for _, number in rules.ranges)
            ends = [upto for upto, _ in rules.ranges]
            assert ends[-1] is None and sorted(set(ends[:-1])) == ends[:-1]
            assert rules.choose(dict.fromkeys(rules.by, 10**6)) < len(chosen.record.configs)
