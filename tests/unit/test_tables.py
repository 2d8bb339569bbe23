"""Tuning tables in Python: which table counts on a device, and which variant it has for which sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kernelwright.runtime.misses import Misses
from kernelwright.runtime.refusal import MISALIGNED, because
from kernelwright.runtime.tables import DeviceTable, Rules, table_for, tables_of
from support.launcher_build import tensor

RULES = Rules(("m",), ((16, 1), (64, 2), (None, 3)))


def table(name: str, count: int, arch: str = "sm_90a", target: str = "cuda") -> DeviceTable:
    return DeviceTable(target, arch, name, count, {0: RULES})


H100, H800, SMALL = table("H100", 132), table("H800", 132), table("H100", 114)
ALL = [SMALL, H100, H800, table("A100", 108, "sm_80")]


@pytest.mark.parametrize(
    ("arch", "name", "count", "expected"),
    [
        ("sm_90a", "H100", 132, H100),
        ("sm_90a", "H800", 132, H800),
        ("sm_90a", "H20", 132, H100),  # the count alone, and the first of two
        ("sm_90a", "H100", 114, SMALL),
        ("sm_90a", "H100", 120, SMALL),
        ("sm_90a", "H100", 128, H100),
        ("sm_90a", "H100", 123, SMALL),  # the lower of two that are equally near
        ("sm_90a", "", 0, SMALL),
        ("sm_90a", "H800", 114, SMALL),  # the count is more than the name
        ("sm_80", "H100", 132, ALL[3]),
        ("sm_90", "H100", 132, None),
    ],
)
def test_the_table_of_the_device_counts_or_else_that_of_the_nearest_count(arch, name, count, expected):
    assert table_for(ALL, "cuda", arch, name, count) == expected
    assert table_for(ALL, "llvm", arch, name, count) is None
    assert table_for([], "cuda", arch, name, count) is None


@pytest.mark.parametrize(
    ("m", "variant", "text"),
    [
        *((0, 1, "m = 0, up to 16"), (16, 1, "m = 16, up to 16"), (17, 2, "m = 17, from 17 to 64")),
        *((64, 2, "m = 64, from 17 to 64"), (65, 3, "m = 65, above 64"), (-5, 1, "m = -5, up to 16")),
        *((2**70, 3, f"m = {2**70}, above 64"), (True, 1, "m = 1, up to 16")),
    ],
)
def test_a_range_goes_to_its_end_and_the_next_one_begins_there(m: int, variant: int, text: str) -> None:
    assert RULES.choose({"m": m, "n": 7}) == variant
    assert RULES.range_text({"m": m}) == text


def test_several_sizes_decide_by_their_product_and_a_table_survives_the_manifest() -> None:
    both = Rules(("m", "n"), ((64, 1), (None, 2)))
    assert [both.choose({"m": 8, "n": n}) for n in (8, 9)] == [1, 2]
    assert both.range_text({"m": 8, "n": 9}) == "m * n = 72, above 64"
    none = Rules((), ((None, 2),))
    assert none.choose({}) == 2 and none.range_text({}) == "any size"
    assert Rules(("m",), ((None, 2),)).range_text({"m": 5}) == "any m"
    entry = json.loads(json.dumps({"tables": [H100.to_json()]}))
    assert tables_of(entry) == (H100,)
    assert tables_of({"variants": []}) == ()
    left = H100.with_code(lambda variant: variant != 2).rules[0]
    assert left == Rules(("m",), ((16, 1), (64, 0), (None, 3)))


# ---- what is compared with a call


def entry(**more: Any) -> dict[str, Any]:
    """Variants for 4, 8 and 16 columns."""
    arguments = [[tensor("x", "float32", ["m", n])] for n in (4, 8, 16)]
    return {"variants": [{"arguments": one, "units": [{"target": "llvm"}]} for one in arguments], **more}


def test_a_call_that_only_a_tuned_variant_fits_is_a_miss() -> None:
    class Array:
        dtype, shape = "float32", (3, 16)

    error = because(ValueError("kernel 'f': something else"), MISALIGNED)
    assert Misses().note("f", entry(declared=2), [Array()], error)
    assert not Misses().note("f", entry(), [Array()], error)
