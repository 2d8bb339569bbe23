"""Flags of code that a device linker would have to link: each is refused by the same words."""

from __future__ import annotations

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.stages.context import require_no_device_linker

REFUSED = ("-rdc=true", "-rdc true", "--relocatable-device-code=true", "-dc", "--device-c", "-dlink", "--device-link")


@pytest.mark.parametrize("flag", [*REFUSED, "-dlto", "--dlink-time-opt"])
def test_the_error_names_kernel_stage_flag_and_remedy(flag: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        require_no_device_linker(["-O3", *flag.split(), "-DX"], Where("sum", stage="nvcc", location="kernels/sum.py:7"))
    assert str(caught.value) == (
        f"kernels/sum.py:7 sum [nvcc]: its flags have {flag}, and there is no device linker\n"
        "  remedy: leave it out, and include what a source calls on the device instead of linking it"
    )


@pytest.mark.parametrize("flag", ["-rdc=false", "-dcx", "-DX=-dc", "--device-debug", "-dopt=on"])
def test_other_flags_pass(flag: str) -> None:
    require_no_device_linker([flag], Where())
