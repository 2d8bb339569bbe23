"""What the names of archs say."""

from __future__ import annotations

import pytest
from kernelwright.core.arch import (
    CPU_LEVELS,
    CudaArch,
    arch_of_device,
    arch_order,
    image_file,
    is_ptx,
    real_arch,
    target_of,
    with_suffixes,
    without_suffix,
)
from kernelwright.core.errors import SettingsError, Where
from kernelwright.runtime.arch import suitable


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("sm_80", CudaArch(80)),
        ("sm_90a", CudaArch(90, "a")),
        ("sm_103f", CudaArch(103, "f")),
        ("compute_80", CudaArch(80, is_ptx=True)),
        ("compute_90a", CudaArch(90, "a", is_ptx=True)),
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


def test_target_of_arch():
    assert [target_of(a) for a in ("x86-64", "sm_90a", "compute_80", "sm_103f")] == ["llvm", "cuda", "cuda", "cuda"]


def test_archs_are_ordered_by_number():
    assert sorted(["sm_100", "sm_90a", "sm_80", "sm_90"], key=arch_order) == ["sm_80", "sm_90", "sm_90a", "sm_100"]


def test_cpu_levels_are_ordered_and_suffixes_follow_the_plain_arch():
    assert sorted(["x86-64-v4", "x86-64", "x86-64-v2"], key=arch_order) == ["x86-64", "x86-64-v2", "x86-64-v4"]
    assert sorted(["sm_90f", "compute_90a", "sm_90"], key=arch_order) == ["sm_90", "compute_90a", "sm_90f"]


def test_an_unknown_arch_names_the_place_that_it_is_in():
    for where in (None, Where("gemm")):
        with pytest.raises(SettingsError, match="unknown arch 'sm80'") as caught:
            target_of("sm80", where)
        assert caught.value.where == (where or Where(stage="settings"))


def test_archs_have_their_suffixes():
    assert with_suffixes(["sm_80", "sm_90", "sm_100"]) == (
        "sm_80",
        "sm_90",
        "sm_90a",
        "sm_100",
        "sm_100a",
        "sm_100f",
    )


def test_device_code_is_in_a_file_that_says_its_arch_and_its_kind() -> None:
    assert [image_file(arch) for arch in ("sm_90a", "compute_80")] == ["sm_90a.cubin", "compute_80.ptx"]


def test_ptx_is_generated_for_the_real_arch_of_its_number() -> None:
    assert [real_arch(arch) for arch in ("compute_80", "compute_90a", "sm_90a")] == ["sm_80", "sm_90a", "sm_90a"]


def test_an_arch_without_its_suffix_is_the_plain_one() -> None:
    assert [without_suffix(arch) for arch in ("sm_90a", "compute_100f", "sm_80")] == ["sm_90", "compute_100", "sm_80"]


def test_a_device_runs_the_most_specific_code_that_there_is_for_it() -> None:
    assert [arch_of_device(capability) for capability in (75, 89, 90, 120)] == ["sm_75", "sm_89", "sm_90a", "sm_120a"]


def test_the_levels_of_the_cpu_are_ranked_as_they_are_listed() -> None:
    assert list(CPU_LEVELS.values()) == [1, 2, 3, 4] and list(CPU_LEVELS) == sorted(CPU_LEVELS)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (70, []),
        (80, ["sm_80", "compute_80"]),
        (86, ["sm_80", "compute_80"]),
        (90, ["sm_90a", "sm_90", "compute_90a", "compute_80"]),
        (100, ["sm_100f", "compute_80"]),
        (103, ["sm_100f", "compute_80"]),
        (120, ["compute_80"]),
    ],
)
def test_images_are_ranked_by_the_rules_of_the_launcher(capability: int, expected: list[str]) -> None:
    archs = ["compute_80", "sm_80", "sm_90", "compute_90a", "sm_100f", "sm_90a", "sm_x"]
    assert suitable(archs, capability) == expected
