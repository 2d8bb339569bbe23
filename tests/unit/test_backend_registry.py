"""Which backends there are, which of them a list in the settings means, and what they refuse to be built for."""

from __future__ import annotations

import pytest
from kernelwright import backends, kernel
from kernelwright.backends.plan import KernelPlan, LoweredUnit
from kernelwright.core.errors import KernelwrightError, SettingsError, Where
from kernelwright.define.setting_kinds import backend_names
from kernelwright.define.settings import merge
from kernelwright.ondemand.options import OPTIONS
from support.launcher_build import plan, signature, tensor


def test_every_name_is_a_backend_that_calls_a_target_and_users_know_one_by_another_name() -> None:
    assert backends.names()[0] == "tvm_ffi"
    assert backends.choices() == ("auto", *backends.all_names())
    for name in backends.names():
        assert set(backends.get(name).targets) <= {"llvm", "cuda"} and backends.get(name).targets
    with pytest.raises(SettingsError, match=r"unknown backend 'x'\n.*the backends are tvm_ffi") as caught:
        backends.get("x")
    assert all(name in (caught.value.remedy or "") for name in backends.names())
    assert backend_names(["nvrtc", "tvm_ffi", "cuda_core"]) == ("cuda_core", "tvm_ffi")
    merged = merge([("pyproject.toml", {"backends": "nvrtc,tvm_ffi"})], backends.choices())
    assert merged.backends == ("cuda_core", "tvm_ffi")
    assert OPTIONS["backend"].setting.read("backend", "nvrtc", Where()) == "cuda_core"

    @kernel(backends=["nvrtc"])
    def scaled() -> None: ...

    assert scaled.options.backends == ("cuda_core",)


@pytest.mark.parametrize(
    ("listed", "targets", "chosen"),
    [
        ("cython tvm_ffi", "llvm cuda", ("cython", "tvm_ffi")),
        ("cython cython", "llvm", ("cython",)),
        ("cuda_core tvm_ffi", "llvm", ("tvm_ffi",)),
        ("cuda_core", "llvm cuda", ("cuda_core",)),
        ("auto", "llvm cuda", ("tvm_ffi",)),
        ("cython auto", "cuda", ("cython", "tvm_ffi")),
        ("cuda_core", "llvm", ()),
        ("auto", "", ()),
    ],
)
def test_a_list_means_those_that_can_call_one_of_the_targets(listed, targets, chosen):
    assert backends.resolve(listed.split(), targets.split()) == chosen


def plan_of(name: str, argument: str, dtype: str) -> KernelPlan:
    return plan(name, LoweredUnit.from_json(signature(name, [tensor(argument, dtype, ["n"])]), "host.o"))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("jax", "float32x4"), *(("torch", d) for d in ("float4_e2m1fn", "float32x4", "int4", "float6_e3m2fn"))],
)
def test_a_dtype_that_a_framework_does_not_have_is_refused(backend: str, dtype: str) -> None:
    with pytest.raises(KernelwrightError, match=f"argument 'x' is a tensor of dtype {dtype}") as error:
        backends.get(backend).check(plan_of("k", "x", dtype))
    assert f"take {backend} out of the kernel's backends" in str(error.value.remedy)


def test_a_name_that_a_backend_cannot_give_is_refused() -> None:
    with pytest.raises(KernelwrightError, match="no operator of this name"):
        backends.get("torch").emit(plan_of("name", "x", "float32"))
    with pytest.raises(KernelwrightError, match=r"k \[wrap\]: argument 'x y' is not a C identifier"):
        backends.get("cython").emit(plan_of("k", "x y", "float32"))
