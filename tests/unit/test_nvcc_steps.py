"""nvcc's programs, run without it: what its dry run says, the same files both ways, and what is done otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from kernelwright.core.arch import is_ptx, virtual_arch
from kernelwright.core.errors import KernelwrightError, ToolError, Where
from kernelwright.processes.runner import ToolRunner
from kernelwright.toolchain import nvcc_probe, trimmed_source
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.kept_headers import KeptHeaders
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.toolchain.nvcc_probe import compile_probe
from kernelwright.toolchain.nvcc_run import CompiledCode, NvccJob, NvccRun, compile_device_code
from kernelwright.toolchain.nvcc_steps import Steps, read_steps
from kernelwright.toolchain.nvcc_steps_run import KnownSteps, can_part, compile_by_steps
from support.real_nvcc import real_nvcc

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


def test_the_commands_of_a_dry_run_are_moved_to_another_source():
    steps = read_steps(PTX, "ptx", "/t m").moved("/build/b", "/other")
    shell, option, script = steps.front_end()
    assert (shell, option) == ("/bin/sh", "-c")
    assert script.startswith("export PATH=/cuda/bin:/usr/bin; export CICC_PATH=/cuda/bin/../nvvm/bin; ")
    assert '--orig_src_path_name "/build/b/device.cu"' in script and "/t m" not in script and "/build/a" not in script
    assert script.endswith('-o "/other/compute_80.ptx"') and script.count(" && ") == 1
    assert " -E -MD -x c++" in steps.reading("-MD")[2]


def test_a_cubin_is_assembled_from_another_ptx_file():
    script = read_steps(CUBIN, "cubin", "/t m").assembling("compute_80.ptx")[2]
    assert script.endswith('ptxas -arch=sm_80 -m64 -v  "compute_80.ptx"  -o "/t m/sm_80.cubin"')


def test_names_of_temporary_files_decide_nothing():
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
    "float32": 'extern "C" __global__ void k(float *x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }\n',
    "float16": '#include <cuda_fp16.h>\nextern "C" __global__ void k(half *x) { x[0] = hexp(x[1]) * x[2]; }\n',
    "bfloat16": "#include <cuda_bf16.h>\nstatic __device__ int calls;\n"
    'extern "C" __global__ void k(nv_bfloat16 *x) { atomicAdd(&calls, 1); x[0] = __hmul(x[1], x[2]); }\n',
    "tensor cores": "#include <mma.h>\nnamespace w = nvcuda::wmma;\n"
    'extern "C" __global__ void k(half *x) { w::fragment<w::matrix_a, 16, 16, 16, half, w::row_major> a;\n'
    "w::load_matrix_sync(a, x, 16); x[0] = a.x[0]; }\n",
}


@dataclass
class Bench:
    """A project with a source, and what compiles it in both ways."""

    project: Path
    nvcc: Nvcc
    compiler: HostCompiler
    runner: ToolRunner
    known: KnownSteps = field(default_factory=KnownSteps)

    @property
    def folder(self) -> Path:
        return self.project / "build" / "kernel"

    @property
    def kept(self) -> KeptHeaders:
        return KeptHeaders(self.project / "build" / "headers", ("these tools",))

    def plain(self, arch: str, *flags: str) -> tuple[CompiledCode, dict[str, bytes]]:
        """What nvcc reports and makes."""
        scratch, job = self._scratch("plain"), self._job(arch, flags)
        done = compile_device_code(NvccRun(job, self.nvcc, self.compiler, scratch, self.runner, arch))
        return done, {name: (scratch / name).read_bytes() for name in job.outputs}

    def stepwise(self, arch: str, *flags: str, shipped: bool = True) -> tuple[CompiledCode, dict[str, bytes]]:
        """What is reported and made without it; PTX stays in the folder, where cubins are made from it."""
        scratch, job = self._scratch("steps, (1): really"), self._job(arch, flags)
        run = NvccRun(job, self.nvcc, self.compiler, scratch, self.runner, arch)
        done = compile_by_steps(run, self.known, self.kept, shipped=shipped)
        if is_ptx(arch):
            shutil.copy(scratch / job.output, self.folder)
        return done, {name: (scratch / name).read_bytes() for name in job.outputs}

    def _scratch(self, name: str) -> Path:
        shutil.rmtree(self.project / "build" / name, ignore_errors=True)
        (self.project / "build" / name).mkdir()
        return self.project / "build" / name

    def _job(self, arch: str, flags: tuple[str, ...]) -> NvccJob:
        return NvccJob(arch, flags, self.folder, Where("k", "default", "nvcc"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with real_nvcc(tmp_path) as tools:
        bench = Bench(tmp_path, *tools)
        bench.folder.mkdir(parents=True)
        (bench.folder / "device.cu").write_text(SOURCES["float16"])
        yield bench


FLAGS = [
    (),
    ("-lineinfo",),
    ("--use_fast_math", "-Xptxas", "-O1"),
    ("-maxrregcount=32", "-DA=(1)", "-D", "B=x y"),
]


@pytest.mark.parametrize(
    ("source", "arch", "flags"),
    [
        *((source, ("sm_80", "sm_90a")[number % 2], ()) for number, source in enumerate(SOURCES)),
        *(("bfloat16", "sm_80", flags) for flags in FLAGS[1:]),
    ],
)
def test_both_ways_make_the_same_files(bench, source, arch, flags):
    (bench.folder / "device.cu").write_text(SOURCES[source])
    for each in (virtual_arch(arch), arch):
        done, files = bench.stepwise(each, *flags)
        assert files == bench.plain(each, *flags)[1]
        assert done.notes == () and done.result.cpu_seconds > 0


def test_with_debug_information_the_code_is_the_same_and_the_file_as_well_in_another_run(bench):
    bench.stepwise("compute_80", "-G")
    _, files = bench.stepwise("sm_80", "-G")
    assert files["sm_80.cubin"] == bench.stepwise("sm_80", "-G")[1]["sm_80.cubin"]
    _, plain = bench.plain("sm_80", "-G")
    assert files["sm_80.json"] == plain["sm_80.json"], "nvcc itself puts the name of a temporary file into a cubin"


def test_the_dry_run_is_asked_for_once_and_holds_for_other_folders(bench, monkeypatch):
    ran = []
    run = bench.runner.run
    monkeypatch.setattr(bench.runner, "run", lambda call: ran.append(call.command) or run(call))
    _, first = bench.stepwise("compute_80", "-lineinfo")
    bench.folder.rename(bench.project / "build/moved")
    bench.folder.mkdir()
    shutil.copy(bench.project / "build/moved/device.cu", bench.folder)
    assert bench.stepwise("compute_80", "-lineinfo")[1] == first
    assert ["--dryrun" in command for command in ran] == [True, *[False] * 4], "it is preprocessed, and made PTX of"


def test_headers_are_read_once_for_each_arch_and_flags(bench, monkeypatch):
    ran = []
    run = bench.runner.run
    monkeypatch.setattr(bench.runner, "run", lambda call: ran.append(call.command[-1]) or run(call))
    for arch, flags in (("compute_80", ()), ("compute_80", ()), ("compute_90a", ()), ("compute_80", ("-ftz=true",))):
        assert bench.stepwise(arch, *flags)[1] == bench.plain(arch, *flags)[1]
    assert sum(" -E -dD " in command for command in ran) == 3
    bench.known = KnownSteps()
    assert bench.stepwise("compute_80")[1] == bench.plain("compute_80")[1]
    assert sum(" -E -dD " in command for command in ran) == 3, "a build before has kept them"


@pytest.mark.parametrize("flags", [(), ("-maxrregcount=32", "--use_fast_math", "-Xptxas", "-v")])
def test_the_front_end_reads_few_declarations_of_headers(bench, monkeypatch, flags):
    whole = []
    monkeypatch.setattr(Steps, "reading", lambda *_, **__: whole.append(1))
    bench.stepwise("compute_80", *flags)
    assert not whole


def test_headers_that_flags_name_are_reported(bench):
    names = ["a b.h", "a#b.h", "a$b.h", "a:b.h", "a%'(b).h", "é.h", "a\\b.h"]
    for name in names:
        (bench.folder / name).write_text("#define NOTHING\n")
    (bench.folder / "all.h").write_text("".join(f'#include "{name}"\n' for name in names))
    done = bench.stepwise("compute_80", "-include", "all.h")[0]
    assert set(done.headers) == {f"build/kernel/{name}" for name in [*names, "all.h"]} and not done.notes
    bench.stepwise("compute_80", "-include", "all.h")
    assert bench.stepwise("sm_80", "-include", "all.h")[0].headers == (), "the PTX has them"


def test_an_error_in_the_source_is_nvccs_own(bench):
    (bench.folder / "device.cu").write_text('extern "C" __global__ void k(float *x) {\n  x = nothing;\n}\n')
    with pytest.raises(ToolError, match=r"nvcc ended with exit status \d+") as caught:
        bench.stepwise("compute_80")
    assert 'device.cu(2): error: identifier "nothing" is undefined' in str(caught.value)
    assert caught.value.where == Where("k", "default", "nvcc")


def test_an_error_of_ptxas_is_nvccs_own(bench):
    text = 'extern "C" __global__ void k(float *x) { __shared__ float s[99999]; s[threadIdx.x] = x[0]; x[1] = s[2]; }\n'
    (bench.folder / "device.cu").write_text(text)
    bench.stepwise("compute_80")
    with pytest.raises(ToolError, match="uses too much shared data") as caught:
        bench.stepwise("sm_80")
    assert "-cubin" in str(caught.value) and str(bench.folder / "device.cu") in str(caught.value)


def test_a_step_that_takes_too_long_is_named_as_nvcc(bench):
    bench.runner.timeout_s = 0.01
    with pytest.raises(KernelwrightError, match=r"nvcc took longer than 0\.01 s"):
        bench.stepwise("compute_80")


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("dry_run", "reason"),
    [
        ("echo '#$ something else'", "its dry run for compute_80 cannot be read: it would run"),
        ("exit 3", "what it runs for compute_80 ended with exit status 3"),
    ],
)
def test_nvcc_is_run_as_a_whole_if_its_steps_turn_out_not_to_be_known(bench, tmp_path, dry_run, reason):
    plain = {arch: bench.plain(arch)[1] for arch in ("compute_80", "sm_80")}
    case = f'[ "$1" = --dryrun ] && {{ {dry_run}; exit; }}'
    other = script(tmp_path / "nvcc", f'{case}\nexec {bench.nvcc.path} "$@"')
    bench.nvcc = replace(bench.nvcc, path=other)
    for arch, expected in plain.items():
        done, files = bench.stepwise(arch)
        assert files == expected
        assert done.notes[0].startswith(f"nvcc is run as a whole: {reason.replace('compute_80', arch)}")


def test_a_path_that_a_shell_would_act_on_is_given_to_none(bench):
    evil = bench.project / "build/kernel $(touch sprung) `touch sprung`; touch sprung"
    bench.folder.rename(evil)
    job = NvccJob("compute_80", (), evil, Where("k", "default", "nvcc"))
    scratch = bench.project / "build/scratch"
    scratch.mkdir()
    run = NvccRun(job, bench.nvcc, bench.compiler, scratch, bench.runner, "k")
    done = compile_by_steps(run, bench.known, bench.kept, shipped=True)
    assert done.notes == () and (scratch / job.output).is_file()
    assert not [*bench.project.rglob("sprung*")]


def test_the_probe_lets_the_real_nvcc_be_run_step_by_step(bench):
    assert compile_probe(bench.nvcc.path, "13.0.88", bench.compiler.path, "sm_90", "") == ""


def test_the_probe_sees_whether_trimming_changes_ptx(bench, monkeypatch):
    trimmed = trimmed_source.trimmed
    monkeypatch.setattr(trimmed_source, "trimmed", lambda *given: trimmed(*given).replace("0.3f", "0.4f"))
    obstacle = "it makes other PTX without declarations that are not used"
    assert compile_probe(bench.nvcc.path, "13.0.88", bench.compiler.path, "sm_80", "") == obstacle


def test_a_script_and_another_release_are_run_as_a_whole(bench, tmp_path):
    wrapper = script(tmp_path / "nvcc", f'exec {bench.nvcc.path} "$@"')
    assert compile_probe(wrapper, "13.0.88", bench.compiler.path, "sm_80", "") == f"{wrapper} is a script"
    obstacle = compile_probe(bench.nvcc.path, "13.5.1", bench.compiler.path, "sm_80", "")
    assert obstacle == "it is of CUDA 13.5.1, and what it runs is known of 13.0 only"


@pytest.mark.parametrize(
    ("answer", "obstacle"),
    [
        ("echo '#$ nothing'", "its dry run cannot be read: it would run "),
        ('{nvcc} "$@" 2>&1 | sed "s/ -fmad=1/ -fmad=0/"', "what it would run makes another cubin"),
        ('{nvcc} "$@" 2>&1 | sed "/-ptx/!s/ -fmad=1/ --none/"', "what it would run ends with exit status"),
        (
            'case "$*" in *-ptx*) {nvcc} "$@" -DX ;; *) {nvcc} "$@" ;; esac',
            "it makes PTX in another way than for a cubin",
        ),
    ],
)
def test_the_probe_finds_out_what_is_wrong(bench, tmp_path, monkeypatch, answer, obstacle):
    monkeypatch.setattr(nvcc_probe, "ELF", b"#!")
    case = f'[ "$1" = --dryrun ] && {{ {answer.replace("{nvcc}", bench.nvcc.path)}; exit; }}'
    other = script(tmp_path / "nvcc", f'{case}\nexec {bench.nvcc.path} "$@"')
    assert compile_probe(other, "13.0.88", bench.compiler.path, "sm_80", "").startswith(obstacle)
