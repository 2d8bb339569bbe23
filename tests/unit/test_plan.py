"""What is built of a kernel: the settings of the package, narrowed by what its decorator allows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define.kernel_options import KernelOptions
from kernelwright.define.record import KernelRecord
from kernelwright.define.settings import Settings
from kernelwright.stages.selection import require_archs, select

ALLOWS_ALL = KernelRecord(
    "gemm", "", "kernels/gemm.py:7", ({},), ("default",), KernelOptions(outputs=("y",)), None, takes_target=False
)
SETTINGS = Settings(archs=("x86-64-v3", "x86-64", "sm_80", "compute_80"), backends=("tvm_ffi", "cuda_core"))
WHERE = Where("gemm", stage="discover", location="kernels/gemm.py:7")


def allows(**restrictions: Any) -> KernelRecord:
    return ALLOWS_ALL.with_options(**restrictions)


CPU, CUDA, BOTH = ("x86-64-v3", "x86-64"), ("sm_80", "compute_80"), ("tvm_ffi", "cuda_core")


@pytest.mark.parametrize(
    ("restrictions", "archs", "backends", "left_out", "unused"),
    [
        ({}, {"llvm": CPU, "cuda": CUDA}, BOTH, (), ()),
        ({"archs": ("compute_80", "sm_90a", "sm_80")}, {"llvm": CPU, "cuda": CUDA}, BOTH, (), ()),
        ({"archs": ("x86-64",)}, {"llvm": ("x86-64",), "cuda": CUDA}, BOTH, (), ()),
        ({"archs": ("sm_90a",)}, {"llvm": CPU}, ("tvm_ffi",), ("cuda",), ("cuda_core",)),
        ({"targets": ("llvm",)}, {"llvm": CPU}, ("tvm_ffi",), (), ("cuda_core",)),
        ({"targets": ("cuda",), "archs": ("sm_90a",)}, {}, (), ("cuda",), ()),
        ({"backends": ("cuda_core", "tvm_ffi")}, {"llvm": CPU, "cuda": CUDA}, ("cuda_core", "tvm_ffi"), (), ()),
        ({"backends": ("cython", "tvm_ffi")}, {"llvm": CPU, "cuda": CUDA}, ("tvm_ffi",), (), ()),
    ],
)
def test_what_the_package_has_is_narrowed_by_what_the_kernel_allows(restrictions, archs, backends, left_out, unused):
    chosen = select(allows(**restrictions), SETTINGS)
    assert chosen.archs == archs
    assert (chosen.backends, chosen.left_out, chosen.unused) == (backends, left_out, unused)


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
        ({"backends": ("cython",)}, r"none of its backends \['cython'\] is built", "are tvm_ffi, cuda_core"),
        ({"backends": ("cuda_core",)}, r"\['cuda_core'\] can call target 'llvm'", "add one of tvm_ffi, cython"),
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
