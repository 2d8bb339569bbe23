"""What the names of archs say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernelwright.core.arch import (
    FAMILIES,
    CudaArch,
    arch_of_device,
    arch_order,
    image_file,
    is_ptx,
    lowering_arch,
    real_arch,
    target_of,
    with_suffixes,
    without_suffix,
)
from kernelwright.core.errors import SettingsError, Where


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *(("sm_80", CudaArch(80)), ("sm_90a", CudaArch(90, "a")), ("sm_103f", CudaArch(103, "f"))),
        *(("compute_80", CudaArch(80, is_ptx=True)), ("compute_90a", CudaArch(90, "a", is_ptx=True))),
    ],
)
def test_the_name_of_a_cuda_arch_says_what_it_is(name: str, parts: CudaArch) -> None:
    assert CudaArch.of(name) == parts and str(parts) == name
    assert is_ptx(name) is parts.is_ptx


@pytest.mark.parametrize(
    "name", ["", "sm80", "sm_8", "sm_1000", "sm_90b", "sm_90aa", "sm_90a\n", "sm_٨٠", "x86-64", "SM_80"]
)
def test_another_name_is_no_cuda_arch(name: str) -> None:
    assert CudaArch.of(name) is None


SUFFIXES = ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (target_of, {"x86-64": "llvm", "sm_90a": "cuda", "compute_80": "cuda", "sm_103f": "cuda"}),
        (image_file, {"sm_90a": "sm_90a.cubin", "compute_80": "compute_80.ptx"}),
        (real_arch, {"compute_80": "sm_80", "compute_90a": "sm_90a", "sm_90a": "sm_90a"}),
        (without_suffix, {"sm_90a": "sm_90", "compute_100f": "compute_100", "sm_80": "sm_80"}),
        (with_suffixes, {("sm_80", "sm_90", "sm_100"): SUFFIXES}),
        (arch_of_device, {75: "sm_75", 89: "sm_89", 90: "sm_90a", 120: "sm_120a"}),
    ],
)
def test_what_follows_from_an_arch(function: Callable[[Any], str], expected: dict[Any, str]) -> None:
    assert {given: function(given) for given in expected} == expected


@pytest.mark.parametrize(
    "ordered",
    [
        ["sm_80", "sm_90", "sm_90a", "sm_100"],
        ["x86-64", "x86-64-v2", "x86-64-v4"],
        ["sm_90", "compute_90a", "sm_90f"],
        *(list(family.archs) for family in FAMILIES.values()),
    ],
)
def test_archs_are_ordered_by_number_and_suffixes_follow_the_plain_one(ordered: list[str]) -> None:
    assert sorted(set(ordered), key=arch_order) == ordered


def test_an_unknown_arch_names_the_place_that_it_is_in() -> None:
    for where in (None, Where("gemm")):
        with pytest.raises(SettingsError, match="unknown arch 'sm80'") as caught:
            target_of("sm80", where)
        assert caught.value.where == (where or Where(stage="settings"))


@pytest.mark.parametrize(
    ("archs", "expected"),
    [
        *((("sm_90a", "sm_80"), "sm_80"), (("sm_100", "sm_90"), "sm_90"), (("sm_90a", "sm_90"), "sm_90")),
        *((("sm_90a", "compute_80"), "sm_80"), (("compute_75", "sm_80"), "sm_75"), (("sm_100a", "sm_90a"), "sm_90a")),
    ],
)
def test_cuda_source_is_made_for_the_lowest_arch_however_they_are_listed(archs: tuple[str, ...], expected: str) -> None:
    assert lowering_arch(archs) == lowering_arch(archs[::-1]) == expected
