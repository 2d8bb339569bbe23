"""nvcc's programs, run without it: what its dry run says, the same files both ways, and what is done otherwise."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from kernelwright.core.arch import is_ptx, virtual_arch
from kernelwright.core.errors import KernelwrightError, ToolError, Where
from kernelwright.toolchain import nvcc_probe, trimmed_source
from kernelwright.toolchain.kept_headers import KeptHeaders
from kernelwright.toolchain.nvcc_probe import probe_programs
from kernelwright.toolchain.nvcc_run import CompiledCode, NvccRun
from kernelwright.toolchain.nvcc_steps import read_steps
from kernelwright.toolchain.nvcc_steps_run import KnownSteps, can_part, compile_by_steps
from support.real_nvcc import Bench, real_nvcc
from support.scripts import script

PTX = """\
#$ _SPACE_=
#$ CICC_PATH=/cuda/bin/../nvvm/bin
#$ PATH=/cuda/bin:/usr/bin
#$ "/usr/bin"/cc -std=c++17 -E -x c++ -include "cuda_runtime.h" "device.cu" \
-o "/t m/tmpxft_00a1_00000000-7_device.cpp1.ii"
#$ "$CICC_PATH/cicc" --orig_src_path_name "/build/a/device.cu" -arch compute_80 \
--module_id_file_name "/t m/tmpxft_00a1_00000000-4_device.module_id"  \
"/t m/tmpxft_00a1_00000000-7_device.cpp1.ii" -o "/t m/compute_80.ptx"
"""
CUBIN = (
    PTX.replace("00a1", "00b2").replace('"/t m/compute_80.ptx"', '"/t m/tmpxft_00b2_00000000-6_device.ptx"')
    + '#$ ptxas -arch=sm_80 -m64 -v  "/t m/tmpxft_00b2_00000000-6_device.ptx"  -o "/t m/sm_80.cubin"\n'
)


def test_a_dry_run_says_what_is_run_for_any_source_and_names_of_temporary_files_decide_nothing() -> None:
    steps = read_steps(PTX, "ptx", "/t m").moved("/build/b", "/other")
    shell, option, script = steps.front_end()
    assert (shell, option) == ("/bin/sh", "-c")
    assert script.startswith("export PATH=/cuda/bin:/usr/bin; export CICC_PATH=/cuda/bin/../nvvm/bin; ")
    assert '--orig_src_path_name "/build/b/device.cu"' in script and "/t m" not in script and "/build/a" not in script
    assert script.endswith('-o "/other/compute_80.ptx"') and script.count(" && ") == 1
    assert " -E -MD -x c++" in steps.reading("-MD")[2]
    script = read_steps(CUBIN, "cubin", "/t m").assembling("compute_80.ptx")[2]
    assert script.endswith('ptxas -arch=sm_80 -m64 -v  "compute_80.ptx"  -o "/t m/sm_80.cubin"')
    ptx, cubin = read_steps(PTX, "ptx", "/t m"), read_steps(CUBIN, "cubin", "/t m")
    assert ptx.decisive == cubin.decisive
    stubs = CUBIN.replace("--module_id", '--stub_file_name "/t m/x.stub.c" --module_id')
    assert read_steps(stubs, "cubin", "/t m").decisive == ptx.decisive
    other = CUBIN.replace("-std=c++17", "-std=c++20")
    assert read_steps(other, "cubin", "/t m").decisive != ptx.decisive


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "ptx", "it would run nothing"),
        (PTX, "cubin", "it would run cc, cicc"),
        (CUBIN.replace("#$ ptxas", '#$ cudafe++ -o "x"\n#$ ptxas'), "cubin", r"cc, cicc, cudafe\+\+, ptxas"),
        (PTX.replace(" -E ", " "), "ptx", "it would run cc, cicc"),
        (PTX.replace("#$", "$"), "ptx", "it would run nothing"),
        (PTX.replace("orig_src_path_name", "path"), "ptx", "it would run cc, cicc"),
        (PTX.replace('-o "/t m/compute_80.ptx"', ""), "ptx", "cicc would make no file that has a name"),
    ],
)
def test_a_dry_run_of_another_form_is_refused(text, kind, message):
    with pytest.raises(ValueError, match=message):
        read_steps(text, kind, "/t m")


@pytest.mark.parametrize(
    ("flags", "parted"),
    [
        ((), True),
        (("-G", "-lineinfo", "--use_fast_math", "-DA=1", "-I", "/x", "-Xptxas", "-O1,-v", "-maxrregcount=32"), True),
        (("-include", "a.h", "--ptxas-options=-O2", "-std=c++20", "-O2"), True),
        (("-dlto",), False),
        (("-arch=sm_80",), False),
        (("-D", "A", "-o", "x"), False),
        (("--options-file", "x"), False),
        (("-Xptxas", "-O1,@more"), False),
        (("-Xptxas=-optf=more",), False),
        (("--unheard-of",), False),
    ],
)
def test_only_flags_that_are_known_are_left_to_the_steps(flags, parted):
    assert can_part(flags) == parted


SOURCES = {
    "float16": '#include <cuda_fp16.h>\nextern "C" __global__ void k(half *x) { x[0] = hexp(x[1]) * x[2]; }\n',
    "bfloat16": "#include <cuda_bf16.h>\nstatic __device__ int calls;\n"
    'extern "C" __global__ void k(nv_bfloat16 *x) { atomicAdd(&calls, 1); x[0] = __hmul(x[1], x[2]); }\n',
    "tensor cores": "#include <mma.h>\nnamespace w = nvcuda::wmma;\n"
    'extern "C" __global__ void k(half *x) { w::fragment<w::matrix_a, 16, 16, 16, half, w::row_major> a;\n'
    "w::load_matrix_sync(a, x, 16); x[0] = a.x[0]; }\n",
}


@dataclass
class Parting(Bench):
    """A bench that compiles in both ways."""

    known: KnownSteps = field(default_factory=KnownSteps)

    def stepwise(self, arch: str, *flags: str) -> tuple[CompiledCode, dict[str, bytes]]:
        """What is reported and made without nvcc; PTX stays in the folder, where cubins are made from it."""
        run = self.new_run(arch, flags)
        done = self.by_steps(run)
        if is_ptx(arch):
            shutil.copy(run.scratch / run.job.output, self.folder)
        return done, self.outputs(run)

    def by_steps(self, run: NvccRun) -> CompiledCode:
        kept = KeptHeaders(self.project / "build" / "headers", ("these tools",))
        return compile_by_steps(run, self.known, kept, shipped=True)

    @property
    def commands(self) -> list[list[str]]:
        """What is run from now on."""
        ran: list[list[str]] = []
        run = self.runner.run
        self.runner.run = lambda call: ran.append(call.command) or run(call)
        return ran


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Parting]:
    with real_nvcc(Parting, tmp_path, SOURCES["float16"]) as bench:
        yield bench


FLAGS = ("--use_fast_math", "-Xptxas", "-O1", "-maxrregcount=32", "-DA=(1)", "-D", "B=x y")


@pytest.mark.parametrize(
    ("source", "arch", "flags"),
    [("tensor cores", "sm_90a", ()), ("bfloat16", "sm_80", FLAGS)],
)
def test_both_ways_make_the_same_files(bench, source, arch, flags):
    bench.source.write_text(SOURCES[source])
    for each in (virtual_arch(arch), arch):
        done, files = bench.stepwise(each, *flags)
        assert files == bench.plain(each, *flags)[1]
        assert done.notes == () and done.result.cpu_seconds > 0


def test_line_information_names_sources_as_seen_from_the_project(bench):
    bench.source.write_text(SOURCES["bfloat16"])
    _, files = bench.stepwise("compute_80", "-lineinfo")
    named = re.findall(r'\.file\t\d+ "(.*)"', files["compute_80.ptx"].decode())
    assert named[0] == "build/kernel/device.cu" and {name.partition("/")[0] for name in named[1:]} == {"cuda"}
    cubin = bench.stepwise("sm_80", "-lineinfo")[1]["sm_80.cubin"]
    assert b"build/kernel\0" in cubin and b"device.cu\0" in cubin and str(bench.project).encode() not in cubin
    (bench.folder / "build/kernel").mkdir(parents=True)
    (bench.folder / named[0]).touch()  # ptxas would take the times of files that it finds
    assert bench.stepwise("sm_80", "-lineinfo")[1]["sm_80.cubin"] == cubin


def test_line_information_is_the_same_in_folders_of_any_name_and_for_headers_beside_the_project(tmp_path):
    made = []
    for name in ("plain", 'a "q" \u00e9'):
        beside = tmp_path / name / "beside"
        beside.mkdir(parents=True)
        (beside / "f.cuh").write_text("__device__ float f(float v) { return v * v; }\n")
        project = tmp_path / name / "project"
        headers = '#include <cuda_fp16.h>\n#include "../../../beside/f.cuh"\n'  # CUDA's has functions that are inlined
        source = 'extern "C" __global__ void k(float *x) { x[0] = f(__half2float(__float2half(x[1]))); }\n'
        with real_nvcc(Parting, project, headers + source) as bench:
            ptx = bench.stepwise("compute_80", "-lineinfo")[1]["compute_80.ptx"]
            made.append((ptx, bench.stepwise("sm_80", "-lineinfo")[1]["sm_80.cubin"]))
    assert made[0] == made[1]
    named = re.findall(r'\.file\t\d+ "(.*)"', made[0][0].decode())
    assert named == ["build/kernel/device.cu", "cuda/include/cuda_fp16.hpp", "../beside/f.cuh"]


def test_with_debug_information_the_code_is_the_same_and_the_file_as_well_in_another_run(bench):
    bench.stepwise("compute_80", "-G")
    _, files = bench.stepwise("sm_80", "-G")
    assert files["sm_80.cubin"] == bench.stepwise("sm_80", "-G")[1]["sm_80.cubin"]
    _, plain = bench.plain("sm_80", "-G")
    assert files["sm_80.json"] == plain["sm_80.json"], "nvcc itself puts the name of a temporary file into a cubin"


def test_the_dry_run_is_asked_for_once_and_holds_for_other_folders(bench):
    ran = bench.commands
    _, first = bench.stepwise("compute_80", "-lineinfo")
    bench.folder.rename(bench.project / "build/moved")
    bench.folder.mkdir()
    shutil.copy(bench.project / "build/moved/device.cu", bench.folder)
    assert bench.stepwise("compute_80", "-lineinfo")[1] == first
    assert ["--dryrun" in command for command in ran] == [True, *[False] * 4], "it is preprocessed, and made PTX of"


def test_headers_are_read_once_for_each_arch_and_flags(bench):
    ran = bench.commands
    for arch, flags in (("compute_80", ()), ("compute_80", ()), ("compute_90a", ()), ("compute_80", ("-ftz=true",))):
        last = bench.stepwise(arch, *flags)[1]
    assert sum(" -E -dD " in command[-1] for command in ran) == 3
    bench.known = KnownSteps()
    assert bench.stepwise("compute_80", *flags)[1] == bench.plain("compute_80", *flags)[1] == last
    assert sum(" -E -dD " in command[-1] for command in ran) == 3, "a build before has kept them"


def test_headers_that_flags_name_are_reported(bench):
    names = ["a b.h", "a#b.h", "a$b.h", "a:b.h", "a%'(b).h", "é.h", "a\\b.h"]
    for name in names:
        (bench.folder / name).write_text("#define NOTHING\n")
    (bench.folder / "all.h").write_text("".join(f'#include "{name}"\n' for name in names))
    done = bench.stepwise("compute_80", "-include", "all.h")[0]
    assert set(done.headers) == {f"build/kernel/{name}" for name in [*names, "all.h"]} and not done.notes
    bench.stepwise("compute_80", "-include", "all.h")
    assert bench.stepwise("sm_80", "-include", "all.h")[0].headers == (), "the PTX has them"


def test_errors_of_the_source_of_ptxas_and_of_time_are_nvccs_own(bench):
    bench.source.write_text('extern "C" __global__ void k(float *x) {\n  x = nothing;\n}\n')
    with pytest.raises(ToolError, match=r"nvcc ended with exit status \d+") as caught:
        bench.stepwise("compute_80")
    assert 'device.cu(2): error: identifier "nothing" is undefined' in str(caught.value)
    assert caught.value.where == Where("k", "default", "nvcc")
    text = 'extern "C" __global__ void k(float *x) { __shared__ float s[99999]; s[threadIdx.x] = x[0]; x[1] = s[2]; }\n'
    bench.source.write_text(text)
    bench.stepwise("compute_80")
    with pytest.raises(ToolError, match="uses too much shared data") as caught:
        bench.stepwise("sm_80")
    assert "-cubin" in str(caught.value) and str(bench.folder / "device.cu") in str(caught.value)
    bench.runner.timeout_s = 0.01
    with pytest.raises(KernelwrightError, match=r"nvcc took longer than 0\.01 s"):
        bench.stepwise("compute_80")


def test_nvcc_is_run_as_a_whole_if_its_steps_turn_out_not_to_be_known(bench, tmp_path):
    nvcc = bench.nvcc
    for arch, dry_run, reason in (
        ("compute_80", "echo '#$ something else'", "its dry run for compute_80 cannot be read: it would run"),
        ("sm_80", "exit 3", "what it runs for sm_80 ended with exit status 3"),
    ):
        bench.nvcc = nvcc
        expected = bench.plain(arch)[1]
        case = f'[ "$1" = --dryrun ] && {{ {dry_run}; exit; }}'
        other = script(tmp_path / arch / "nvcc", f'{case}\nexec {nvcc.path} "$@"')
        bench.nvcc = replace(nvcc, path=str(other))
        done, files = bench.stepwise(arch)
        assert files == expected
        assert done.notes[0].startswith(f"nvcc is run as a whole: {reason}")


def test_a_path_that_a_shell_would_act_on_is_given_to_none(bench):
    evil = bench.project / "build/kernel $(touch sprung) `touch sprung`; touch sprung"
    bench.folder.rename(evil)
    run = bench.new_run("compute_80")
    run = replace(run, job=replace(run.job, folder=evil))
    assert bench.by_steps(run).notes == () and (run.scratch / run.job.output).is_file()
    assert not [*bench.project.rglob("sprung*")]


def obstacle_of(bench, **changed: str) -> str:
    """Why an nvcc is run as a whole, that of the tests but for some changes."""
    return probe_programs(replace(bench.nvcc, archs=("sm_80",), **changed), bench.compiler).obstacle


def test_the_probe_lets_the_real_nvcc_be_run_step_by_step(bench, tmp_path):
    assert obstacle_of(bench) == ""
    wrapper = script(tmp_path / "nvcc", f'exec {bench.nvcc.path} "$@"')
    assert obstacle_of(bench, path=str(wrapper)) == f"{wrapper} is a script"
    assert obstacle_of(bench, version="13.5.1") == "it is of CUDA 13.5.1, and what it runs is known of 13.0 only"


def test_the_probe_sees_whether_trimming_changes_ptx(bench, monkeypatch):
    trimmed = trimmed_source.trimmed
    monkeypatch.setattr(trimmed_source, "trimmed", lambda *given: trimmed(*given).replace("0.3f", "0.4f"))
    obstacle = "it makes other PTX without declarations that are not used"
    assert obstacle_of(bench) == obstacle


@pytest.mark.parametrize(
    ("answer", "obstacle"),
    [
        ("echo '#$ nothing'", "its dry run cannot be read: it would run "),
        ('{nvcc} "$@" 2>&1 | sed "s/ -fmad=1/ -fmad=0/"', "what it would run makes another cubin"),
        ('{nvcc} "$@" 2>&1 | sed "/-ptx/!s/ -fmad=1/ --none/"', "what it would run ends with exit status"),
        ('case "$*" in *-ptx*) {nvcc} "$@" -DX ;; *) {nvcc} "$@" ;; esac', "it makes PTX in another way than for"),
    ],
)
def test_the_probe_finds_out_what_is_wrong(bench, tmp_path, monkeypatch, answer, obstacle):
    monkeypatch.setattr(nvcc_probe, "ELF", b"#!")
    case = f'[ "$1" = --dryrun ] && {{ {answer.replace("{nvcc}", bench.nvcc.path)}; exit; }}'
    other = script(tmp_path / "nvcc", f'{case}\nexec {bench.nvcc.path} "$@"')
    assert obstacle_of(bench, path=str(other)).startswith(obstacle)
