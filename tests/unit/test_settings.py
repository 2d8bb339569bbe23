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
