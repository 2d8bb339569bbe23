"""Which backends there are, and which of them a list in the settings means for the targets of a kernel."""

from __future__ import annotations

import pytest
from kernelwright import backends
from kernelwright.core.errors import SettingsError


def test_every_name_is_a_backend_that_calls_a_target() -> None:
    assert backends.names()[0] == "tvm_ffi"
    assert backends.choices() == ("auto", *backends.names())
    for name in backends.names():
        assert set(backends.get(name).targets) <= {"llvm", "cuda"} and backends.get(name).targets


def test_an_unknown_name_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(SettingsError, match="unknown backend 'x'") as caught:
        backends.get("x")
    assert all(name in (caught.value.remedy or "") for name in backends.names())


@pytest.mark.parametrize(
    ("listed", "targets", "chosen"),
    [
        (["cython", "tvm_ffi"], ["llvm", "cuda"], ("cython", "tvm_ffi")),
        (["cython", "cython"], ["llvm"], ("cython",)),
        (["nvrtc", "tvm_ffi"], ["llvm"], ("tvm_ffi",)),
        (["nvrtc"], ["llvm", "cuda"], ("nvrtc",)),
        (["auto"], ["llvm", "cuda"], ("tvm_ffi",)),
        (["cython", "auto"], ["cuda"], ("cython", "tvm_ffi")),
        (["nvrtc"], ["llvm"], ()),
        (["auto"], [], ()),
    ],
)
def test_a_list_means_those_that_can_call_one_of_the_targets(
    listed: list[str], targets: list[str], chosen: tuple[str, ...]
) -> None:
    assert backends.resolve(listed, targets) == chosen
