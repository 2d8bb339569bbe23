"""Reading ptxas's report, and the scripts that repeat a step."""

from __future__ import annotations

from pathlib import Path

from kernelwright.errors import Where
from kernelwright.nvcc import NvccJob, resource_usage, script
from kernelwright.toolchain import Nvcc

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'b_kernel' for 'sm_80'
ptxas info    : Function properties for b_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 372 bytes cmem[0]
ptxas info    : Compiling entry function 'a_kernel' for 'sm_80'
ptxas info    : Function properties for a_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 6 registers, used 0 barriers, 360 bytes cmem[0]
"""


def test_resource_usage_of_each_kernel_in_order_of_names():
    usage = resource_usage(REPORT)
    assert list(usage) == ["a_kernel", "b_kernel"]
    assert usage["b_kernel"] == {
        "registers": 255,
        "stack_bytes": 16,
        "spill_store_bytes": 8,
        "spill_load_bytes": 12,
        "shared_bytes": 4096,
        "constant_bytes": 372,
    }
    assert usage["a_kernel"]["shared_bytes"] == 0


def test_script_names_no_path_of_the_machine():
    job = NvccJob("sm_90a", ("--use_fast_math",), Path("/somewhere/build"), Where())
    text = script(job, Nvcc("/opt/secret/nvcc", "13.0.88", "id", ()))
    assert "/opt" not in text and "/somewhere" not in text
    assert '"$NVCC" -ccbin "$CC"' in text
    assert "-arch=sm_90a --use_fast_math -o sm_90a.cubin device.cu" in text


def test_virtual_arch_makes_ptx():
    job = NvccJob("compute_80", (), Path(), Where())
    assert job.output == "compute_80.ptx"
    assert "-ptx" in job.arguments("nvcc", "cc", "o")
