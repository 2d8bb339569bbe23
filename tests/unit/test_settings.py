"""Settings: layers, conversions, and messages that list what is valid."""

from __future__ import annotations

import pytest
from kernelwright.errors import SettingsError
from kernelwright.settings import arch_order, merge, read_pyproject, target_of


def settings(*layers):
    return merge([(f"layer {n}", layer) for n, layer in enumerate(layers)], ["tvm_ffi"])


def test_later_layers_win():
    assert settings({"package": "a", "targets": ["llvm"]}, {"package": "b"}).package == "b"


def test_archs_replace_only_those_of_the_targets_they_name():
    assert settings({"archs": ["x86-64-v3", "sm_80", "compute_80"]}, {"archs": "sm_90a"}).archs == (
        "x86-64-v3",
        "sm_90a",
    )


@pytest.mark.parametrize("text", ["llvm,cuda", "llvm cuda", " llvm,  cuda "])
def test_lists_may_be_strings(text):
    assert settings({"targets": text}).targets == ("llvm", "cuda")


def test_duplicates_are_dropped():
    assert settings({"targets": "cuda", "archs": "sm_90,sm_80,sm_90"}).archs == ("sm_90", "sm_80")
    assert settings({"targets": ["cuda", "cuda"]}).targets == ("cuda",)


def test_flags_are_split_at_blanks_only_and_keep_order_and_repetition():
    assert settings({"nvcc_flags": "-Xptxas -O3,-v -Xptxas"}).nvcc_flags == ("-Xptxas", "-O3,-v", "-Xptxas")


@pytest.mark.parametrize(
    ("given", "limit"), [(0, 0), ("0", 0), (1, 1), ("64", 64), (10**18 - 1, 10**18 - 1), ("", None), (None, None)]
)
def test_a_limit_of_zero_is_a_limit_and_an_empty_text_is_none(given, limit):
    assert settings({"max_registers": 128, "max_spills": 8}, {"max_spills": given}).max_spills == limit
    assert settings({"max_registers": given}).max_registers == limit


@pytest.mark.parametrize("given", [-1, 1.0, True, "1.5", "-1", "\u0665", 10**18, "9" * 19, [1]])
def test_what_is_no_limit_is_named(given):
    with pytest.raises(SettingsError, match=r"max_spills is .* expected a number from 0 up"):
        settings({"max_spills": given})


def test_a_setting_that_a_later_place_leaves_out_keeps_its_value_and_an_empty_text_is_a_value():
    assert settings({"cache_size": "1M", "glibc": "2.31"}, {"package": "a"}).cache_size == "1M"
    assert settings({"glibc": "2.31"}, {"glibc": ""}).glibc == ""
    assert settings({"cache_dir": "shared"}, {"cache_dir": ""}).cache_dir == ""


def test_the_place_of_a_bad_value_is_named_and_not_another_one():
    with pytest.raises(SettingsError) as caught:
        settings({"targets": ["llvm"]}, {"archs": ["sm80"]}, {"package": "a"})
    assert caught.value.where.location == "layer 1"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"targets": ["rocm"]}, "unknown target 'rocm'"),
        ({"targets": 3}, "expected a list"),
        ({"targets": ""}, "targets is empty"),
        ({"archs": ["sm80"]}, "unknown arch 'sm80'"),
        ({"backends": ["x"]}, "unknown backend 'x'"),
        ({"worker_timeout": 0}, "above 0"),
        ({"worker_timeout": "nan"}, "above 0"),
        ({"worker_timeout": True}, "above 0"),
        ({"package": "no-hyphens"}, "cannot import"),
        ({"nvcc": 1}, "expected a string"),
        ({"archz": []}, "no setting 'archz'"),
        ({"targets": ["cuda"], "archs": ["x86-64-v3"]}, "has no arch"),
        ({"compress": "zip"}, "unknown compress 'zip'"),
        ({"compress": None}, "compress is None, expected one of none, speed, balance, size"),
        ({"split": "arches"}, "unknown split 'arches'"),
        ({"split": ["arch"]}, r"split is \['arch'\], expected one of none, arch"),
        ({"split": "arch", "targets": "llvm"}, "split = 'arch' without the target cuda"),
    ],
)
def test_bad_values(layer, message):
    with pytest.raises(SettingsError, match=message) as caught:
        settings(layer)
    assert caught.value.remedy or caught.value.where.location


def test_providers_are_the_cuda_archs_of_a_split_package():
    archs = {"archs": ["x86-64-v3", "compute_80", "sm_90a"]}
    assert settings(archs).providers == ()
    assert settings(archs, {"split": "arch"}).providers == ("compute_80", "sm_90a")


def test_target_of_arch():
    assert [target_of(a) for a in ("x86-64", "sm_90a", "compute_80", "sm_103f")] == ["llvm", "cuda", "cuda", "cuda"]


def test_archs_are_ordered_by_number():
    assert sorted(["sm_100", "sm_90a", "sm_80", "sm_90"], key=arch_order) == ["sm_80", "sm_90", "sm_90a", "sm_100"]


def test_missing_pyproject_is_empty(tmp_path):
    assert read_pyproject(tmp_path / "pyproject.toml") == {}


@pytest.mark.parametrize(
    "content", [b"[tool", b"\xff\xfe", b"[tool]\nkernelwright = 3\n", b"[tool.kernelwright]\nx = 1\n"]
)
def test_bad_pyproject_is_named(tmp_path, content):
    path = tmp_path / "pyproject.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"pyproject\.toml"):
        read_pyproject(path)
