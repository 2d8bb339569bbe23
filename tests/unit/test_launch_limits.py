"""A launch that no device can begin is an error of the build, which says the number and the limit."""

from __future__ import annotations

from typing import Any

import pytest
from kernelwright.core.arch import shared_memory
from kernelwright.core.entry_name import ENTRY
from kernelwright.core.errors import LoweringError
from kernelwright.define.unit import Unit
from kernelwright.frontends.launch_limits import require_within_limits

Launch = dict[str, Any]


def require(arch: str = "sm_80", kernel: str = "sum_kernel", **changed: Any) -> None:
    unit = Unit("sum", "default", "kw_sum__default__cuda", {}, (), "cuda", arch, "kernels/sum.py:7")
    launch: Launch = {"kernel": kernel, "grid": ["n", 1, 1], "block": [128, 1, 1], "shared": 0}
    require_within_limits([launch, launch | changed], unit)


def test_a_launch_at_the_limits_and_one_that_only_a_call_tells_are_well() -> None:
    for block in ([1024, 1, 1], [16, 1, 64], ["n", "m", 64]):
        require(block=block)
    require(block=[1, 1024, 1], grid=[2**31 - 1, 65535, 65535])
    require(grid=[0, 1, 1])
    for arch, shared in (("80", 163 << 10), ("80", "n * 4"), ("90", 227 << 10), ("100f", 227 << 10), ("990", 10**6)):
        require(f"sm_{arch}", shared=shared)
    require("sm_90a", cluster=[4, 2, 2])
    names = ["sm_75", "sm_86", "sm_90", "sm_90a", "sm_100f", "sm_120", "sm_990"]
    known = [shared_memory(arch) for arch in names]
    assert known == [kib and kib * 1024 for kib in (64, 99, 227, 227, 227, 99, None)]


IN_A_BLOCK = "threads in a block"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"block": [1025, 1, 1]}, f"1025 {IN_A_BLOCK} in x, and 1024 are the most"),
        ({"block": [1, 1025, 1]}, f"1025 {IN_A_BLOCK} in y, and 1024 are the most"),
        ({"block": [1, 1, 65]}, f"65 {IN_A_BLOCK} in z, and 64 are the most"),
        ({"block": [64, 32, 1]}, f"2048 {IN_A_BLOCK}, and 1024 are the most"),
        ({"block": [64, "n", 32]}, f"2048 {IN_A_BLOCK}, and 1024 are the most"),
        ({"block": [0, 1, 1]}, f"0 {IN_A_BLOCK} in x, and 1 is the least"),
        ({"grid": [2**31, 1, 1]}, "2147483648 blocks in x, and 2147483647 are the most"),
        ({"grid": ["n", 65536, 1]}, "65536 blocks in y, and 65535 are the most"),
        ({"grid": ["n", 1, 65536]}, "65536 blocks in z, and 65535 are the most"),
        ({"grid": [-1, 1, 1]}, "-1 blocks in x, and 0 is the least"),
        ({"cluster": [17, 1, 1]}, "17 blocks in a cluster, and 16 are the most"),
        ({"shared": 163 * 1024 + 1}, "166913 bytes of shared memory in a block, and sm_80 has 166912"),
        ({"shared": -4}, "-4 bytes of shared memory in a block"),
    ],
)
def test_a_launch_beyond_a_limit_names_the_kernel_the_number_and_the_limit(changed: Launch, words: str) -> None:
    place = "kernels/sum.py:7 sum/default [lower]: the launch"
    # The function of a source is not told by the name that it has in the launcher.
    for kernel, launch in (("sum_kernel", f"{place} of sum_kernel"), (ENTRY, place)):
        with pytest.raises(LoweringError) as caught:
            require(kernel=kernel, **changed)
        assert str(caught.value).startswith(f"{launch} has {words}\n") and caught.value.remedy
