"""What is built of a kernel: the settings of the package, narrowed by what its decorator allows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.arch import lowering_arch
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define.settings import Settings
from kernelwright.discover.discovery import KernelRecord
from kernelwright.discover.selection import require_archs, select

ALLOWS_ALL = KernelRecord(
    "gemm", "", "kernels/gemm.py:7", ({},), ("default",), None, None, None, ("y",), (), None, False, False
)
SETTINGS = Settings(archs=("x86-64-v3", "x86-64", "sm_80", "compute_80"), backends=("tvm_ffi", "nvrtc"))
WHERE = Where("gemm", stage="discover", location="kernels/gemm.py:7")


def allows(**restrictions: Any) -> KernelRecord:
    return replace(ALLOWS_ALL, **restrictions)


def test_without_restrictions_all_of_the_package_is_built() -> None:
    chosen = select(ALLOWS_ALL, SETTINGS)
    assert chosen.record is ALLOWS_ALL
    assert chosen.archs == {"llvm": ("x86-64-v3", "x86-64"), "cuda": ("sm_80", "compute_80")}
    assert (chosen.backends, chosen.left_out, chosen.unused) == (("tvm_ffi", "nvrtc"), (), ())


def test_archs_restrict_only_the_targets_that_they_name_and_keep_the_order_of_the_settings() -> None:
    archs = ("compute_80", "sm_90a", "sm_80")
    chosen = select(allows(archs=archs), SETTINGS)
    assert chosen.archs == {"llvm": ("x86-64-v3", "x86-64"), "cuda": ("sm_80", "compute_80")}
    assert select(allows(archs=("x86-64",)), SETTINGS).archs["llvm"] == ("x86-64",)


def test_a_target_without_an_arch_is_left_out() -> None:
    chosen = select(allows(archs=("sm_90a",)), SETTINGS)
    assert (list(chosen.archs), chosen.left_out) == (["llvm"], ("cuda",))
    assert chosen.backends == ("tvm_ffi",) and chosen.unused == ("nvrtc",)


def test_a_target_that_the_kernel_does_not_have_is_not_left_out() -> None:
    chosen = select(allows(targets=("llvm",)), SETTINGS)
    assert (list(chosen.archs), chosen.left_out) == (["llvm"], ())


def test_nothing_is_built_or_unused_where_no_arch_is_left() -> None:
    chosen = select(allows(targets=("cuda",), archs=("sm_90a",)), SETTINGS)
    assert (chosen.archs, chosen.backends, chosen.left_out, chosen.unused) == ({}, (), ("cuda",), ())


def test_backends_are_in_the_order_of_the_kernel() -> None:
    assert select(allows(backends=("nvrtc", "tvm_ffi")), SETTINGS).backends == ("nvrtc", "tvm_ffi")
    assert select(allows(backends=("cython", "tvm_ffi")), SETTINGS).backends == ("tvm_ffi",)


def test_backends_that_the_package_chooses_by_itself_can_be_named() -> None:
    settings = replace(SETTINGS, backends=("auto",))
    assert select(ALLOWS_ALL, settings).backends == select(allows(backends=("tvm_ffi",)), settings).backends
    assert select(ALLOWS_ALL, settings).unused == ()


@pytest.mark.parametrize(
    ("restrictions", "message", "remedy"),
    [
        ({"targets": ("rocm",)}, "unknown target 'rocm'", "the valid ones are llvm, cuda"),
        ({"backends": ("x",)}, "unknown backend 'x'", "the valid ones are tvm_ffi, "),
        ({"archs": ("sm80",)}, "unknown arch 'sm80'", "use one of x86-64"),
        ({"backends": ("cython",)}, r"none of its backends \['cython'\] is built", "are tvm_ffi, nvrtc"),
        ({"backends": ("nvrtc",)}, r"no backend of \['nvrtc'\] can call target 'llvm'", "add one of tvm_ffi, cython"),
    ],
)
def test_what_cannot_be_built_names_the_definition(restrictions: Any, message: str, remedy: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        select(allows(**restrictions), SETTINGS)
    assert caught.value.where == WHERE
    assert remedy in (caught.value.remedy or "")


def test_an_arch_that_the_compiler_does_not_know_names_the_compiler() -> None:
    compiler: Any = SimpleNamespace(name="nvcc", version="13.0", archs=("sm_80", "compute_80"))
    require_archs(ALLOWS_ALL, compiler)
    require_archs(allows(archs=("x86-64", "sm_80")), compiler)
    with pytest.raises(DefinitionError, match=r"nvcc 13\.0 does not know the arch 'sm_999'") as caught:
        require_archs(allows(archs=("sm_80", "sm_999")), compiler)
    assert caught.value.where == WHERE
    assert caught.value.remedy == "use some of sm_80, compute_80"


def test_source_is_made_for_the_lowest_arch() -> None:
    assert lowering_arch(("sm_100a", "sm_90a")) == "sm_90a"
    assert lowering_arch(("sm_90", "compute_80")) == "sm_80"
