"""Tuning tables in Python: which table counts on a device, and which variant it has for which sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kernelwright.runtime.arguments import Described, Signatures
from kernelwright.runtime.interface import Choice
from kernelwright.runtime.misses import Misses
from kernelwright.runtime.refusal import MISALIGNED, because
from kernelwright.runtime.tables import DeviceTable, Rules, Tuned, table_for, tables_of
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
def test_the_table_of_the_device_counts_or_else_that_of_the_nearest_count(
    arch: str, name: str, count: int, expected: DeviceTable | None
) -> None:
    assert table_for(ALL, "cuda", arch, name, count) == expected
    assert table_for(ALL, "llvm", arch, name, count) is None
    assert table_for([], "cuda", arch, name, count) is None


@pytest.mark.parametrize(
    ("m", "variant", "text"),
    [
        (0, 1, "m = 0, up to 16"),
        (16, 1, "m = 16, up to 16"),
        (17, 2, "m = 17, from 17 to 64"),
        (64, 2, "m = 64, from 17 to 64"),
        (65, 3, "m = 65, above 64"),
        (-5, 1, "m = -5, up to 16"),
        (2**70, 3, f"m = {2**70}, above 64"),
        (True, 1, "m = 1, up to 16"),
    ],
)
def test_a_range_goes_to_its_end_and_the_next_one_begins_there(m: int, variant: int, text: str) -> None:
    assert RULES.choose({"m": m, "n": 7}) == variant
    assert RULES.range_text({"m": m}) == text


def test_several_sizes_decide_by_their_product_and_none_has_one_range() -> None:
    both = Rules(("m", "n"), ((64, 1), (None, 2)))
    assert [both.choose({"m": 8, "n": n}) for n in (8, 9)] == [1, 2]
    assert both.range_text({"m": 8, "n": 9}) == "m * n = 72, above 64"
    none = Rules((), ((None, 2),))
    assert none.choose({}) == 2 and none.range_text({}) == "any size"
    assert Rules(("m",), ((None, 2),)).range_text({"m": 5}) == "any m"


def test_a_table_survives_the_manifest() -> None:
    entry = json.loads(json.dumps({"tables": [H100.to_json()]}))
    assert tables_of(entry) == (H100,)
    assert tables_of({"variants": []}) == ()


def test_a_variant_without_code_for_the_arch_is_left_out_of_a_table() -> None:
    left = H100.with_code(lambda variant: variant != 2).rules[0]
    assert left == Rules(("m",), ((16, 1), (64, 0), (None, 3)))


def test_the_reason_names_the_table_the_device_and_the_range() -> None:
    slugs = ["d", "a", "b", "c"]
    here = Tuned(0, "sm_90a", "H100", 132, H100)
    known = "the tuning table of 'H100' (count 132), which is this device, has b for m = 20, from 17 to 64"
    assert here.reason({"m": 20}, 2, slugs) == known
    declared = "it is the first declared variant that fits; "
    assert here.reason({"m": 20}, 0, slugs) == f"{declared}{known}, which these arguments do not fit"
    far = Tuned(0, "sm_90a", "H20", 78, SMALL).reason({"m": 99}, 3, slugs)
    nearest = "the nearest to this device, 'H20' (count 78)"
    assert far == f"the tuning table of 'H100' (count 114), {nearest}, has c for m = 99, above 64"
    assert Tuned(0, "sm_90", "H20", 78, None).reason({}, 0, slugs) == f"{declared}no tuning table is for sm_90"
    other = Tuned(1, "sm_90a", "H100", 132, H100)
    assert other.rules() is None
    assert other.reason({}, 1, slugs).endswith("which is this device, has no rules for it")


# ---- what is compared with a call


def entry(**more: Any) -> dict[str, Any]:
    """Two declared variants, for 4 and 8 columns, and one for 16 that only runs where a table says so."""
    variants = [
        {
            "slug": f"n-{n}",
            "arguments": [tensor("x", "float32", ["m", n])],
            "symbols": {},
            "units": [{"target": "llvm"}],
        }
        for n in (4, 8, 16)
    ]
    return {"variants": variants, **more}


def test_only_declared_variants_are_compared_unless_one_is_asked_for() -> None:
    kernel = Signatures("f", entry(declared=2))
    assert [kernel.choose([Described("float32", (3, n))]).index for n in (4, 8)] == [0, 1]
    with pytest.raises(ValueError, match="no built variant accepts") as raised:
        kernel.choose([Described("float32", (3, 16))])
    assert "n-8 expects" in str(raised.value) and "n-16" not in str(raised.value)
    assert kernel.choose([Described("float32", (3, 16))], 2).index == 2
    assert Signatures("f", entry()).choose([Described("float32", (3, 16))]).index == 2


def test_a_variant_that_is_declared_for_another_target_is_not_compared() -> None:
    tabled = entry(declared=3)
    for variant in tabled["variants"]:
        variant["units"].append({"target": "cuda"})
    tabled["variants"][1]["tabled"] = ["cuda"]
    kernel, passed = Signatures("f", tabled), [Described("float32", (3, 8))]
    assert kernel.choose(passed, target="llvm").index == kernel.choose(passed).index == 1
    assert kernel.choose(passed, 1, "cuda").index == 1
    with pytest.raises(ValueError, match="no built variant accepts") as raised:
        kernel.choose(passed, target="cuda")
    assert "n-4 expects" in str(raised.value) and "n-8 expects" not in str(raised.value)


def test_a_call_that_only_a_tuned_variant_fits_is_a_miss() -> None:
    class Array:
        dtype, shape = "float32", (3, 16)

    error = because(ValueError("kernel 'f': something else"), MISALIGNED)
    assert Misses().note("f", entry(declared=2), [Array()], error)
    assert not Misses().note("f", entry(), [Array()], error)


def test_choices_are_equal_if_the_variant_its_config_and_the_reason_are() -> None:
    choice = Choice("n-4", {"n": 4}, "it is tuned")
    assert choice == Choice("n-4", {"n": 4}, "it is tuned")
    others = (
        Choice("n-8", {"n": 4}, "it is tuned"),
        Choice("n-4", {"n": 8}, "it is tuned"),
        Choice("n-4", {"n": 4}, ""),
    )
    assert all(choice != other for other in others)
