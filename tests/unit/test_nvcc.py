"""Reading ptxas's report, the scripts that repeat a step, and real runs of nvcc with flags that include files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolError, Where
from kernelwright.processes.tools import ToolCall, ToolResult
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.toolchain.nvcc_run import CompiledCode, NvccJob, NvccRun, compile_device_code, resource_usage, script
from support.real_nvcc import Bench, real_nvcc

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


def test_resource_usage_of_each_kernel_and_a_script_that_names_no_path() -> None:
    usage = resource_usage(REPORT)
    assert list(usage) == ["a_kernel", "b_kernel"]
    assert usage["b_kernel"] == {
        **{"registers": 255, "stack_bytes": 16, "spill_store_bytes": 8, "spill_load_bytes": 12, "shared_bytes": 4096},
        "constant_bytes": 372,
    }
    assert usage["a_kernel"]["shared_bytes"] == 0
    job = NvccJob("sm_90a", ("--use_fast_math",), Path("/somewhere/build"), Where())
    text = script(job, Nvcc("/opt/secret/nvcc", "13.0.88", "id", ()))
    assert "/opt" not in text and "/somewhere" not in text
    assert '"$NVCC" -ccbin "$CC"' in text
    assert "-arch=sm_90a --use_fast_math -o sm_90a.cubin device.cu" in text


@dataclass
class FakeTools:
    """Notes what is run, and behaves like an nvcc that writes nothing but a report and a list of headers."""

    project_root: Path
    listing: str | None = None
    commands: list[list[str]] = field(default_factory=list)

    def run(self, call: ToolCall) -> ToolResult:
        command = list(call.command)
        self.commands.append(command)
        if self.listing is not None:
            Path(command[command.index("-MF") + 1]).write_text(self.listing)
        return ToolResult(REPORT, 0.3, 0.2, 100_000)


NVCC, CC = Nvcc("/opt/cuda/bin/nvcc", "13.0.88", "id", ()), HostCompiler("/usr/bin/cc", "cc 12", "id")


def compile_with(tools: FakeTools, folder: Path, *flags: str) -> CompiledCode:
    job = NvccJob("sm_80", flags, folder, Where("gemm", "m-64", "nvcc"))
    return compile_device_code(NvccRun(job, NVCC, CC, folder, tools, "gemm/m-64 sm_80"))


def test_headers_are_asked_for_only_when_flags_can_include_and_never_in_the_script(tmp_path):
    (tmp_path / "mine.h").touch()
    tools = FakeTools(tmp_path, f"device : device.cu \\\n  {tmp_path}/mine.h \\\n  /usr/include/stdio.h")
    (tmp_path / "device.cu").touch()
    assert compile_with(tools, tmp_path, "-include", "mine.h").headers == ("mine.h",)
    assert "-MD" in tools.commands[0]
    text = (tmp_path / "compile_sm_80.sh").read_text()
    assert "-M" not in text and str(tmp_path) not in text
    assert '"$NVCC"' in text and text.endswith(" -arch=sm_80 -include mine.h -o sm_80.cubin device.cu\n")


SOURCE = """\
#include <cuda_fp16.h>
extern "C" __global__ void twice(__half *x) { x[threadIdx.x] = x[threadIdx.x] * __float2half(2.0f); }
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with real_nvcc(Bench, tmp_path, SOURCE) as bench:
        yield bench


@pytest.mark.parametrize("arch", ["sm_80", "compute_80"])
def test_real_nvcc_reports_the_headers_of_the_project_and_makes_the_same_code(bench, arch):
    plain, code = bench.plain(arch)
    assert plain.headers == () and 20 << 10 < plain.result.peak_kib < 1 << 20
    assert plain.result.cpu_seconds > 0 and plain.result.seconds > 0
    (bench.project / "inc").mkdir()
    (bench.project / "inc" / "top.h").write_text(
        '#if __CUDA_ARCH__ >= 800\n#include "on device.h"\n#endif\n#if 0\n#include "never.h"\n#endif\n'
    )
    (bench.project / "inc" / "on device.h").write_text("#define NOTHING\n")
    (bench.project / "inc" / "never.h").touch()
    listed, same = bench.plain(arch, "-include", "top.h", "-I", str(bench.project / "inc"))
    assert listed.headers == ("inc/on device.h", "inc/top.h")
    output = f"{arch}.cubin" if arch == "sm_80" else f"{arch}.ptx"
    assert same[output] == code[output], "to list headers changes nothing"


def test_odd_names_of_headers_are_read_well(bench):
    names = ["a#b.h", "a$b.h", "a$$b.h", "a:b.h", "a  b.h", "a%'(b).h", "é.h"]
    for name in names:
        (bench.folder / name).write_text("#define NOTHING\n")
    (bench.folder / "all.h").write_text("".join(f'#include "{name}"\n' for name in names))
    found = bench.plain("sm_80", "-include", "all.h")[0].headers
    assert set(found) == {f"build/kernel/{name}" for name in (*names, "all.h")}


def test_options_files_count_with_what_they_include_and_name(bench, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.h").write_text("#define NOTHING\n")
    (bench.folder / "near.h").write_text("#define NOTHING\n")
    (bench.folder / "first.txt").write_text(f"-DA=1 -optf second.txt -I {outside}")
    (bench.folder / "second.txt").write_text("-include near.h -include=far.h")
    headers = bench.plain("sm_80", "--options-file=first.txt")[0].headers
    near = ("build/kernel/first.txt", "build/kernel/near.h", "build/kernel/second.txt")
    assert headers == (str(outside / "far.h"), *near)


def test_flags_for_the_host_compiler_count_and_errors_of_headers_are_nvccs_own(bench):
    (bench.folder / "mine.h").write_text("#define NOTHING\n")
    assert bench.plain("sm_80", "-Xcompiler", "-include,mine.h")[0].headers == ("build/kernel/mine.h",)
    (bench.folder / "args").write_text("-include mine.h")
    assert bench.plain("sm_80", "-Xcompiler=@args")[0].headers == ("build/kernel/args", "build/kernel/mine.h")
    with pytest.raises(ToolError, match=r"missing\.h") as caught:
        bench.plain("sm_80", "-include", "missing.h")
    assert caught.value.where == Where("k", "default", "nvcc")
    (bench.folder.parents[1] / "kernels").mkdir()
    (bench.folder.parents[1] / "kernels/broken.h").write_text("\nint broken = ;\n")
    with pytest.raises(ToolError, match=r"\n    kernels/broken\.h\(2\): error") as caught:
        bench.plain("sm_80", "-I", "../../kernels", "-include", "broken.h")
    assert "-I ../../kernels" in str(caught.value), "the command is run in the folder of the source"
